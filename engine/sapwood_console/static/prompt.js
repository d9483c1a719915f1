// How much of a prompt was cached, and which part of it: cached tokens are always the prompt's first.

import { post } from "./api.js";

/** `{numPrompt, numCached}` of an answer's usage; `numCached` NaN where the server does not tell it. */
export function countsOf(usage) {
  return { numPrompt: usage.prompt_tokens, numCached: usage.prompt_tokens_details?.cached_tokens ?? NaN };
}

/**
 * The prompt's text as the model saw it, cut where the cached tokens end: `{cached, computed}`; null where it cannot be
 * told, since the tokens counted are not those that the server makes of the messages now.
 */
export async function cutPrompt(model, messages, { numPrompt, numCached }) {
  if (!Number.isFinite(numCached)) return null;
  const { tokens } = await (await post("/tokenize", { model, messages })).json();
  if (tokens.length !== numPrompt) return null;
  const textOf = async (part) => {
    if (part.length === 0) return "";
    return (await (await post("/detokenize", { model, tokens: part })).json()).prompt;
  };
  return { cached: await textOf(tokens.slice(0, numCached)), computed: await textOf(tokens.slice(numCached)) };
}
