// How a request's phases lie on a line. Pure.

export const PHASES = ["tokenize", "queue", "kv_load", "prefill", "decode", "detokenize"];

/**
 * Return the bars of one request as `{phase, left, width, seconds}`, shares of `wholeSeconds` from 0 to 1, in the order
 * in which they came; what of its time no phase has is a last bar `other`.
 */
export function bars(request, wholeSeconds) {
  const drawn = [];
  let at = 0;
  const add = (phase, took) => {
    drawn.push({ phase, left: share(at, wholeSeconds), width: share(took, wholeSeconds), seconds: took });
    at += took;
  };
  for (const [phase, took] of Object.entries(request.phases)) {
    if (Number.isFinite(took) && took > 0) add(PHASES.includes(phase) ? phase : "other", took);
  }
  const rest = request.duration_seconds - at;
  if (rest > 1e-3) add("other", rest);
  return drawn;
}

/** The time that fills the width: that of the longest request, all its phases included. */
export function longest(requests) {
  return requests.reduce((found, request) => {
    const phases = Object.values(request.phases).reduce((sum, took) => sum + (Number.isFinite(took) ? took : 0), 0);
    return Math.max(found, request.duration_seconds, phases);
  }, 0);
}

const share = (part, whole) => (whole > 0 ? Math.min(1, part / whole) : 0);
