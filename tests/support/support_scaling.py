"""Values that decisions are made from, and a world in which the load of a replica follows from their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_operator.autoscaling.capacity import wait_p90
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.hits import reused
from sapwood_operator.autoscaling.values import (
    Change,
    Decision,
    Demand,
    Latencies,
    NoDemand,
    NoReading,
    Observation,
    Reading,
    Replica,
    Stage,
    State,
    StepCost,
)
from sapwood_operator.domain.scaling_policy import ScalingPolicy

NOW = 1_000_000.0
BORDERS = (*(0.001 * 1.03**step for step in range(500)), math.inf)
CAPACITY = 100_000.0
COST = StepCost(prefill_token=1e-4, prefill_key=0.0, decode=1e-3, decode_key=0.0, base=0.01)
"""10,000 prefill tokens a second, beside 1,000 decodes."""
BUSY = Demand(num_waiting=0, num_running=8, idle_seconds=0.0)
POLICY = ScalingPolicy(min_replicas=1, max_replicas=8)
ZERO = replace(POLICY, min_replicas=0, scale_to_zero=True)
PROMISED = replace(POLICY, ttft_p90_seconds=1.0)
NOBODY = Demand(num_waiting=0, num_running=0, idle_seconds=1000.0)
LOST = NoReading("it did not answer")
LONG_AGO = NOW - 5000.0
ENOUGH = State(fewer_since=LONG_AGO)
"""One fewer would have done for long."""


def latencies(seconds: float, count: float = 60.0, borders: tuple[float, ...] = BORDERS) -> Latencies:
    """Requests that all took about as long."""
    counts = [0.0] * len(borders)
    counts[next(index for index, border in enumerate(borders) if seconds <= border)] = count
    return Latencies(borders, tuple(counts))


def curve_of(ratios: Sequence[tuple[float, float]], endless: float, capacity: float = CAPACITY) -> Curve:
    """A curve through points."""
    points = (*(CurvePoint(tokens, ratio) for tokens, ratio in ratios), CurvePoint(None, endless))
    return Curve(True, 0.05, 10_000, int(capacity), points, math.nan, 0)


def straight_curve(at_capacity: float, endless: float, capacity: float = CAPACITY) -> Curve:
    """A curve that rises as the memory does, until it has all."""
    enough = capacity * endless / at_capacity
    return curve_of([(enough, endless), (16 * enough, endless)], endless, capacity)


def flat_curve(ratio: float = 0.5) -> Curve:
    """A curve of a cache that hits as much however large it is."""
    return curve_of([(1.0, ratio), (16 * CAPACITY, ratio)], ratio)


FLAT = flat_curve()
"""More memory hits no more."""


def waits(num_waiting: int) -> Demand:
    """Requests that gateways hold."""
    return Demand(num_waiting=num_waiting, num_running=0, idle_seconds=0.0)


def changed(ago: float, before: int, after: int, reason: str = "PrefillSpeed") -> State:
    """A state in which that was decided last."""
    return State(desired=after, fewer_since=LONG_AGO, changes=(Change(NOW - ago, before, after, reason, ""),))


def reading(share: float = 0.5, **changes: object) -> Reading:
    """A replica whose prefill is used for so much: 2 requests a second, half of the prompt found in its cache."""
    computed = share * 10_000.0
    given = Reading(
        window_seconds=60.0,
        arrivals=2.0,
        prompt_tokens=2 * computed,
        cached_tokens=computed,
        generation_tokens=0.0,
        running=1.0,
        waiting=0.0,
        waiting_tokens=0.0,
        capacity_tokens=CAPACITY,
        pinned_tokens=1000.0,
        cost=COST,
    )
    return replace(given, **changes)  # type: ignore[arg-type]  # names and types are the caller's


IDLE = reading(0.0, arrivals=0.0, running=0.0, pinned_tokens=0.0)
SURE = reading(0.3, curve=FLAT)
SLOW = reading(0.45, ttft=latencies(0.8), curve=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A situation, and what comes of it."""

    sentence: str
    policy: ScalingPolicy = POLICY
    seen: Observation
    state: State = field(default_factory=State)
    desired: int
    reason: str


def replica(
    number: int = 0, told: Reading | NoReading | None = None, *, stage: Stage = "ready", age: float = 5000.0
) -> Replica:
    """One that has been in its stage for long."""
    said = reading() if told is None else told
    return Replica(uid=f"uid-{number}", name=f"pod-{number}", stage=stage, age_seconds=age, reading=said)


def service(
    *told: Reading | NoReading, others: Sequence[Replica] = (), current: int | None = None, **changes: object
) -> Observation:
    """A service whose ready replicas say ``told``."""
    replicas = (*(replica(number, each) for number, each in enumerate(told)), *others)
    num_there = sum(each.stage != "leaving" for each in replicas)
    given = Observation(replicas=replicas, current=num_there if current is None else current, demand=BUSY)
    return replace(given, **changes)  # type: ignore[arg-type]  # names and types are the caller's


def verdict(decision: Decision, kind: str) -> tuple[bool, str]:
    """Return a condition's status and reason."""
    return next((each.status, each.reason) for each in decision.verdicts if each.type == kind)


@dataclass(slots=True, kw_only=True)
class World:
    """A service under constant load: replicas start in ``start_seconds``, and what they say follows from their number.

    Time passes in ``tick_seconds``. Latencies are those of the model times ``slowness``, to the width of a bucket.
    """

    policy: ScalingPolicy
    replicas: int
    arrivals: float = 2.0
    prompt_tokens: float = 2000.0
    generation_tokens: float = 100.0
    cost: StepCost = COST
    capacity_tokens: float = CAPACITY
    most_hits: float = 0.6
    half_tokens: float = 100_000.0
    """Memory at which half of these are had."""
    affinity: float = 1.0
    uses: float = 8.0
    """Of a prefix."""
    slowness: float = 1.0
    start_seconds: float = 60.0
    tick_seconds: float = 30.0
    chance: Random | None = None
    """Draws how many requests come in a window, to a Poisson distribution; None: always as many."""
    borders: tuple[float, ...] = BORDERS
    """Of the histogram of times to the first token."""
    now: float = NOW
    state: State = field(default_factory=State)
    waiting_tokens: float = 0.0
    share: float = 1.0
    """Of the mean, that came within the last window."""
    ages: list[float] = field(default_factory=list)
    """Seconds since each replica was asked for."""

    def __post_init__(self) -> None:
        self.ages = [100_000.0] * self.replicas

    def run(self, seconds: float) -> list[int]:
        """Decide every tick for so long; return what was wanted each time."""
        wanted = []
        for _ in range(int(seconds / self.tick_seconds)):
            decision = decide(self.policy, self.observed(), self.state, self.now)
            self.state = decision.state
            wanted.append(decision.desired)
            self.ages = self.ages[: decision.desired]
            self.ages += [0.0] * (decision.desired - len(self.ages))
            self.now += self.tick_seconds
            self.ages = [age + self.tick_seconds for age in self.ages]
            self._wait()
            self._draw()
        return wanted

    def _draw(self) -> None:
        mean = 60.0 * self.arrivals
        if self.chance is not None and mean > 0:
            # Of so many the normal distribution is near enough.
            self.share = max(0.0, self.chance.gauss(1.0, 1.0 / math.sqrt(mean)))

    def observed(self) -> Observation:
        """Return what is seen now."""
        told = self._reading()
        replicas = tuple(
            replica(number, told, age=age - self.start_seconds)
            if age >= self.start_seconds
            else replica(number, NoReading("it starts"), stage="starting", age=age)
            for number, age in enumerate(self.ages)
        )
        demand = replace(BUSY, routed_by_prefix=self.affinity)
        return Observation(replicas=replicas, current=len(self.ages), demand=demand)

    def _num_ready(self) -> int:
        return max(1, sum(age >= self.start_seconds for age in self.ages))

    def _hits(self, tokens: float, ready: int) -> float:
        """Return what one replica's cache of ``tokens`` hits."""
        together = self.most_hits * (1 - math.pow(0.5, ready * tokens / self.half_tokens))
        apart = self.most_hits * (1 - math.pow(0.5, tokens / self.half_tokens)) * reused(self.uses, ready)
        return self.affinity * together + (1 - self.affinity) * apart

    def _busy(self, ready: int) -> tuple[float, float, float]:
        """Return for how much of its time a replica decodes and prefills, and a prompt's time alone."""
        computed = self.prompt_tokens * (1 - self._hits(self.capacity_tokens, ready)) * self.cost.prefill_token
        each = self.share * self.arrivals / ready
        return each * self.generation_tokens * self.cost.decode, each * computed, computed

    def _wait(self) -> None:
        decode, prefill, _ = self._busy(self._num_ready())
        speed = self._num_ready() / self.cost.prefill_token
        self.waiting_tokens = max(0.0, self.waiting_tokens + (prefill + decode - 1) * speed * self.tick_seconds)

    def _reading(self) -> Reading:
        ready = self._num_ready()
        decode, prefill, own = self._busy(ready)
        use = min(0.999, prefill / max(0.001, 1 - decode))
        wait = (
            wait_p90(own, use, ready ** (1 - self.affinity / 2)) + self.waiting_tokens * self.cost.prefill_token / ready
        )
        ttft = self.slowness * (self.cost.base + own / max(0.001, 1 - decode) + wait)
        itl = self.slowness * self.cost.base / max(0.001, 1 - min(0.999, decode + prefill))
        done = min(1.0, (1 - decode) / prefill) if prefill > 0 else 1.0
        arrivals = self.share * self.arrivals / ready
        prompts = arrivals * self.prompt_tokens * max(0.0, done)
        running = arrivals * (own + itl * self.generation_tokens)
        context = self.prompt_tokens + self.generation_tokens
        points = [self.capacity_tokens * 2 ** (step / 4) for step in range(-16, 17)]
        return Reading(
            window_seconds=60.0,
            arrivals=arrivals,
            prompt_tokens=prompts,
            cached_tokens=prompts * self._hits(self.capacity_tokens, ready),
            generation_tokens=arrivals * self.generation_tokens,
            running=running,
            waiting=self.waiting_tokens / self.prompt_tokens / ready,
            waiting_tokens=self.waiting_tokens / ready,
            capacity_tokens=self.capacity_tokens,
            pinned_tokens=min(self.capacity_tokens, running * context),
            ttft=latencies(ttft, borders=self.borders),
            itl=latencies(itl),
            admissions=arrivals * max(0.0, done),
            cost=self.cost,
            curve=curve_of([(tokens, self._hits(tokens, ready)) for tokens in points], self._hits(math.inf, ready)),
        )


def no_demand() -> NoDemand:
    """No gateway answers."""
    return NoDemand("nobody answers")
