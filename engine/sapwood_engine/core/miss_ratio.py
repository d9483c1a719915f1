"""The miss-ratio curve: what the hit ratio of prompt tokens would be with more or less KV memory.

Counts at what distance on the stack (`core.reuse_stack`) each admitted prompt was found; an LRU cache of C units hits
what lies no deeper than C. A request counts once, when it is first admitted; what it leaves behind is used once more as
it ends, so that its answer is found by the next turn, but no hit or miss is counted for that. Old requests fade: all
counts are halved every so many requests. The part of the stack just beyond the capacity is the ghost list: what was
evicted of late. Prompt tokens found there are *regret*: computed, though a cache of twice the size would have had them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.reuse_stack import Reused, ReuseStack, Trail

STEPS_PER_DOUBLING = 8
DOUBLINGS = 4
"""The curve goes from 1/16 to 16 times the capacity."""
LEAST_UNIT_TOKENS = 16
"""Pages smaller than this are looked at several at a time."""
LEAST_SAMPLES = 128
"""Marks looked at before anything is said."""
MOST_MARKS = 2**17
"""Bounds the memory: at most some 30 MB."""
HALVE_AFTER_REQUESTS = 4096
_WORKING_SET_SHARE = 0.9


class MissRatio:
    """Counts for one cache of ``num_pages`` pages of ``page_size`` tokens, ``token_bytes`` a token in its keys."""

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        token_bytes: int,
        sample_rate: float,
        halve_after_requests: int = HALVE_AFTER_REQUESTS,
        most_marks: int = MOST_MARKS,
        partial_pages: bool = True,
    ) -> None:
        """``sample_rate``: less is sampled where the curve would else need more than ``most_marks`` marks."""
        self._page_size = page_size
        self._partial_pages = partial_pages
        self._token_bytes = token_bytes
        self._unit_tokens = page_size * -(-LEAST_UNIT_TOKENS // page_size)
        self.capacity_tokens = num_pages * page_size
        units = self.capacity_tokens / self._unit_tokens
        self._stack = ReuseStack(
            unit_bytes=self._unit_tokens * token_bytes,
            sample_rate=min(sample_rate, most_marks / (units * 2**DOUBLINGS)),
            most_marks=most_marks,
            keeps_tails=partial_pages or page_size < self._unit_tokens,
        )
        self._capacity_units = units
        exponents = range(-DOUBLINGS * STEPS_PER_DOUBLING, DOUBLINGS * STEPS_PER_DOUBLING + 1)
        self._edges = [units * 2 ** (exponent / STEPS_PER_DOUBLING) for exponent in exponents]
        self._hit_tokens = [0.0] * (len(self._edges) + 1)
        """By the first edge that is not less than the distance; the last ones lie beyond all edges."""
        self._prompt_tokens = 0.0
        self._recent_samples = 0.0
        self._halve_after_requests = halve_after_requests
        self.num_requests = 0
        """Counted since the start; whoever tells the curve need not tell it again while this stays."""
        self._num_samples = 0
        self._regret_tokens = 0.0

    # --- requests

    def admitted(
        self,
        namespace: Namespace,
        key: bytes,
        *,
        num_tokens: int,
        num_cached: int,
        most_cached: int,
        is_counted: bool = True,
    ) -> Trail:
        """Use a prompt of ``num_tokens`` tokens, whose key is ``key``, at its first admission; count it unless told not
        to.

        The live cache had ``num_cached`` of them, and none may have more than ``most_cached``. Give what comes back to
        `ended`.
        """
        trail = Trail(namespace)
        num_found = num_cached // self._unit_tokens
        self._stack.follow(trail, key, exact=(0, num_found - 1))
        found = self._stack.use(trail, key, num_found=num_found, is_running=True)
        if is_counted:
            self._count(found, num_tokens, num_cached, most_cached)
            self._num_samples += len(trail.marks)
            self._recent_samples += len(trail.marks)
        return trail

    def ended(self, trail: Trail, key: bytes) -> None:
        """Use the sequence of ``trail`` once more as it has become: ``key`` is what is kept of it, if anything."""
        admission = trail.use
        is_whole = self._stack.follow(trail, key)
        self._stack.use(trail, key)
        if not is_whole and admission is not None:
            self._stack.retract(admission)

    def forget(self, namespace: Namespace | None) -> None:
        """One namespace, or all, was flushed: what was used before will not be found."""
        self._stack.forget(namespace)

    def _num_units(self, num_tokens: int) -> int:
        return -(-num_tokens // self._unit_tokens)

    def _count(self, found: Sequence[Reused], num_tokens: int, num_cached: int, most_cached: int) -> None:
        self._fade()
        self._prompt_tokens += num_tokens
        if not self._partial_pages:
            most_cached -= most_cached % self._page_size
        if not most_cached:
            return
        for reused in found:
            if reused.is_estimate:
                self._count_estimate(reused)
            else:
                self._count_run(reused, num_cached, most_cached)
        self._count_rest(found, num_cached)

    def _fade(self) -> None:
        self.num_requests += 1
        if self.num_requests % self._halve_after_requests == 0:
            self._hit_tokens = [tokens / 2 for tokens in self._hit_tokens]
            self._prompt_tokens /= 2
            self._recent_samples /= 2

    def _count_estimate(self, reused: Reused) -> None:
        num_tokens = reused.num_units * self._unit_tokens
        self._hit_tokens[bisect_left(self._edges, reused.distance)] += num_tokens
        if not reused.is_running and reused.distance <= 2 * self._capacity_units:
            self._regret_tokens += num_tokens

    def _count_run(self, reused: Reused, num_cached: int, most_cached: int) -> None:
        """Count units one by one further away, but as many at once as lie before the next edge."""
        unit, edges, distance = self._unit_tokens, self._edges, reused.distance
        num_units = int(reused.num_units)
        at = bisect_left(edges, distance)
        done = 0
        while done < num_units:
            end = num_units if at == len(edges) else min(num_units, int(edges[at] - distance) + 1)
            self._hit_tokens[at] += (end - done) * unit
            done, at = max(done, end), at + 1
        # The last token of a prompt is never taken from the cache, nor is what no cache has of the last unit.
        end = min(most_cached, reused.end_bytes // self._token_bytes)
        beyond = max(0, (reused.first + num_units) * unit - end)
        self._hit_tokens[at - 1] -= beyond
        num_near = min(num_units, int(2 * self._capacity_units - distance) + 1)
        num_had = max(0, self._num_units(num_cached) - reused.first)
        if not reused.is_running and num_near > num_had:
            num_regretted = (num_near - num_had) * unit - (beyond if num_near == num_units else 0)
            self._regret_tokens += max(0, num_regretted)

    def _count_rest(self, found: Sequence[Reused], num_cached: int) -> None:
        """Count what the live cache had of a unit that it had in part only: it was near, wherever the whole unit is.

        Any page that begins alike has such a part, so it lies behind the last whole unit found, or where the live cache
        ends at the most.
        """
        index, num_tokens = divmod(num_cached, self._unit_tokens)
        if not num_tokens:
            return
        near = min(self._capacity_units, _distance_of(index - 1, found) + 1)
        self._hit_tokens[bisect_left(self._edges, near)] += num_tokens
        far = max(near, _distance_of(index, found))
        if far < math.inf:
            num_far = max(each.end_bytes for each in found) // self._token_bytes - index * self._unit_tokens
            self._hit_tokens[bisect_left(self._edges, far)] -= min(num_tokens, num_far)

    # --- looking at it

    def check_invariants(self) -> list[str]:
        """Return each fault in a sentence; an empty list means healthy. O(marks)."""
        return self._stack.check_invariants()

    def curve(self) -> Curve:
        """Return the curve as it is now. O(points)."""
        unit = self._unit_tokens
        points: tuple[CurvePoint, ...] = ()
        working_set = math.nan
        if self._recent_samples >= LEAST_SAMPLES:
            capacities = [*(edge * unit for edge in self._edges), None]
            ratios = [min(1.0, hits / self._prompt_tokens) for hits in accumulate(self._hit_tokens)]
            points = tuple(map(CurvePoint, capacities, ratios))
            working_set = _working_set(points)
        return Curve(
            enabled=True,
            sample_rate=self._stack.sample_rate,
            num_samples=self._num_samples,
            capacity_tokens=self.capacity_tokens,
            points=points,
            working_set_tokens=working_set,
            regret_tokens=round(self._regret_tokens),
        )


def _distance_of(index: int, found: Sequence[Reused]) -> float:
    """Return how far the unit at ``index`` is; infinite where nothing tells.

    Where marks alone tell, about as far as the first of them.
    """
    for reused in found:
        if reused.is_estimate:
            return reused.distance
        if reused.first <= index < reused.first + reused.num_units:
            return reused.distance + index - reused.first
    return math.inf


def _working_set(points: Sequence[CurvePoint]) -> float:
    wanted = _WORKING_SET_SHARE * points[-1].hit_ratio
    before_capacity, before_ratio = 0.0, 0.0
    for point in points:
        if point.capacity_tokens is None:
            break
        if point.hit_ratio >= wanted:
            rise = point.hit_ratio - before_ratio
            share = (wanted - before_ratio) / rise if rise else 0.0
            return before_capacity + share * (point.capacity_tokens - before_capacity)
        before_capacity, before_ratio = point.capacity_tokens, point.hit_ratio
    return math.inf
