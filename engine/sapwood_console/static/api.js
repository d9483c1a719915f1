// Asks the server that the page came from, and no other. Keys are kept here, in memory, and nowhere else.

const keys = { api: "", admin: "", engine: "" };

/** What an answer says is wrong, in the server's words; `status` 0 where there was no answer. */
export class Refusal extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function setKeys(given) {
  for (const name of Object.keys(keys)) keys[name] = (given[name] ?? "").trim();
}

export const hasApiKey = () => keys.api !== "";
export const hasAdminKey = () => keys.admin !== "" || keys.engine !== "";

const bearer = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function ask(path, init) {
  let response;
  try {
    response = await fetch(path, { ...init, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer.", "unreachable");
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

async function refusalOf(response) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // Something between answered, in a form of its own.
  }
  return new Refusal(response.status, said.message ?? `The server answers ${response.status}.`, said.code);
}

export const about = async () => (await ask("/ui/about")).json();

/** Data for admins: `what` is load, cache, requests or replicas. `signal` ends the wait. */
export async function data(what, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  const headers = { ...bearer(keys.admin) };
  if (keys.engine) headers["X-Sapwood-Engine-Authorization"] = `Bearer ${keys.engine}`;
  const response = await ask(`/ui/data/${what}${query.size ? `?${query}` : ""}`, { headers, signal });
  return response.json();
}

export async function models() {
  return (await (await ask("/v1/models", { headers: bearer(keys.api) })).json()).data.map((model) => model.id);
}

/** Send a body to a path of the OpenAI API; the response may be a stream. */
export function post(path, body, signal = undefined) {
  const headers = { "Content-Type": "application/json", ...bearer(keys.api) };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}
