"""A service whose requests come by chance: Poisson arrivals, prompts of exponential length, one after the other on each
replica. What it says is measured from them, over windows and by histograms such as engines have.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from support_scaling import BUSY, COST, NOW, flat_curve, reading, replica

from sapwood_contract.metrics import SERIES
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Change, Latencies, NoReading, Observation, Reading, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy

ENGINES = (*next(each.buckets for each in SERIES if each.name == "sapwood_time_to_first_token_seconds"), math.inf)
"""Borders of their histogram of times to the first token."""
_TICK, _WINDOW, _START, _HEARD = 15.0, 75.0, 60.0, 30.0
_PROMPT = 2000.0
_HITS_NOTHING = flat_curve(0.0001)


@dataclass(frozen=True, slots=True)
class _Request:
    came: float
    begun: float
    ended: float
    tokens: float


@dataclass(slots=True)
class _Server:
    """One replica."""

    asked_at: float
    free_at: float = 0.0
    requests: deque[_Request] = field(default_factory=deque)
    """Of the last window and those that are not answered yet."""

    def take(self, came: float, tokens: float) -> None:
        begun = max(came, self.free_at)
        self.free_at = begun + COST.base + tokens * COST.prefill_token
        self.requests.append(_Request(came, begun, self.free_at, tokens))

    def told(self, now: float) -> Reading | NoReading:
        """Return what it says of the last window."""
        age = now - self.asked_at - _START
        if age < _HEARD:
            return NoReading("it was heard once")
        window = min(_WINDOW, age)
        since = now - window
        while self.requests and self.requests[0].ended <= now - _WINDOW:
            self.requests.popleft()
        counts = [0.0] * len(ENGINES)
        tokens = waiting_tokens = busy = waited = 0.0
        num_came = num_begun = 0
        for each in self.requests:
            num_came += each.came > since
            busy += max(0.0, min(now, each.ended) - max(since, each.begun))
            waited += max(0.0, min(now, each.begun) - max(since, each.came))
            if since < each.begun <= now:
                num_begun += 1
                tokens += each.tokens
            if since < each.ended <= now:
                counts[bisect_left(ENGINES, each.ended - each.came)] += 1
            if each.begun > now:
                waiting_tokens += each.tokens
        return reading(
            window_seconds=window,
            arrivals=num_came / window,
            admissions=num_begun / window,
            prompt_tokens=tokens / window,
            cached_tokens=0.0,
            running=busy / window,
            waiting=waited / window,
            waiting_tokens=waiting_tokens,
            pinned_tokens=busy / window * _PROMPT,
            ttft=Latencies(ENGINES, tuple(counts)),
            curve=_HITS_NOTHING,
        )


def changes_by_chance(policy: ScalingPolicy, *, busy: float, seconds: float, seed: int) -> list[Change]:
    """Return the changes within so long of a service that keeps ``busy`` replicas at work, from as many on as that."""
    chance = Random(seed)
    mean_gap = _PROMPT * COST.prefill_token / busy
    state, now, servers = State(), 0.0, [_Server(-1e5) for _ in range(math.ceil(busy))]
    changes: list[Change] = []
    coming = _gaps(chance, mean_gap)
    came = next(coming)
    while now < seconds:
        now += _TICK
        while came < now:
            ready = [each for each in servers if came - each.asked_at >= _START]
            min(ready, key=lambda each: each.free_at).take(came, _PROMPT * chance.expovariate(1.0))
            came += next(coming)
        decision = decide(policy, _observed(servers, now), state, NOW + now)
        changes += islice(decision.state.changes, decision.state.changes[:1] != state.changes[:1])
        state = decision.state
        servers = servers[: decision.desired]
        servers += [_Server(now) for _ in range(decision.desired - len(servers))]
    return [replace(each, at=each.at - NOW) for each in changes]


def _gaps(chance: Random, mean: float) -> Iterator[float]:
    while True:
        yield chance.expovariate(1.0 / mean)


def _observed(servers: list[_Server], now: float) -> Observation:
    replicas = tuple(
        replica(number, each.told(now), age=now - each.asked_at - _START)
        if now - each.asked_at >= _START
        else replica(number, NoReading("it starts"), stage="starting", age=now - each.asked_at)
        for number, each in enumerate(servers)
    )
    return Observation(replicas=replicas, current=len(servers), demand=BUSY)
