// The chat view: a conversation, and under each answer which part of its prompt was cached.

import { models, post } from "./api.js";
import { byId, count, el, seconds, setStyle } from "./dom.js";
import { countsOf, cutPrompt } from "./prompt.js";
import { events } from "./sse.js";

const CUT_CHARACTERS = 20_000; // of either part; a prompt of a million characters would stop the page

export class ChatView {
  #messages = []; // as they are sent
  #controller = null;
  #failed;

  /** `failed`: told what a request was refused with. */
  constructor({ failed }) {
    this.#failed = failed;
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("chat-form").requestSubmit();
      }
    });
    byId("stop").addEventListener("click", () => this.#controller?.abort());
    byId("chat-clear").addEventListener("click", () => this.#clear());
  }

  /** Ask which models there are; raises `Refusal`. */
  async open() {
    const select = byId("model");
    const chosen = select.value;
    const served = await models();
    select.replaceChildren(...served.map((model) => el("option", { value: model, selected: model === chosen }, model)));
  }

  #clear() {
    this.#controller?.abort();
    this.#messages = [];
    byId("conversation").replaceChildren();
    byId("prompt").focus();
  }

  async #send() {
    const prompt = byId("prompt");
    const text = prompt.value.trim();
    if (!text || this.#controller !== null) return;
    const system = byId("system").value.trim();
    if (this.#messages.length === 0 && system) this.#messages.push({ role: "system", content: system });
    this.#messages.push({ role: "user", content: text });
    const asked = [...this.#messages];
    const turn = newTurn(text);
    byId("conversation").append(turn.root);
    prompt.value = "";
    this.#waits(new AbortController());
    try {
      const usage = await this.#stream(asked, turn, this.#controller.signal);
      if (usage) await showUsage(turn, byId("model").value, asked, usage);
    } catch (error) {
      if (error.name === "AbortError") turn.answer.append(" …");
      else this.#refused(error, turn, text);
    } finally {
      this.#keep(asked, turn);
      this.#waits(null);
    }
  }

  async #stream(messages, turn, signal) {
    const body = {
      model: byId("model").value,
      messages,
      max_tokens: Number(byId("max-tokens").value) || 128,
      temperature: Number(byId("temperature").value) || 0,
      stream: true,
      stream_options: { include_usage: true },
    };
    const begun = performance.now();
    let usage = null;
    for await (const chunk of events(await post("/v1/chat/completions", body, signal))) {
      if (chunk.error) throw new Error(chunk.error.message);
      const piece = chunk.choices?.[0]?.delta?.content;
      if (piece) {
        turn.time.textContent ||= `first token after ${seconds((performance.now() - begun) / 1000)}`;
        turn.answer.append(piece);
      }
      usage = chunk.usage ?? usage;
    }
    return usage;
  }

  #refused(error, turn, text) {
    this.#failed(error);
    if (turn.answer.textContent) return;
    turn.root.remove();
    byId("prompt").value = text; // so that it can be sent again
  }

  /** The next turn goes on from here; a turn without an answer never was. */
  #keep(asked, turn) {
    if (this.#messages.at(-1) !== asked.at(-1)) return; // the conversation was cleared meanwhile
    if (turn.answer.textContent) this.#messages.push({ role: "assistant", content: turn.answer.textContent });
    else this.#messages.pop();
  }

  #waits(controller) {
    this.#controller = controller;
    byId("send").disabled = controller !== null;
    byId("stop").hidden = controller === null;
  }
}

function newTurn(text) {
  const answer = el("p", { class: "said assistant" });
  const time = el("span", {});
  const usage = el("div", { class: "usage" });
  const root = el("article", { class: "turn" }, el("p", { class: "said user" }, text), answer, usage, el("p", { class: "quiet time" }, time));
  return { root, answer, usage, time };
}

async function showUsage(turn, model, messages, usage) {
  const counts = countsOf(usage);
  turn.root.dataset.prompt = counts.numPrompt;
  turn.root.dataset.cached = Number.isFinite(counts.numCached) ? counts.numCached : "";
  turn.usage.append(...(Number.isFinite(counts.numCached) ? barOf(counts) : [notTold(counts)]));
  const cut = await cutPrompt(model, messages, counts);
  if (cut === null) return;
  const parts = el("pre", {}, el("span", { class: "cached" }, shortened(cut.cached)), el("span", { class: "computed" }, shortened(cut.computed)));
  turn.usage.append(el("details", { open: true }, el("summary", {}, "The prompt as the model saw it"), parts));
}

function barOf({ numPrompt, numCached }) {
  const numComputed = numPrompt - numCached;
  const cached = el("span", { class: "part cached" });
  const computed = el("span", { class: "part computed" });
  setStyle(cached, { "flex-grow": numCached });
  setStyle(computed, { "flex-grow": numComputed });
  const said = `${count(numCached)} of ${count(numPrompt)} prompt tokens cached, ${count(numComputed)} computed`;
  return [el("div", { class: "bar", role: "img", "aria-label": said }, cached, computed), el("p", { class: "counts-line" }, said)];
}

const notTold = ({ numPrompt }) => el("p", { class: "counts-line" }, `${count(numPrompt)} prompt tokens; how many were cached is not told here`);

function shortened(text) {
  if (text.length <= CUT_CHARACTERS) return text;
  const half = CUT_CHARACTERS / 2;
  return `${text.slice(0, half)}\n… ${count(text.length - CUT_CHARACTERS)} characters …\n${text.slice(-half)}`;
}
