"""All that the rules ask of one moment, worked out once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_operator.autoscaling.capacity import Capacity
from sapwood_operator.autoscaling.hits import affinity_of, hits_of
from sapwood_operator.autoscaling.load import Heard, Load, hear, load_of
from sapwood_operator.autoscaling.stabilise import (
    LATENCY_REST_SECONDS,
    Moving,
    begun,
    heading_for,
    imagined,
    moving,
    num_sharing,
    num_unmade,
    settle_seconds,
    since_change,
    since_ready,
)
from sapwood_operator.autoscaling.taken import over_minutes
from sapwood_operator.autoscaling.values import Change, Observation, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy

SKEW = 1.5
_COLD = 0.5
_CHANCE = 3.0
"""Standard deviations of a number of requests that came by chance; less than that is no fault of routing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Of one decision."""

    policy: ScalingPolicy
    observation: Observation
    state: State
    now: float
    changes: tuple[Change, ...]
    """None of them later than now: a clock that was set back would hold everything until then."""
    heading: int
    """Where the service is going."""
    base: int
    """The same within bounds."""
    low: int
    """Fewest replicas; 0 only where the service may go to none."""
    high: int
    load: Load
    capacity: Capacity
    moving: Moving
    unmade_since: float | None
    """`State.unmade_since` after this decision."""
    settle_left: float
    """Seconds for which the caches do not count yet."""
    rest_left: float
    """Seconds for which measured latencies do not count yet."""
    skew: float | None
    """Most requests on one replica, in means; None: there is nothing to compare."""
    is_skewed: bool
    is_ahead: bool
    """A dry run wants more than there are: what is measured asks for no others."""


def situation_of(
    policy: ScalingPolicy, observation: Observation, state: State, now: float, *, memory_factor: float = 1.0
) -> Situation:
    """Work it out; with ``memory_factor`` as if every replica had so many times its KV memory."""
    low = policy.min_replicas if policy.scale_to_zero else max(1, policy.min_replicas)
    high = max(low, policy.max_replicas)
    heading = heading_for(state, observation.current, policy.mode)
    base = min(max(heading, low), high)
    changes = tuple(each for each in state.changes if each.at <= now) if policy.mode != "Paused" else ()
    is_dry = policy.mode == "DryRun"
    is_ahead = is_dry and base > observation.current
    asked, made = (observation.current, ()) if is_dry else (base, changes)
    heard = hear(observation)
    load = over_minutes(load_of(heard, observation.demand), observation.taken, policy.ttft_p90_seconds)
    settle = settle_seconds(policy, load)
    since = since_change(changes, now)
    rested = min(since, since_ready(observation.replicas))
    unmade_since = begun(state.unmade_since, now) if num_unmade(observation, asked) else None
    moves = moving(observation, asked, 0.0 if unmade_since is None else now - unmade_since)
    if is_dry and since < LATENCY_REST_SECONDS:
        moves = imagined(moves, base - asked)
    skew, is_skewed = _skew(heard)
    sharing = num_sharing(observation, made, asked, now=now, settle=settle)
    hits = hits_of(
        heard,
        num_measured=sharing,
        num_serving=max(sharing, load.num_ready),
        measured=load.hit_ratio,
        affinity=affinity_of(observation),
        settle_seconds=settle,
        memory_factor=memory_factor,
    )
    rest_left = max(0.0, LATENCY_REST_SECONDS - rested)
    is_under_way = moves.num_coming or moves.num_going or moves.num_hung or rest_left or is_ahead
    capacity = Capacity(policy, load, hits, memory_factor, counts_backlog=not (is_under_way or is_skewed))
    return Situation(
        policy=policy,
        observation=observation,
        state=state,
        now=now,
        changes=changes,
        heading=heading,
        base=base,
        low=low,
        high=high,
        load=load,
        capacity=capacity,
        moving=moves,
        unmade_since=unmade_since,
        settle_left=max(0.0, settle - rested),
        rest_left=rest_left,
        skew=skew,
        is_skewed=is_skewed,
        is_ahead=is_ahead,
    )


def _skew(heard: Sequence[Heard]) -> tuple[float | None, bool]:
    """Return the most requests on a replica in means, and whether one has far too many and another hardly any."""
    counts = [
        each.reading.running + each.reading.waiting
        for each in heard
        if each.reading is not None
        and each.replica.stage == "ready"
        and each.replica.age_seconds >= LATENCY_REST_SECONDS
    ]
    total = sum(counts)
    if len(counts) < 2 or not total > 0:
        return None, False
    mean, most = total / len(counts), max(counts)
    is_skewed = most > SKEW * mean and most - mean > _CHANCE * math.sqrt(mean) and min(counts) <= _COLD * mean
    return most / mean, is_skewed
