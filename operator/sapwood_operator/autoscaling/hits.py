"""What share of the prompt tokens would be found in the caches with another number of replicas.

Under prefix affinity n replicas of capacity C behave like one cache of n * C. A replica's own curve is of its own share
of the stream: where N replicas take an Nth part of it each, a cache of x tokens does with the part what one of N * x
does with the whole. So with n replicas the service hits the mean, weighted by prompt tokens, of the N curves at
C * n / N.

Under round robin every replica meets every prefix. One that comes k times is computed once on each replica that it
meets, so of its uses at most 1 - n * (1 - (1 - 1 / n) ** k) / k are hits. How far the caches' size lets them be had
does not change with n, for what passes a replica between two meetings stays the same; k is what explains the hits of
an endless cache now.

What is hit now can be hit: a curve looks back at all requests of some time, and where reuse grows it says less than is
measured. Then as many replicas as were measured hit what is measured, fewer lose hits and more lose misses in the
proportions of the curve. Where a curve says more than is measured it is believed: a cold newcomer lowers what is hit.

Limits. Parts are taken to be equal, and the curve to be of the replicas that there are now: for a while after a change
it still is of those before (`decide` passes that number). What k is, is one number for all prefixes. Where there is no
curve the hit ratio is known to be concave in the memory: with n of N replicas at least n / N of what is hit now, with
more at least as much as now.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_operator.autoscaling.load import Heard
from sapwood_operator.autoscaling.values import Demand, Observation

_BISECTIONS = 24
_MOST_USES = 1e6
INFINITE = math.inf
_CAPACITY: Callable[[CurvePoint], float] = attrgetter("capacity_tokens")
"""Of all points but the last."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One replica's curve and how much of the stream it speaks for."""

    curve: Curve
    weight: float
    capacity_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Answers for one observation; remembers what it was asked."""

    curves: tuple[Weighed, ...]
    num_measured: int
    """Replicas that shared the stream while the curves were made."""
    affinity: float
    measured: float
    """Hit ratio of late; 0 where there is none."""
    num_serving: int = 0
    """Replicas that this was measured with; 0: as many as ``num_measured``."""
    memory_factor: float = 1.0
    """Times the KV memory that a replica has now."""
    _known: dict[int, float] = field(default_factory=dict)
    _now: list[float] = field(default_factory=list)
    """What the curves say of those that are measured, once somebody asked."""
    _random: list[tuple[float, float, float]] = field(default_factory=list)
    """What is hit now, how often a prefix comes, and how much of that endless caches hit, once somebody asked."""

    @property
    def has_curve(self) -> bool:
        """Whether it was measured what more or less memory does."""
        return bool(self.curves)

    def at(self, replicas: int) -> float:
        """Return the hit ratio with so many, 0 to 1."""
        if replicas <= 0:
            return 0.0
        if replicas not in self._known:
            self._known[replicas] = min(1.0, max(0.0, self._hits(replicas)))
        return self._known[replicas]

    def _hits(self, replicas: int) -> float:
        if not self.curves:
            share = replicas * self.memory_factor / self.num_measured
            return self.measured * min(1.0, 1.0 - self.affinity + self.affinity * share)
        foretold = self._foretold(replicas, self.memory_factor)
        if not self._now:
            self._now.append(self._foretold(self.num_serving or self.num_measured, 1.0))
        now = self._now[0]
        if not 0.0 < now < self.measured:
            return foretold
        if foretold < now:
            return self.measured * foretold / now
        return 1.0 - (1.0 - foretold) * (1.0 - self.measured) / (1.0 - now)

    def _foretold(self, replicas: int, memory_factor: float) -> float:
        """Return what the curves say."""
        together = self._curve(memory_factor * replicas / self.num_measured)
        if self.affinity >= 1.0 or max(replicas, self.num_measured) == 1:
            return together
        return self.affinity * together + (1.0 - self.affinity) * self._at_random(replicas)

    def _curve(self, share: float) -> float:
        total = weight = 0.0
        for each in self.curves:
            hits = hits_at(each.curve.points, each.capacity_tokens * share)
            if 0.0 <= hits <= 1.0:
                total += each.weight * hits
                weight += each.weight
        return total / weight if weight > 0 else self.measured

    def _at_random(self, replicas: int) -> float:
        if not self._random:
            uses = uses_of(self._curve(INFINITE), self.num_measured)
            self._random.append((self._curve(self.memory_factor), uses, reused(uses, self.num_measured)))
        had, uses, now = self._random[0]
        return had * reused(uses, replicas) / now if now > 0 else had


def hits_of(
    heard: Sequence[Heard],
    *,
    num_measured: int,
    measured: float | None,
    affinity: float,
    settle_seconds: float,
    num_serving: int = 0,
    memory_factor: float = 1.0,
) -> Hits:
    """Take the curves of the replicas that are ready; of younger ones than ``settle_seconds`` only where all are.

    A young replica has met everything for the first time, and its curve calls all of that misses.
    """
    settled: list[Weighed] = []
    young: list[Weighed] = []
    for each in heard:
        reading = each.reading
        if reading is not None and each.replica.stage == "ready":
            curve = reading.curve
            if curve is not None and curve.points and reading.prompt_tokens > 0:
                weighed = Weighed(curve, reading.prompt_tokens, reading.capacity_tokens)
                (settled if each.replica.age_seconds >= settle_seconds else young).append(weighed)
    return Hits(
        curves=tuple(settled or young),
        num_measured=max(1, num_measured),
        affinity=affinity,
        measured=measured or 0.0,
        num_serving=num_serving,
        memory_factor=memory_factor,
    )


def affinity_of(observation: Observation) -> float:
    """Return the share of requests that go where their prefix is: measured, else what the route is made for."""
    demand = observation.demand
    if isinstance(demand, Demand) and demand.routed_by_prefix is not None and 0.0 <= demand.routed_by_prefix <= 1.0:
        return demand.routed_by_prefix
    return 1.0 if observation.by_prefix else 0.0


def hits_at(points: tuple[CurvePoint, ...], capacity_tokens: float) -> float:
    """Return `sapwood_contract.curve.hit_ratio_at`, by bisection; NaN where the points make no sense."""
    last = len(points) - 1
    after = last if capacity_tokens == INFINITE else bisect_left(points, capacity_tokens, hi=last, key=_CAPACITY)
    if after == last:
        return points[last - 1 if last and capacity_tokens < INFINITE else last].hit_ratio
    point = points[after]
    begin, begin_ratio = (
        (points[after - 1].capacity_tokens or 0.0, points[after - 1].hit_ratio) if after else (0.0, 0.0)
    )
    end, ratio = point.capacity_tokens or 0.0, point.hit_ratio
    if not begin < end:
        return ratio
    return begin_ratio + (capacity_tokens - begin) / (end - begin) * (ratio - begin_ratio)


def reused(uses: float, replicas: int) -> float:
    """Return the share of a prefix's ``uses`` that endless caches behind round robin hit."""
    if uses <= 1.0:
        return 0.0
    return 1.0 - replicas * (1.0 - math.pow(1.0 - 1.0 / replicas, uses)) / uses


def uses_of(endless: float, replicas: int) -> float:
    """Return how often a prefix comes, that ``replicas`` endless caches hit so much of it."""
    if not endless > 0.0:
        return 1.0
    low, high = 1.0, _MOST_USES
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if reused(middle, replicas) < endless else (low, middle)
    return high
