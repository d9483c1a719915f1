// The requests view: a waterfall of the phases of each.

import { data } from "./api.js";
import { byId, count, el, number, seconds, setStyle } from "./dom.js";
import { bars, longest, PHASES } from "./waterfall.js";

const MAX_ROWS = 100;

export class RequestsView {
  pauseSeconds = 1;
  #settings; // {replica(): string}

  constructor(settings) {
    this.#settings = settings;
    byId("phase-legend").replaceChildren(
      ...[...PHASES, "other"].flatMap((phase) => [el("span", { class: "key", data: { phase } }), `${phase} `]),
    );
  }

  reset() {
    byId("requests").replaceChildren();
    byId("requests-note").textContent = "";
  }

  async poll(signal) {
    const { requests } = await data("requests", { replica: this.#settings.replica() }, signal);
    const shown = requests.slice(0, MAX_ROWS);
    const whole = longest(shown);
    byId("requests").replaceChildren(...shown.map((request) => rowOf(request, whole)));
    byId("requests-note").textContent = shown.length
      ? `Those that wait or run first, then the latest; the longest bar is ${seconds(whole)}.`
      : "No request has come yet.";
  }
}

function rowOf(request, whole) {
  const state = request.finish ?? request.state;
  const line = el("div", { class: "phases", role: "img", "aria-label": sentenceOf(request) });
  for (const { phase, left, width, seconds: took } of bars(request, whole)) {
    const bar = el("span", { data: { phase }, title: `${phase}: ${seconds(took)}` });
    setStyle(bar, { left: `${100 * left}%`, width: `${100 * width}%` });
    line.append(bar);
  }
  return el(
    "tr",
    { data: { state: request.state, id: request.request_id } },
    el("td", { class: "id", title: request.request_id }, request.request_id),
    el("td", {}, state),
    el("td", {}, promptOf(request)),
    el("td", { class: "wide" }, `${count(request.num_output_tokens)} tokens`),
    el("td", { class: "line" }, line),
    el("td", {}, seconds(number(request.duration_seconds))),
  );
}

function promptOf({ num_prompt_tokens: prompt, num_cached_tokens: cached }) {
  const part = el("span", { class: "part cached" });
  const rest = el("span", { class: "part computed" });
  setStyle(part, { "flex-grow": cached ?? 0 });
  setStyle(rest, { "flex-grow": prompt - (cached ?? 0) });
  const said = cached === null ? `${count(prompt)} tokens` : `${count(cached)} of ${count(prompt)} cached`;
  return el("div", {}, cached === null ? null : el("div", { class: "bar small" }, part, rest), said);
}

function sentenceOf(request) {
  return Object.entries(request.phases).map(([phase, took]) => `${phase} ${seconds(took)}`).join(", ") || "waits";
}
