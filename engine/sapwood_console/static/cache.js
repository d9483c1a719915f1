// The cache view: the radix tree as it is, and what happened in it between two looks.

import { data, hasAdminKey } from "./api.js";
import { diff } from "./diff.js";
import { byId, count, el, number, percent, setStyle } from "./dom.js";
import { layout } from "./tree.js";

const MAX_NODES = 1000;
const KINDS = ["appeared", "split", "locked", "unlocked", "evicted"];
const MAX_EVENTS = 200;
const FRESH_MILLISECONDS = 1500;
const ROW_PIXELS = 30;
const NARROWEST_PIXELS = 2;
const LABEL_PIXELS = 26; // narrower boxes have none
const MEANINGS = { recency: ["used longest ago", "used last"], hits: ["never hit", "hit most"] };
const KV_STATES = [
  ["active", "being computed"],
  ["protected", "cached and in use"],
  ["evictable", "cached"],
  ["free", "free"],
];

export class CacheView {
  #settings; // {replica(): string, showsText: boolean, changed(): void}
  #before = null;
  #shown = null;
  #root = 0;
  #paused = false;
  #counts = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
  #boxes = new Map(); // serial -> element
  #placed = new Map(); // serial -> box

  constructor(settings) {
    this.#settings = settings;
    byId("pause").addEventListener("click", () => this.#pause());
    byId("zoom-out").addEventListener("click", () => this.#zoom(0));
    byId("show-text").addEventListener("change", () => settings.changed());
    for (const radio of document.getElementsByName("colour")) radio.addEventListener("change", () => this.#draw());
    byId("icicle").addEventListener("keydown", (event) => this.#move(event));
    this.#showCounts();
  }

  /** The engine stands still while it lists nodes: a thousand take a millisecond, with their text nine. */
  get pauseSeconds() {
    return byId("show-text").checked ? 2 : 0.5;
  }

  /** Another tree is looked at, or the same anew: what was known is of no use. */
  reset() {
    this.#before = this.#shown = null;
    this.#root = 0;
    for (const kind of KINDS) this.#counts[kind] = 0;
    byId("events").replaceChildren();
    byId("node-detail").textContent = "";
    this.#showCounts();
    this.#draw();
  }

  async poll(signal) {
    if (this.#paused) return;
    const text = byId("show-text");
    text.disabled = !(this.#settings.showsText && hasAdminKey());
    text.title = text.disabled ? "Prompts are shown to who gives an admin key, where the server was started with one." : "";
    if (text.disabled) text.checked = false;
    const replica = this.#settings.replica();
    const asked = { replica, max_nodes: MAX_NODES, text: text.checked ? 1 : undefined };
    const snapshot = await data("cache", asked, signal);
    const load = await data("load", { replica }, signal);
    this.#take(snapshot);
    showLoad(load);
  }

  #take(snapshot) {
    // An engine that was started anew gives serials anew: none of its nodes was there before.
    const isSame = this.#before !== null && this.#before.epoch === snapshot.epoch;
    const events = isSame ? diff(this.#before, snapshot) : [];
    this.#before = this.#shown = snapshot;
    for (const event of events) this.#counts[event.kind] += 1;
    this.#showCounts();
    this.#log(events);
    this.#draw(new Set(events.filter((event) => event.isWhole).map((event) => event.serial)));
    for (const event of events) this.#mark(event);
  }

  #pause() {
    this.#paused = !this.#paused;
    byId("pause").setAttribute("aria-pressed", String(this.#paused));
    byId("pause").textContent = this.#paused ? "Go on" : "Pause";
  }

  #zoom(serial) {
    this.#root = serial;
    this.#draw();
  }

  #showCounts() {
    byId("counts").replaceChildren(
      ...KINDS.map((kind) => el("div", { data: { count: kind } }, el("dt", {}, kind), el("dd", {}, count(this.#counts[kind])))),
    );
  }

  #log(events) {
    const list = byId("events");
    const time = new Date().toLocaleTimeString("en-GB");
    for (const event of events) {
      list.prepend(el("li", { data: { kind: event.kind, serial: event.serial } }, el("time", {}, time), ` ${sentenceOf(event)}`));
    }
    while (list.childElementCount > MAX_EVENTS) list.lastElementChild.remove();
  }

  /** `evicted`: serials of the nodes that have just gone, which fade instead of vanishing. */
  #draw(evicted = new Set()) {
    const icicle = byId("icicle");
    const colour = document.querySelector('input[name="colour"]:checked').value;
    [byId("heat-low").textContent, byId("heat-high").textContent] = MEANINGS[colour];
    const snapshot = this.#shown ?? { namespaces: [], num_nodes: 0, truncated: false };
    const narrowest = NARROWEST_PIXELS / Math.max(1, icicle.clientWidth);
    const placed = layout(snapshot, { colour, root: this.#root, narrowest });
    this.#root = placed.root;
    byId("zoom-out").hidden = this.#root === 0;
    setStyle(icicle, { height: `${Math.max(3, placed.numRows) * ROW_PIXELS}px` });
    const gone = new Map(this.#boxes);
    this.#boxes.clear();
    this.#placed.clear();
    for (const box of placed.boxes) {
      const key = box.serial || `namespace ${box.name} ${box.left}`;
      const element = gone.get(key) ?? this.#newBox(box);
      gone.delete(key);
      this.#boxes.set(key, element);
      this.#placed.set(key, box);
      showBox(element, box, box.width * icicle.clientWidth >= LABEL_PIXELS);
    }
    for (const [key, element] of gone) leave(element, evicted.has(key));
    this.#keepOneTabStop(icicle);
    byId("tree-note").textContent = this.#shown === null ? "" : noteOf(snapshot, placed);
  }

  #newBox(box) {
    const element = el("div", { class: "node", role: "treeitem", tabindex: -1, onfocus: () => this.#detail(box.serial) });
    if (box.serial) {
      element.addEventListener("click", () => this.#zoom(this.#root === box.serial ? 0 : box.serial));
      element.addEventListener("mouseenter", () => this.#detail(box.serial));
    }
    byId("icicle").append(element);
    return element;
  }

  #detail(serial) {
    const box = this.#placed.get(serial);
    if (!box) return;
    const detail = byId("node-detail");
    detail.replaceChildren(`${describe(box)}.`);
    if (box.text !== undefined) detail.append(el("q", {}, box.text));
  }

  #keepOneTabStop(icicle) {
    if (icicle.querySelector('[tabindex="0"]') === null) icicle.querySelector(".node")?.setAttribute("tabindex", "0");
  }

  #move(event) {
    const element = event.target.closest(".node");
    const found = [...this.#boxes].find(([, each]) => each === element);
    if (!found) return;
    const box = this.#placed.get(found[0]);
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (box.serial) this.#zoom(this.#root === box.serial ? 0 : box.serial);
      return;
    }
    const to = this.#neighbour(event.key, found[0], box);
    if (to === undefined) return;
    event.preventDefault();
    element.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  }

  #neighbour(key, own, box) {
    const entries = [...this.#placed];
    const inRow = entries.filter(([, each]) => each.row === box.row);
    const at = inRow.findIndex(([each]) => each === own);
    const steps = { ArrowLeft: inRow[at - 1], ArrowRight: inRow[at + 1] };
    steps.ArrowDown = entries.find(([, each]) => each.row === box.row + 1 && each.left >= box.left - 1e-9);
    steps.ArrowUp = entries.findLast(([, each]) => each.row === box.row - 1 && each.left <= box.left + 1e-9);
    return steps[key] && this.#boxes.get(steps[key][0]);
  }

  /** Let what has just happened to a node be seen for a moment. */
  #mark(event) {
    const element = this.#boxes.get(event.serial);
    if (!element || event.kind === "unlocked") return;
    element.dataset.fresh = event.kind;
    setTimeout(() => delete element.dataset.fresh, FRESH_MILLISECONDS);
  }
}

function leave(element, isEvicted) {
  if (!isEvicted) {
    element.remove();
    return;
  }
  element.className = "ghost";
  element.setAttribute("aria-hidden", "true");
  element.removeAttribute("role");
  element.removeAttribute("tabindex");
  setTimeout(() => element.remove(), FRESH_MILLISECONDS);
}

function showBox(element, box, hasLabel) {
  setStyle(element, {
    left: `${100 * box.left}%`,
    width: `${100 * box.width}%`,
    top: `${ROW_PIXELS * box.row}px`,
  });
  element.dataset.serial = box.serial;
  element.dataset.tokens = box.numTokens;
  element.dataset.locks = box.locks ?? 0;
  element.dataset.heat = box.heat ?? "none";
  element.setAttribute("aria-level", box.row + 1);
  element.setAttribute("aria-label", describe(box));
  element.classList.toggle("space", box.serial === 0);
  const label = hasLabel ? (box.text ?? (box.serial === 0 ? box.name : count(box.numTokens))) : "";
  if (element.textContent !== label) element.textContent = label;
}

function describe(box) {
  if (box.serial === 0) return `Namespace ${box.name}: ${count(box.numTokens)} tokens`;
  const hits = box.hits ? `hit ${count(box.hits)} times` : "never hit";
  const locks = box.locks ? `, locked by ${count(box.locks)}` : "";
  const below = box.total > box.numTokens ? `, ${count(box.total - box.numTokens)} below it` : "";
  return `Node ${box.serial}: ${count(box.numTokens)} tokens${below}, ${hits}${locks}`;
}

function sentenceOf(event) {
  const tokens = `${count(event.numTokens)} tokens`;
  switch (event.kind) {
    case "appeared":
      return `appeared: ${tokens} (node ${event.serial})`;
    case "split":
      return `split: node ${event.lower} into ${count(event.upperTokens)} tokens (node ${event.serial}) and ${count(event.lowerTokens)} below`;
    case "evicted":
      return event.isWhole ? `evicted: ${tokens} (node ${event.serial})` : `evicted: the last ${tokens} of node ${event.serial}`;
    default:
      return `${event.kind}: ${tokens} (node ${event.serial})`;
  }
}

function noteOf(snapshot, placed) {
  if (snapshot.num_nodes === 0) return "The tree is empty: nothing has been asked yet, or all was evicted.";
  const told = [`${count(snapshot.num_nodes)} nodes in pages of ${count(snapshot.page_size)} tokens.`];
  if (snapshot.truncated) told.push(`The ${count(MAX_NODES)} nearest to the roots are looked at: of others neither coming nor going is told.`);
  if (placed.numHidden) told.push(`${count(placed.numHidden)} are too narrow to draw; choose a node above them to see them.`);
  return told.join(" ");
}

function showLoad({ load, model, state }) {
  const capacity = number(load.kv_capacity_tokens);
  const parts = KV_STATES.map(([name, meaning]) => {
    const tokens = number(load[`kv_${name}_tokens`]);
    const part = el("span", { class: "part", data: { state: name }, title: `${meaning}: ${count(tokens)} tokens` });
    setStyle(part, { "flex-grow": Number.isFinite(tokens) ? tokens : 0 });
    return part;
  });
  const cached = number(load.kv_evictable_tokens) + number(load.kv_protected_tokens);
  const said = `${model} is ${state}: ${count(load.num_running)} running, ${count(load.num_waiting)} waiting; ` +
    `${percent(cached / capacity)} of ${count(capacity)} KV tokens cached, ${percent(load.kv_protected_tokens / capacity)} in use by requests that run, ` +
    `${percent(load.kv_free_tokens / capacity)} free`;
  byId("kv").replaceChildren(el("div", { class: "bar" }, ...parts), el("p", { class: "quiet" }, said));
}
