"""Small worlds for replays of autoscaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from sapwood_operator.autoscaling.values import Demand, Latencies, Observation, Reading, Replica, StepCost
from sapwood_tools.replay.autoscale.fleet import FleetSettings
from sapwood_tools.replay.autoscale.pace import Pace
from sapwood_tools.replay.autoscale.pods import PodSettings
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest, request

PACE = Pace(prefill_token=1 / 5_000)
"""So a replica computes ten blocks a second, nearly."""


def fleet_settings(
    *, capacity_blocks: int = 2_000, start_seconds: float = 60.0, warm_seconds: float = 10.0
) -> FleetSettings:
    return FleetSettings(
        pods=PodSettings(capacity_blocks=capacity_blocks, pace=PACE),
        start_seconds=start_seconds,
        warm_seconds=warm_seconds,
    )


def load(
    rate_at: Callable[[float], float], *, seconds: float, num_shared: int = 1, seed: int = 0
) -> list[TraceRequest]:
    """Prompts of eight blocks, the first ``num_shared`` of which all have, so many a second at each moment."""
    random = Random(seed)
    requests: list[TraceRequest] = []
    at = 0.0
    while (at := at + random.expovariate(1.0) / rate_at(at)) < seconds:
        fresh = len(requests) * 8 + 100
        blocks = (*range(num_shared), *range(fresh, fresh + 8 - num_shared))
        requests.append(request(at, 8 * BLOCK_TOKENS, 20, blocks))
    return requests


class Always:
    """A controller that wants the same at all times, or what a list says."""

    name = "always"

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.seen: list[Observation] = []

    def desired(self, observation: Observation, now: float) -> int:
        self.seen.append(observation)
        return self.numbers[min(len(self.seen), len(self.numbers)) - 1]


def observation(readings: Sequence[Reading], *, starting: int = 0) -> Observation:
    """Ready replicas that say this, and some that are starting."""
    ready = [
        Replica(uid=f"r{at}", name=f"r{at}", stage="ready", age_seconds=600.0, reading=each)
        for at, each in enumerate(readings)
    ]
    coming = [
        Replica(uid=f"s{at}", name=f"s{at}", stage="starting", age_seconds=5.0, reading=reading())
        for at in range(starting)
    ]
    return Observation(
        replicas=(*ready, *coming),
        current=len(ready) + starting,
        demand=Demand(num_waiting=0, num_running=len(ready), idle_seconds=0.0),
    )


def reading(
    *,
    waiting: float = 0.0,
    prompt_tokens: float = 0.0,
    cached_tokens: float = 0.0,
    pinned_share: float = 0.0,
    ttft: float | None = None,
) -> Reading:
    """One replica's minute; ``ttft``: what all its requests took, in seconds."""
    latencies = Latencies((0.9 * ttft, ttft, float("inf")), (0.0, 100.0, 0.0)) if ttft else Latencies()
    return Reading(
        window_seconds=60.0,
        arrivals=prompt_tokens / 4_000,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        generation_tokens=0.0,
        running=1.0,
        waiting=waiting,
        waiting_tokens=0.0,
        capacity_tokens=1e6,
        pinned_tokens=1e6 * pinned_share,
        ttft=latencies,
        cost=StepCost(prefill_token=1 / 5_000, prefill_key=0.0, decode=0.0, decode_key=0.0, base=0.03),
    )
