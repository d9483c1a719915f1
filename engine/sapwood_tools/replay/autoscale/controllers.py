"""Who decides: the operator's own decision, and rules as others have published them, to compare with.

All look every 15 seconds and keep to the policy's least and most replicas and its window on the way down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Latencies, Observation, Reading, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_tools.replay.autoscale.hpa import Bounds, Stabilised, wanted
from sapwood_tools.replay.autoscale.run import Controller


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What the other rules are set to."""

    waiting_requests: float = 1.0
    """Of a replica, on the average: the HPA's."""
    kv_use: float = 0.7
    """Share of a replica's KV memory that running requests hold: KEDA's."""
    utilization: float = 0.8
    """Share of a replica's prefill speed: of the rule that discounts by the current hit rate."""
    slo_low: float = 0.4
    slo_high: float = 0.55
    """Share of the promise between which the law of the SLO ratio leaves things."""


class Sapwood:
    """`sapwood_operator.autoscaling.decide`, as the operator calls it."""

    name = "sapwood"

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._state = State()
        self.reasons: list[str] = []
        """Of each decision."""

    def desired(self, observation: Observation, now: float) -> int:
        decision = decide(self._policy, observation, self._state, now)
        self._state = decision.state
        self.reasons.append(decision.reason)
        return decision.desired if decision.acts else observation.current


class _Rule:
    """A wish from ready replicas' readings, then the HPA's steps and window."""

    def __init__(self, bounds: Bounds) -> None:
        self._stabilised = Stabilised(bounds)

    def desired(self, observation: Observation, now: float) -> int:
        ready = [
            each.reading for each in observation.replicas if each.stage == "ready" and isinstance(each.reading, Reading)
        ]
        wish = self._wish(ready, observation) if ready else observation.current
        return self._stabilised.settle(wish, observation.current, now)

    def _wish(self, ready: list[Reading], observation: Observation) -> int:
        raise NotImplementedError


class HpaOnQueue(_Rule):
    """The HPA on requests that wait, a replica."""

    name = "hpa-queue"

    def __init__(self, bounds: Bounds, target: float) -> None:
        super().__init__(bounds)
        self._target = target

    def _wish(self, ready: list[Reading], observation: Observation) -> int:
        return wanted(
            [each.waiting for each in ready], observation.current - len(ready), self._target, observation.current
        )


class KedaOnKv(_Rule):
    """KEDA's ScaledObject on the KV memory that running requests hold, which an HPA carries out."""

    name = "keda-kv"

    def __init__(self, bounds: Bounds, target: float) -> None:
        super().__init__(bounds)
        self._target = target

    def _wish(self, ready: list[Reading], observation: Observation) -> int:
        values = [each.pinned_tokens / each.capacity_tokens for each in ready]
        return wanted(values, observation.current - len(ready), self._target, observation.current)


class CurrentHit(_Rule):
    """A planner that sizes prefill by what arrives, less what is hit now (as NVIDIA Dynamo's planner does)."""

    name = "current-hit"

    def __init__(self, bounds: Bounds, utilization: float) -> None:
        super().__init__(bounds)
        self._utilization = utilization

    def _wish(self, ready: list[Reading], observation: Observation) -> int:
        prompts = sum(each.prompt_tokens for each in ready)
        arrivals = sum(each.arrivals for each in ready)
        cached = sum(each.cached_tokens for each in ready)
        cost = next((each.cost for each in ready if each.cost), None)
        if not prompts or cost is None:
            return observation.current
        return math.ceil(max(prompts - cached, 0.0) * cost.prefill_token / self._utilization) if arrivals else 0


class SloRatio(_Rule):
    """As many as would bring the 90th percentile to the middle of a band below the promise, were it in proportion."""

    name = "slo-ratio"

    def __init__(self, bounds: Bounds, ttft_seconds: float, low: float, high: float) -> None:
        super().__init__(bounds)
        self._ttft_seconds = ttft_seconds
        self._low, self._high = low, high

    def _wish(self, ready: list[Reading], observation: Observation) -> int:
        current = observation.current
        ratio = min(2.0, p90([each.ttft for each in ready]) / self._ttft_seconds)
        if self._low <= ratio <= self._high:
            return current
        if ratio < self._low:
            return current - 1
        # Those that are starting are on their way to help already.
        return max(current, math.ceil(len(ready) * ratio / self._high))


def p90(latencies: list[Latencies]) -> float:
    """Return the 90th percentile of all of ``latencies``, which have the same borders, a straight line within one."""
    counts = [sum(column) for column in zip(*(each.counts for each in latencies), strict=True)]
    wanted_count = 0.9 * sum(counts)
    if not wanted_count:
        return 0.0
    below, before = 0.0, 0.0
    for border, count in zip(latencies[0].borders, counts, strict=True):
        if count and below + count >= wanted_count:
            return before if border == math.inf else before + (border - before) * (wanted_count - below) / count
        below, before = below + count, border
    return before


def rules(policy: ScalingPolicy, targets: Targets, ttft_seconds: float) -> Mapping[str, Callable[[], Controller]]:
    """Return what makes each controller but the clairvoyant anew, by name."""
    bounds = Bounds(least=policy.min_replicas, most=policy.max_replicas, down_seconds=policy.down.window_seconds)
    return {
        Sapwood.name: lambda: Sapwood(replace(policy, ttft_p90_seconds=policy.ttft_p90_seconds or ttft_seconds)),
        HpaOnQueue.name: lambda: HpaOnQueue(bounds, targets.waiting_requests),
        KedaOnKv.name: lambda: KedaOnKv(bounds, targets.kv_use),
        CurrentHit.name: lambda: CurrentHit(bounds, targets.utilization),
        SloRatio.name: lambda: SloRatio(bounds, ttft_seconds, targets.slo_low, targets.slo_high),
    }
