"""An autoscaler's decisions about a service that is made up: its load swells and ebbs, and replicas are there at once.

What decides is the operator's own `decide`, and what shows it the operator's own registry.
"""

from __future__ import annotations

import asyncio
import math
import time

from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Demand, Latencies, Observation, Reading, Replica, State, StepCost
from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy

_EVERY_SECONDS = 0.5
_SECONDS_OF_LOAD = 15.0
"""Pass for the service between two decisions: a day's load in half a minute."""
_PERIOD_SECONDS = 900.0
_OLD_SECONDS = 3600.0
_CAPACITY_TOKENS = 100_000.0
_LOST_TOKENS = 2_400.0
_POLICY = ScalingPolicy(max_replicas=4, ttft_p90_seconds=2.0, down=Behavior(window_seconds=60.0))
_COST = StepCost(prefill_token=1e-4, prefill_key=0.0, decode=1e-3, decode_key=0.0, base=0.01)
"""10,000 tokens of prefill a second."""


async def decide_for_ever(metrics: OperatorMetrics, namespace: str, name: str) -> None:
    """Show a decision about a service every half second, and what its caches lose."""
    state, num_replicas, at = State(), 1, time.time()
    while True:
        decision = decide(_POLICY, _observed(num_replicas, at), state, at)
        metrics.observe_decision(namespace, name, decision, num_ready=num_replicas)
        if decision.desired < num_replicas:
            metrics.lose(namespace, name, _LOST_TOKENS * (num_replicas - decision.desired))
        state, num_replicas, at = decision.state, decision.desired, at + _SECONDS_OF_LOAD
        await asyncio.sleep(_EVERY_SECONDS)


def _observed(num_replicas: int, at: float) -> Observation:
    """Prompts of 500 tokens, 60 of 100 found in caches; the first replica gets a little more than the others."""
    computed = 9_000.0 * (1.0 - 0.8 * math.cos(2 * math.pi * at / _PERIOD_SECONDS)) / num_replicas
    replicas = tuple(
        Replica(
            uid=f"uid-{number}",
            name=f"engine-{number}",
            stage="ready",
            age_seconds=_OLD_SECONDS,
            reading=_reading(computed * (1.1 if number == 0 else 0.9)),
        )
        for number in range(num_replicas)
    )
    demand = Demand(num_waiting=0, num_running=4 * num_replicas, idle_seconds=0.0, routed_by_prefix=0.95)
    return Observation(replicas=replicas, current=num_replicas, demand=demand)


def _reading(computed: float) -> Reading:
    """What a replica says that computes so many prompt tokens a second."""
    prompts = computed / 0.4
    return Reading(
        window_seconds=60.0,
        arrivals=prompts / 500.0,
        prompt_tokens=prompts,
        cached_tokens=prompts - computed,
        generation_tokens=computed / 100.0,
        running=computed / 2_000.0,
        waiting=0.0,
        waiting_tokens=max(0.0, computed - 8_000.0),
        capacity_tokens=_CAPACITY_TOKENS,
        pinned_tokens=computed,
        ttft=Latencies((0.25, 0.5, 1.0, math.inf), (computed / 10.0, computed / 20.0, 2.0, 0.0)),
        itl=Latencies((0.01, 0.02, 0.05, math.inf), (computed, computed / 10.0, 2.0, 0.0)),
        cost=_COST,
    )
