"""What a decision says to people: a sentence for every rule, and the numbers that decided."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sapwood_operator.autoscaling.capacity import Bound, Capacity, Forecast

RULES: Mapping[str, str] = {
    "PrefillSpeed": "prompts need more prefill speed than fewer replicas have",
    "TimeToFirstToken": "prompts would wait too long on fewer replicas",
    "KvMemory": "running requests need more KV memory than fewer replicas have",
    "DecodeSpeed": "streams would be too slow on fewer replicas",
    "PromisedLatency": "what users wait comes near to what they are promised",
    "CacheGain": "the last replica's cache saves more work than it costs",
    "LoadFell": "one replica fewer has sufficed for the whole window",
    "Idle": "nobody has used the service for idleAfter",
    "Demand": "requests wait and there is no replica",
    "DemandGone": "everybody left before the first replica was ready",
    "Minimum": "minReplicas allows no fewer",
    "Maximum": "maxReplicas allows no more",
    "Fallback": "too few replicas have reported for longer than holdFor",
    "AsNeeded": "the replicas suffice, and one fewer would leave too little reserve",
    "MetricsMissing": "too little is known to change anything",
    "Stabilizing": "a change has to be wanted for longer",
    "StepLimit": "the policy's steps allow no larger change now",
    "Settling": "the caches have not settled since the last change",
    "ReplicasPending": "replicas are on their way in or out",
    "RoutingSkew": "one replica is overloaded while another idles, which routing has to mend",
    "HitLoss": "one replica fewer would lose more of the cache than maxHitLoss",
    "InsufficientCapacity": "the cluster has no room for the replicas that are asked for already",
    "ReplicasNotReady": "replicas that were asked for do not get ready, and others might not either",
    "Paused": "the policy is paused",
}
"""Reason (`sapwood_contract.metrics.SCALING_REASONS`) -> when it is given."""


def bound_sentence(capacity: Capacity, bound: Bound, replicas: int) -> str:
    """Say how ``replicas`` fare with a bound."""
    if replicas <= 0:
        return "without a replica nothing is answered"
    forecast, policy, these = capacity.at(replicas), capacity.policy, replicas_text(replicas)
    if bound == "PrefillSpeed":
        planned = percent(policy.prefill_utilization)
        return f"{these} would use {percent(forecast.prefill_use)} of their prefill speed, planned are {planned}"
    if bound == "KvMemory":
        planned = percent(policy.kv_utilization)
        return f"{these} would hold {percent(forecast.kv_use)} of their KV memory, planned are {planned}"
    if bound == "DecodeSpeed":
        promised = seconds_text(policy.itl_p90_seconds)
        return f"with {these} a token would take {seconds_text(forecast.itl_seconds)}, promised are {promised}"
    return _ttft_sentence(capacity, forecast)


def _ttft_sentence(capacity: Capacity, forecast: Forecast) -> str:
    these, parts = replicas_text(forecast.replicas), []
    if capacity.counts_backlog and forecast.catch_up_seconds:
        waiting = f"{capacity.load.waiting_tokens:.0f} tokens that wait"
        parts.append(f"{these} would need {seconds_text(forecast.catch_up_seconds)} for {waiting}")
    promised = capacity.policy.ttft_p90_seconds
    if promised is not None:
        ttft = seconds_text(forecast.ttft_p90_seconds)
        parts.append(f"with {these} the first token would take {ttft}, promised are {seconds_text(promised)}")
    return "; ".join(parts)


def replicas_text(number: int) -> str:
    """Return a number of replicas in words."""
    return "1 replica" if number == 1 else f"{number} replicas"


def hung_text(number: int) -> str:
    """Say how many replicas have a node and do not get ready."""
    return "1 replica does not get ready" if number == 1 else f"{number} replicas do not get ready"


def percent(share: float | None) -> str:
    """Return a share in words."""
    if share is None:
        return "an unknown share"
    return f"{100 * share:.0f} %" if share < 100 else "more than all"


def seconds_text(seconds: float | None) -> str:
    """Return a time in words."""
    if seconds is None:
        return "an unknown time"
    if seconds == math.inf:
        return "for ever"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
