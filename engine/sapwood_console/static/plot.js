// The curve view: hit ratio over memory, and the sliders.

import { data } from "./api.js";
import { factorOf, knownUpTo, measured, ratioTogether, usable } from "./curve.js";
import { byId, count, number, percent, svg } from "./dom.js";

const HEIGHT = 320;
const NARROW_PIXELS = 560;
const EDGE = { left: 46, right: 22, top: 14, bottom: 38 };
const LEAST = 1 / 4;
const MOST = 128; // 16 replicas of 8 times the memory
const STEPS = 240;
const MOST_ASKED = 16; // replicas; of more the first stand for all

export class CurveView {
  pauseSeconds = 5;
  #settings; // {replicas(): string[]}, [""] for an engine
  #curves = [];
  #numReplicas = 0;
  #measured = { ratio: NaN, numRequests: 0 };

  constructor(settings) {
    this.#settings = settings;
    for (const name of ["replicas", "memory"]) byId(name).addEventListener("input", () => this.#draw());
    addEventListener("resize", () => this.#draw());
  }

  reset() {
    this.#curves = [];
    this.#numReplicas = 0;
    this.#draw();
  }

  async poll(signal) {
    const replicas = this.#settings.replicas().slice(0, MOST_ASKED);
    const caches = [];
    const lists = [];
    for (const replica of replicas) {
      caches.push(await data("cache", { replica, max_nodes: 0 }, signal));
      lists.push(await data("requests", { replica }, signal));
    }
    if (replicas.length !== this.#numReplicas) byId("replicas").value = String(replicas.length);
    this.#numReplicas = replicas.length;
    this.#curves = caches.map((cache) => cache.curve);
    this.#measured = measured(lists);
    this.#draw();
  }

  #draw() {
    const replicas = Number(byId("replicas").value);
    const memory = 2 ** Number(byId("memory").value);
    byId("replicas-out").textContent = String(replicas);
    byId("memory-out").textContent = `×${memory.toFixed(2).replace(/\.?0+$/, "")}`;
    const curves = usable(this.#curves);
    const factor = factorOf({ replicas, memory, present: Math.max(1, this.#numReplicas) });
    const predicted = ratioTogether(curves, factor);
    const answer = byId("curve-answer");
    answer.dataset.predicted = Number.isFinite(predicted) ? predicted.toFixed(4) : "";
    answer.textContent = this.#sentence(curves, factor, predicted);
    byId("curve-note").textContent = noteOf(this.#curves, curves);
    const plot = new Plot(Math.max(280, byId("curve-plot").clientWidth - 26));
    byId("curve-plot").replaceChildren(plot.draw(curves, factor, predicted, this.#measured.ratio));
  }

  #sentence(curves, factor, predicted) {
    if (this.#numReplicas === 0) return "";
    if (!Number.isFinite(predicted)) return "There is no curve yet: it grows with the requests that come.";
    const tokens = factor * curves.reduce((sum, curve) => sum + curve.capacity_tokens, 0);
    const now = percent(ratioTogether(curves, 1));
    const { ratio, numRequests } = this.#measured;
    const real = Number.isFinite(ratio) ? `; ${percent(ratio)} were measured over the last ${count(numRequests)} requests` : "";
    const atLeast = factor > knownUpTo(curves) ? "at least " : "";
    return `With ${count(tokens)} KV tokens ${atLeast}${percent(predicted)} of prompt tokens would be cached. The curve says ${now} for the present size${real}.`;
  }
}

function noteOf(all, curves) {
  if (all.length && !all.some((curve) => curve?.enabled)) return "The engine measures no curve: it was started with --miss-ratio-curve=off.";
  if (!curves.length) return "";
  const samples = curves.reduce((sum, curve) => sum + curve.num_samples, 0);
  const known = (name) => curves.reduce((sum, curve) => sum + number(curve[name]), 0);
  return `${count(samples)} samples, ${percent(curves[0].sample_rate)} of the pages followed. Working set ${count(known("working_set_tokens"))} tokens; ` +
    `${count(known("regret_tokens"))} tokens had to be computed again soon after they were evicted.`;
}

/** One drawing, as wide as its place: text keeps its size. */
class Plot {
  #width;

  constructor(width) {
    this.#width = width;
  }

  #x(factor) {
    const share = Math.log2(Math.min(MOST, Math.max(LEAST, factor)) / LEAST) / Math.log2(MOST / LEAST);
    return EDGE.left + (this.#width - EDGE.left - EDGE.right) * share;
  }

  #y(ratio) {
    return HEIGHT - EDGE.bottom - (HEIGHT - EDGE.top - EDGE.bottom) * ratio;
  }

  draw(curves, factor, predicted, real) {
    const title = Number.isFinite(predicted) ? `Hit ratio over memory: ${percent(predicted)} at ${factor} times the present` : "Hit ratio over memory: not known yet";
    const size = { width: this.#width, height: HEIGHT, viewBox: `0 0 ${this.#width} ${HEIGHT}` };
    const drawing = svg("svg", { ...size, role: "img", "aria-label": title }, ...this.#axes());
    if (curves.length) drawing.append(this.#line(curves));
    const right = this.#width - EDGE.right;
    if (Number.isFinite(real)) {
      const y = this.#y(real);
      drawing.append(svg("line", { x1: EDGE.left, x2: right, y1: y, y2: y, class: "measured" }), svg("text", { x: right, y: y - 5, class: "end" }, "measured"));
    }
    if (Number.isFinite(predicted)) {
      const [x, y] = [this.#x(factor), this.#y(predicted)];
      drawing.append(svg("line", { x1: x, x2: x, y1: HEIGHT - EDGE.bottom, y2: y, class: "drop" }), svg("circle", { cx: x, cy: y, r: 6, class: "dot" }));
    }
    return drawing;
  }

  #line(curves) {
    const path = [];
    const doublings = Math.log2(Math.min(MOST, knownUpTo(curves)) / LEAST);
    for (let step = 0; step <= STEPS; step += 1) {
      const factor = LEAST * 2 ** ((doublings * step) / STEPS);
      path.push(`${this.#x(factor).toFixed(1)},${this.#y(ratioTogether(curves, factor)).toFixed(1)}`);
    }
    return svg("polyline", { points: path.join(" "), class: "line" });
  }

  #axes() {
    const drawn = [];
    const right = this.#width - EDGE.right;
    for (let share = 0; share <= 4; share += 1) {
      const y = this.#y(share / 4);
      drawn.push(svg("line", { x1: EDGE.left, x2: right, y1: y, y2: y, class: "grid" }));
      drawn.push(svg("text", { x: EDGE.left - 6, y: y + 4, class: "end" }, `${25 * share} %`));
    }
    const step = this.#width < NARROW_PIXELS ? 4 : 2;
    for (let factor = LEAST; factor <= MOST; factor *= step) {
      drawn.push(svg("text", { x: this.#x(factor), y: HEIGHT - EDGE.bottom + 16, class: "middle" }, `×${factor}`));
    }
    const present = this.#x(1);
    drawn.push(svg("line", { x1: present, x2: present, y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "present" }));
    drawn.push(svg("text", { x: this.#width / 2, y: HEIGHT - 4, class: "middle" }, "memory of all replicas, in times of the present"));
    return drawn;
  }
}
