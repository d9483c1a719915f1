"""What another number of replicas, or another size of their caches, would do with the load that there is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sapwood_operator.autoscaling.capacity import Bound
from sapwood_operator.autoscaling.explain import bound_sentence, percent, replicas_text
from sapwood_operator.autoscaling.situation import situation_of
from sapwood_operator.autoscaling.telling import is_blind
from sapwood_operator.autoscaling.values import Observation, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of so many replicas; None: unknown, infinite: more comes than they can do."""

    replicas: int
    memory_factor: float
    hit_ratio: float
    """Of prompt tokens."""
    from_curve: bool
    """Whether the hit ratio is a curve's; else it is the least that it can be."""
    prefill_use: float | None
    """Of the prefill speed that decoding leaves."""
    ttft_p90_seconds: float | None
    kv_use: float | None
    """Of the KV memory, by running requests."""
    itl_seconds: float | None
    breaks: Bound | None
    """The first bound of the policy that would not be kept; None: they suffice."""
    sentence: str


@dataclass(frozen=True, slots=True)
class NoPrediction:
    """Too little is known; ``why`` is for people."""

    why: str


def what_if(
    policy: ScalingPolicy,
    observation: Observation,
    state: State,
    now: float,
    *,
    replicas: int,
    memory_factor: float = 1.0,
) -> Prediction | NoPrediction:
    """Return what ``replicas`` (at least 1) with ``memory_factor`` (above 0) times the KV memory would do once settled.

    Only what is measured counts: the promise is judged by the model, not by latencies of the present number.
    """
    assert replicas >= 1, replicas
    assert 0 < memory_factor < math.inf, memory_factor
    situation = situation_of(policy, observation, state, now, memory_factor=memory_factor)
    load, capacity = situation.load, situation.capacity
    if not load.num_ready:
        return NoPrediction("no replica is ready, so nothing is measured")
    if is_blind(situation):
        return NoPrediction(f"{load.num_reporting} of {replicas_text(load.num_ready)} reported, which is too few")
    forecast, bound = capacity.at(replicas), capacity.breaks(replicas)
    if bound is not None:
        sentence = bound_sentence(capacity, bound, replicas)
    elif forecast.prefill_use is None:
        sentence = f"{replicas_text(replicas)} may suffice: what a prompt costs has not been measured yet"
    else:
        sentence = f"{replicas_text(replicas)} would suffice: {percent(forecast.prefill_use)} of their prefill speed"
    return Prediction(
        replicas=replicas,
        memory_factor=memory_factor,
        hit_ratio=forecast.hit_ratio,
        from_curve=capacity.hits.has_curve,
        prefill_use=forecast.prefill_use,
        ttft_p90_seconds=forecast.ttft_p90_seconds,
        kv_use=forecast.kv_use,
        itl_seconds=forecast.itl_seconds,
        breaks=bound,
        sentence=sentence,
    )
