// How services scale, of a gateway that knows an operator: what is decided, and what another number would do.

import { data, Refusal } from "./api.js";
import { byId, el, percent, seconds } from "./dom.js";

const PARTS = [
  ["Hit ratio", "hit_ratio", percent],
  ["Prefill use", "prefill_use", percent],
  ["Time to first token, p90", "ttft_p90_seconds", seconds],
  ["Time between tokens", "itl_seconds", seconds],
  ["KV memory use", "kv_use", percent],
];

/** A number of the operator's: what has no end is a text in JSON, what is unknown null. */
const shown = (value, show) => (value === "Infinity" ? "without end" : typeof value === "number" ? show(value) : "?");

export class ScalingPanel {
  constructor(changed) {
    byId("scaling-service").addEventListener("change", changed);
    byId("scaling-replicas").addEventListener("change", changed);
    byId("scaling-memory").addEventListener("change", changed);
  }

  async poll(signal) {
    const { scales, services } = await data("scaling", {}, signal);
    const select = byId("scaling-service");
    const chosen = services.includes(select.value) ? select.value : (services[0] ?? "");
    const isSame = [...select.options].map((option) => option.value).join("\n") === services.join("\n");
    if (!isSame) select.replaceChildren(...services.map((name) => el("option", { value: name, selected: name === chosen }, name)));
    byId("scaling").hidden = !scales || !chosen;
    byId("scaling-note").textContent = scales ? "" : "Nobody scales here: this gateway knows no operator.";
    if (scales && chosen) await this.#ask(chosen, signal);
  }

  async #ask(service, signal) {
    const asked = { service, replicas: byId("scaling-replicas").value, memory: byId("scaling-memory").value };
    try {
      const told = await data("scaling", { service }, signal);
      const mode = told.mode === "Active" ? "" : ` Mode ${told.mode}: nothing is done.`;
      byId("scaling-decision").textContent =
        `${told.desired} wanted, ${told.num_asked} asked for, ${told.num_ready} ready. ${told.reason}: ${told.message}.${mode}`;
      this.#show(await data("what-if", asked, signal));
    } catch (error) {
      if (!(error instanceof Refusal) || error.status === 401 || error.status === 403) throw error;
      byId("scaling-note").textContent = error.message;
      byId("scaling-body").replaceChildren();
      byId("scaling-verdict").textContent = "";
    }
  }

  #show({ now, then, policy }) {
    byId("scaling-now").textContent = `${now.replicas} now`;
    byId("scaling-then").textContent = `${then.replicas} with ×${then.memory_factor} memory`;
    const row = ([title, name, show]) => el("tr", {}, el("td", {}, title), el("td", {}, shown(now[name], show)), el("td", {}, shown(then[name], show)));
    byId("scaling-body").replaceChildren(...PARTS.map(row));
    byId("scaling-verdict").textContent = `${then.sentence}. Does the policy go there? ${policy.sentence}.`;
  }
}
