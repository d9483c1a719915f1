// What the miss-ratio curve says of other sizes of the cache. Pure.

/** The finite points of a curve from (0, 0) on, by capacity; the one at infinity as `atInfinity`, NaN without one. */
export function pointsOf(curve) {
  const finite = [{ capacity: 0, ratio: 0 }];
  let atInfinity = NaN;
  for (const { capacity_tokens: capacity, hit_ratio: ratio } of curve.points ?? []) {
    if (!Number.isFinite(ratio)) continue;
    if (capacity === null) atInfinity = ratio;
    else finite.push({ capacity, ratio });
  }
  finite.sort((a, b) => a.capacity - b.capacity);
  return { finite, atInfinity };
}

/**
 * The hit ratio at a capacity in tokens: on the line between the points beside it. Beyond the last point that of the
 * last, which it cannot fall below. NaN where the curve has no point.
 */
export function ratioAt(curve, capacity) {
  const { finite, atInfinity } = pointsOf(curve);
  if (finite.length < 2) return atInfinity;
  const after = finite.findIndex((point) => point.capacity >= capacity);
  if (after < 0) return finite.at(-1).ratio;
  if (after === 0) return finite[0].ratio;
  const [low, high] = [finite[after - 1], finite[after]];
  return low.ratio + ((high.ratio - low.ratio) * (capacity - low.capacity)) / (high.capacity - low.capacity);
}

/** The curves that say something: with points, which there are none of while too little is known. */
export const usable = (curves) => curves.filter((curve) => curve?.enabled && curve.points.length > 0);

/** Up to how many times the present memory all of `curves` were measured; more is at least as good. */
export const knownUpTo = (curves) =>
  Math.min(...curves.map((curve) => pointsOf(curve).finite.at(-1).capacity / curve.capacity_tokens));

/**
 * The hit ratio of all replicas together at `factor` times their present memory, each weighed by its samples; NaN
 * where none has any. `curves` as of `usable`.
 */
export function ratioTogether(curves, factor) {
  let [sum, weight] = [0, 0];
  for (const curve of curves) {
    const ratio = ratioAt(curve, factor * curve.capacity_tokens);
    if (!Number.isFinite(ratio)) continue;
    sum += curve.num_samples * ratio;
    weight += curve.num_samples;
  }
  return weight > 0 ? sum / weight : NaN;
}

/** How many times the present memory `replicas` of `memory` times the present size are, where there are `present`. */
export const factorOf = ({ replicas, memory, present }) => (replicas * memory) / present;

/** The share of cached prompt tokens over the ended requests of an answer of /ui/data/requests; NaN without any. */
export function measured(lists) {
  let [prompt, cached, num] = [0, 0, 0];
  for (const { requests } of lists) {
    for (const request of requests) {
      if (request.state !== "ended" || request.num_cached_tokens === null) continue;
      prompt += request.num_prompt_tokens;
      cached += request.num_cached_tokens;
      num += 1;
    }
  }
  return { ratio: prompt > 0 ? cached / prompt : NaN, numRequests: num };
}
