// The replicas view, of a gateway alone: who there is, and which one the other views show.

import { data } from "./api.js";
import { byId, count, el, number } from "./dom.js";
import { ScalingPanel } from "./scaling.js";

export class ReplicasView {
  pauseSeconds = 2;
  #settings; // {replica(): string, choose(id): void, found(replicas): void, changed(): void}
  #scaling;

  constructor(settings) {
    this.#settings = settings;
    this.#scaling = new ScalingPanel(settings.changed);
  }

  reset() {
    byId("replicas-body").replaceChildren();
  }

  async poll(signal) {
    const { replicas } = await data("replicas", {}, signal);
    this.#settings.found(replicas);
    byId("replicas-body").replaceChildren(...replicas.map((replica) => this.#row(replica)));
    byId("replicas-note").textContent = replicas.length ? "" : "No replica has been found yet.";
    await this.#scaling.poll(signal);
  }

  #row(replica) {
    const isChosen = replica.id === this.#settings.replica();
    const choose = el("button", { type: "button", "aria-pressed": String(isChosen), onclick: () => this.#settings.choose(replica.id) }, isChosen ? "Shown" : "Show");
    return el(
      "tr",
      { data: { id: replica.id } },
      el("td", { class: "id" }, replica.name),
      el("td", {}, replica.service),
      el("td", {}, el("span", { class: "state", data: { fit: replica.fitness } }, replica.fitness.replaceAll("_", " "))),
      el("td", {}, count(number(replica.num_requests))),
      el("td", { class: "wide" }, count(number(replica.num_own))),
      el("td", { class: "wide" }, count(number(replica.num_waiting_tokens))),
      el("td", {}, replica.num_blocks === null ? "not followed" : count(number(replica.num_blocks))),
      el("td", {}, choose),
    );
  }
}
