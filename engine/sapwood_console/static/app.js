// The page: which view is open, which replica it is of, and with which keys it asks.

import * as api from "./api.js";
import { CacheView } from "./cache.js";
import { ChatView } from "./chat.js";
import { byId, el } from "./dom.js";
import { CurveView } from "./plot.js";
import { Poller } from "./poller.js";
import { ReplicasView } from "./replicas.js";
import { RequestsView } from "./requests.js";

const TITLES = { chat: "Chat", cache: "Cache", curve: "Curve", requests: "Requests", replicas: "Replicas" };
const CLOSED = {
  engine: "This server shows these data to nobody: start it with --admin-key-file.",
  gateway: "This gateway shows these data to nobody, since its services ask for API keys: start it with --admin-key-file.",
};

class App {
  #about;
  #views = {};
  #pollers = {};
  #open = "";
  #replicas = [];

  constructor(about) {
    this.#about = about;
    const replica = () => byId("replica").value;
    const settings = {
      replica,
      replicas: () => (about.program === "gateway" ? this.#replicas.map((each) => each.id) : [""]),
      showsText: about.shows_text,
      changed: () => this.#pollers[this.#open]?.again(),
      choose: (id) => this.#choose(id),
      found: (replicas) => this.#found(replicas),
    };
    this.chat = new ChatView({ failed: (error) => this.#failed(error) });
    this.#views = {
      cache: new CacheView(settings),
      curve: new CurveView(settings),
      requests: new RequestsView(settings),
    };
    if (about.program === "gateway") this.#views.replicas = new ReplicasView(settings);
    for (const [name, view] of Object.entries(this.#views)) this.#pollers[name] = this.#pollerOf(view);
  }

  start() {
    const { program } = this.#about;
    byId("program").textContent = program;
    byId("replica-choice").hidden = byId("engine-key-row").hidden = program !== "gateway";
    byId("tabs").append(...["chat", ...Object.keys(this.#views)].map((name) => this.#tab(name)));
    byId("tabs").addEventListener("keydown", (event) => this.#moveTab(event));
    byId("keys").addEventListener("submit", (event) => this.#useKeys(event));
    byId("keys-open").addEventListener("click", () => this.#toggleKeys(byId("keys").hidden));
    byId("replica").addEventListener("change", () => this.#choose(byId("replica").value));
    addEventListener("hashchange", () => this.#show(location.hash.slice(1)));
    this.#show(location.hash.slice(1));
  }

  #pollerOf(view) {
    const ask = async (signal) => {
      if (this.#about.program === "gateway" && (this.#replicas.length === 0 || view instanceof CurveView)) {
        this.#found((await api.data("replicas", {}, signal)).replicas);
        if (this.#replicas.length === 0 && !(view instanceof ReplicasView)) throw new Error("The gateway has found no replica yet.");
      }
      await view.poll(signal);
      this.#tell("");
    };
    return new Poller(ask, { pauseSeconds: () => view.pauseSeconds, failed: (error) => this.#failed(error) });
  }

  #tab(name) {
    const attributes = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, onclick: () => (location.hash = name) };
    return el("button", attributes, TITLES[name]);
  }

  #moveTab(event) {
    const tabs = [...byId("tabs").children];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const to = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
    to.focus();
    to.click();
  }

  #show(wanted) {
    const name = wanted in this.#views ? wanted : "chat";
    if (name === this.#open) return;
    this.#pollers[this.#open]?.stop();
    this.#open = name;
    for (const tab of byId("tabs").children) {
      const isOpen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(isOpen));
      tab.tabIndex = isOpen ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !isOpen;
    }
    this.#tell("");
    this.#enter();
  }

  /** Begin to show the open view, or say what it lacks. */
  #enter() {
    const view = this.#views[this.#open];
    view?.reset();
    if (view === undefined) this.#enterChat();
    else if (this.#about.data === "closed") this.#tell(CLOSED[this.#about.program]);
    else if (this.#about.data === "key" && !api.hasAdminKey()) this.#askForKeys("This view needs an admin key.");
    else this.#pollers[this.#open].start();
  }

  #enterChat() {
    const { asks_api_key: asksKey, program } = this.#about;
    // A gateway may have services without keys beside others.
    if (asksKey && program === "engine" && !api.hasApiKey()) this.#askForKeys("Chatting needs an API key.");
    else this.chat.open().catch((error) => this.#failed(error));
  }

  #failed(error) {
    if (error.code === "unknown_replica") this.#replicas = []; // it has gone: ask anew who there is
    if (!(error instanceof api.Refusal) || (error.status !== 401 && error.status !== 403)) {
      this.#tell(error.message);
      return;
    }
    // The same key is refused the next time too: no use to ask again before there is another.
    this.#pollers[this.#open]?.stop();
    const which = this.#open === "chat" ? "API key" : "admin key";
    this.#askForKeys(error.status === 401 ? `The ${which} is missing or not known here. ${error.message}` : error.message);
  }

  #tell(message) {
    const notice = byId("notice");
    notice.hidden = message === "";
    if (notice.textContent !== message) notice.textContent = message;
  }

  #askForKeys(message) {
    this.#tell(message);
    this.#toggleKeys(true);
  }

  #toggleKeys(isOpen) {
    byId("keys").hidden = !isOpen;
    byId("keys-open").setAttribute("aria-expanded", String(isOpen));
  }

  #useKeys(event) {
    event.preventDefault();
    api.setKeys({ api: byId("api-key").value, admin: byId("admin-key").value, engine: byId("engine-key").value });
    this.#toggleKeys(false);
    this.#tell("");
    this.#pollers[this.#open]?.stop();
    this.#enter();
  }

  #found(replicas) {
    const select = byId("replica");
    const chosen = select.value;
    if (replicas.map((each) => each.id).join("\n") === this.#replicas.map((each) => each.id).join("\n")) return;
    this.#replicas = replicas;
    select.replaceChildren(...replicas.map(({ id, name }) => el("option", { value: id, selected: id === chosen }, name)));
  }

  #choose(id) {
    byId("replica").value = id;
    this.#views[this.#open]?.reset();
    this.#pollers[this.#open]?.again();
  }
}

try {
  new App(await api.about()).start();
} catch (error) {
  byId("notice").textContent = error.message;
  byId("notice").hidden = false;
}
