"""What holds for every decision, whatever is seen, remembered and asked for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_chance import ENGINES, changes_by_chance
from support_scaling import BUSY, NOW, World, flat_curve, reading, replica, service, straight_curve

from sapwood_contract.curve import Curve, CurvePoint
from sapwood_contract.metrics import SCALING_REASONS, SCALING_SIGNALS
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import (
    Change,
    Demand,
    Latencies,
    NoDemand,
    NoReading,
    Observation,
    Reading,
    Replica,
    State,
    StepCost,
)
from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy, StepLimit

HOUR = 3600.0
ANY = st.floats() | st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e308, math.inf, math.nan])
SOUND = st.floats(0.0, 1e6)
TIMES = st.none() | st.floats(NOW - 10_000, NOW + 100)


def costs(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[StepCost]:
    """Costs of these numbers."""
    names = ("prefill_token", "prefill_key", "decode", "decode_key", "base")
    return st.builds(StepCost, **dict.fromkeys(names, numbers))


def curves(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Curve]:
    """Curves of these numbers, however they bend."""
    points = st.lists(st.builds(CurvePoint, numbers, numbers), max_size=3)
    ends = numbers.map(lambda ratio: CurvePoint(None, ratio))
    together = st.tuples(points, ends).map(lambda both: (*both[0], both[1]))
    return st.builds(Curve, st.just(True), numbers, st.just(9), st.just(9), st.just(()) | together, numbers, st.just(0))


def histograms(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Latencies]:
    """Histograms of these numbers."""
    pairs = st.lists(numbers, max_size=3).map(tuple)
    return st.builds(Latencies, pairs, pairs)


def readings(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Reading]:
    """Readings of these numbers."""
    names = (
        *("window_seconds", "arrivals", "prompt_tokens", "cached_tokens", "generation_tokens", "running", "waiting"),
        *("waiting_tokens", "capacity_tokens", "pinned_tokens", "evicted_tokens", "regret_tokens"),
    )
    return st.builds(
        Reading,
        **dict.fromkeys(names, numbers),
        ttft=histograms(numbers),
        itl=histograms(numbers),
        admissions=st.none() | numbers,
        cost=st.none() | costs(numbers),
        curve=st.none() | curves(numbers),
    )


def observations(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Observation]:
    """Services that say these numbers."""
    replicas = st.builds(
        Replica,
        uid=st.text(max_size=2),
        name=st.text(max_size=2),
        stage=st.sampled_from(["pending", "starting", "warming", "ready", "ready", "ready", "leaving"]),
        age_seconds=numbers,
        reading=readings(numbers) | st.just(NoReading("lost")),
    )
    demands = st.builds(
        Demand,
        num_waiting=st.integers(0, 99),
        num_running=st.integers(0, 99),
        idle_seconds=numbers,
        routed_by_prefix=st.none() | numbers,
    )
    return st.builds(
        Observation,
        replicas=st.lists(replicas, max_size=5).map(tuple),
        current=st.integers(0, 20),
        demand=demands | st.just(NoDemand("nobody answers")),
        rolling=st.booleans(),
        by_prefix=st.booleans(),
    )


STEPS = st.builds(
    StepLimit,
    type=st.sampled_from(["Replicas", "Percent"]),
    value=st.integers(1, 200),
    period_seconds=st.floats(1, 1800),
)
BEHAVIORS = st.builds(
    Behavior,
    window_seconds=st.sampled_from([0.0, 60.0, 300.0]),
    select=st.sampled_from(["Max", "Min", "Disabled"]),
    limits=st.lists(STEPS, max_size=2).map(tuple),
)
POLICIES = st.builds(
    ScalingPolicy,
    min_replicas=st.integers(0, 4),
    max_replicas=st.integers(4, 12),
    mode=st.sampled_from(["Active", "Active", "DryRun", "Paused"]),
    ttft_p90_seconds=st.none() | st.floats(0.01, 10),
    itl_p90_seconds=st.none() | st.floats(0.001, 1),
    min_payback=st.floats(0, 3),
    max_hit_loss=st.floats(0, 1),
    up=BEHAVIORS,
    down=BEHAVIORS,
    coverage_floor=st.floats(0, 1),
    fallback_replicas=st.none() | st.integers(1, 12),
    scale_to_zero=st.booleans(),
)
CHANGES = st.builds(
    Change,
    st.floats(NOW - 4000, NOW + 10),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from(SCALING_REASONS),
    st.just("why"),
)
STATES = st.builds(
    State,
    desired=st.none() | st.integers(0, 20),
    fewer_since=TIMES,
    more_since=TIMES,
    more_least=st.none() | st.integers(0, 20),
    blind_since=TIMES,
    unmade_since=TIMES,
    tried_tokens=st.none() | st.integers(0, 10**6),
    too_many_tokens=st.none() | st.integers(0, 10**6),
    changes=st.lists(CHANGES, max_size=3).map(tuple),
)


@given(POLICIES, observations(ANY) | observations(SOUND), STATES)
@settings(max_examples=150)
def test_every_decision_is_within_bounds_and_explained(policy: ScalingPolicy, seen: Observation, state: State) -> None:
    decision = decide(policy, seen, state, NOW)
    assert policy.min_replicas <= decision.desired <= policy.max_replicas
    assert decision.reason in SCALING_REASONS
    assert decision.message
    assert set(decision.inputs) <= set(SCALING_SIGNALS)
    assert not any(math.isnan(value) for value in (*decision.inputs.values(), *decision.predicted.values()))
    assert decision.state.desired == decision.desired
    assert {each.type for each in decision.verdicts} == {"MetricsAvailable", "AutoscalingActive", "ScalingLimited"}


@given(POLICIES, observations(SOUND), STATES)
@settings(max_examples=100)
def test_a_decision_is_a_function_of_its_arguments_and_leaves_them_alone(
    policy: ScalingPolicy, seen: Observation, state: State
) -> None:
    before = copy.deepcopy((policy, seen, state))
    assert decide(policy, seen, state, NOW) == decide(policy, seen, state, NOW)
    assert (policy, seen, state) == before


@given(POLICIES, observations(SOUND), STATES)
@settings(max_examples=150)
def test_deciding_again_at_the_same_moment_decides_the_same(
    policy: ScalingPolicy, seen: Observation, state: State
) -> None:
    first = decide(policy, seen, state, NOW)
    again = decide(policy, seen, first.state, NOW)
    assert again.desired == first.desired
    assert again.state.changes == first.state.changes


@given(POLICIES, observations(SOUND), STATES, st.data())
@settings(max_examples=150)
def test_a_reading_that_is_lost_or_absurd_never_takes_a_replica_away(
    policy: ScalingPolicy, seen: Observation, state: State, data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.integers(0, max(0, len(seen.replicas) - 1)), min_size=1))
    silence: list[Reading | NoReading] = [NoReading("lost"), reading(math.nan)]
    told = [
        replace(each, reading=data.draw(st.sampled_from(silence)), stage="ready", age_seconds=999.0)
        if index in lost
        else each
        for index, each in enumerate(seen.replicas)
    ]
    blinded = replace(seen, replicas=tuple(told))
    heading = state.desired if policy.mode != "Paused" and state.desired is not None else seen.current
    kept = min(heading, policy.max_replicas)
    if told:
        assert decide(policy, blinded, state, NOW).desired >= kept


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("name", ["arrivals", "prompt_tokens", "running", "pinned_tokens", "capacity_tokens"])
def test_numbers_that_cannot_be_move_nothing(name: str, wrong: float) -> None:
    policy = ScalingPolicy(max_replicas=9, ttft_p90_seconds=1.0)
    state = State(fewer_since=NOW - HOUR)
    decision = decide(policy, service(*[reading(0.3, **{name: wrong})] * 3), state, NOW)
    assert (decision.desired, decision.reason) == (3, "MetricsMissing")


WORLDS = st.fixed_dictionaries(
    {
        "replicas": st.integers(1, 16),
        "arrivals": st.floats(0, 40),
        "prompt_tokens": st.sampled_from([200.0, 2000.0, 8000.0]),
        "generation_tokens": st.sampled_from([0.0, 50.0, 200.0]),
        "most_hits": st.floats(0, 0.95),
        "half_tokens": st.floats(3.5, 6.5).map(lambda exponent: 10.0**exponent),
        "affinity": st.sampled_from([0.0, 0.5, 0.8, 1.0]),
        "uses": st.sampled_from([1.0, 2.0, 8.0, 50.0]),
        "slowness": st.sampled_from([0.5, 1.0, 2.0, 4.0]),
        "start_seconds": st.sampled_from([10.0, 60.0, 300.0]),
    }
)
PROMISES = st.builds(
    ScalingPolicy,
    max_replicas=st.just(16),
    ttft_p90_seconds=st.sampled_from([None, 0.5, 1.0, 2.0, 5.0]),
    itl_p90_seconds=st.sampled_from([None, 0.02, 0.05, 0.2]),
    max_hit_loss=st.sampled_from([0.01, 0.05, 1.0]),
    min_payback=st.sampled_from([0.1, 1.0]),
)


def turns(trail: list[int]) -> list[int]:
    """Return the directions in which a number of replicas went, without repetitions."""
    steps = [(after > before) - (after < before) for before, after in pairwise(trail) if after != before]
    return [step for index, step in enumerate(steps) if index == 0 or steps[index - 1] != step]


@given(PROMISES, WORLDS)
@settings(max_examples=25)
def test_constant_load_settles_and_stays(policy: ScalingPolicy, given_world: dict[str, Any]) -> None:
    """A rise may be followed by one fall, where a backlog was worked off; a step down that was a mistake, because the
    world is not as the model says, is taken back once, and nothing else moves after that. Only where latencies stay too
    long and the model sees little gain in replicas it goes on rising, by one in ten minutes."""
    world = World(policy=policy, **given_world)
    trail = [world.replicas, *world.run(2.5 * HOUR)]
    assert len(turns(trail)) <= 3, (trail, world.state.changes)
    late = trail[len(trail) * 3 // 5 :]
    assert late == sorted(late), (trail, world.state.changes)
    rises = world.state.changes[: late[-1] - late[0]]
    assert {each.reason for each in rises} <= {"PromisedLatency"}, (trail, world.state.changes)


@given(PROMISES, WORLDS)
@settings(max_examples=20)
def test_constant_load_that_behaves_as_the_model_says_goes_one_way(
    policy: ScalingPolicy, given_world: dict[str, Any]
) -> None:
    """Only a number that latencies called too few is tried again, once."""
    world = World(policy=policy, **{**given_world, "affinity": 1.0, "slowness": 1.0})
    trail = [world.replicas, *world.run(2.0 * HOUR)]
    ways = turns(trail)
    if ways == [1, -1, 1]:
        back, tried = world.state.changes[:2]
        assert (back.reason, tried.reason) == ("PromisedLatency", "LoadFell")
    else:
        assert ways in ([], [1], [-1], [1, -1]), (trail, world.state.changes)


@pytest.mark.parametrize("replicas", range(1, 17))
def test_constant_load_that_comes_by_chance_does_not_move_the_number_to_and_fro(replicas: int) -> None:
    """Arrivals are a Poisson process, and latencies are told by the borders that engines have."""
    policy = ScalingPolicy(max_replicas=17, ttft_p90_seconds=2.0)
    world = World(policy=policy, replicas=replicas, arrivals=5.5 * replicas, chance=Random(replicas), borders=ENGINES)
    trail = world.run(4 * HOUR)
    assert len(turns(trail)) <= 2, (trail, world.state.changes)
    assert len(set(trail[len(trail) // 2 :])) == 1, (trail, world.state.changes)


@pytest.mark.parametrize(
    ("promised", "busy", "seed"), [(0.5, 0.5, 7), (0.5, 0.5, 3), (0.5, 1.0, 7), (1.0, 0.5, 7), (1.0, 1.0, 3)]
)
def test_requests_that_come_by_chance_and_differ_in_length_move_the_number_hardly_ever(
    promised: float, busy: float, seed: int
) -> None:
    """A tail of long prompts keeps the latency of a small service near its promise, whatever replicas there are."""
    policy = ScalingPolicy(max_replicas=24, ttft_p90_seconds=promised)
    changes = changes_by_chance(policy, busy=busy, seconds=7.5 * HOUR, seed=seed)
    assert len([each for each in changes if each.at > HOUR / 2]) <= 3, changes


@pytest.mark.parametrize("replicas", range(1, 17))
def test_load_for_any_number_of_replicas_keeps_that_number(replicas: int) -> None:
    policy = ScalingPolicy(max_replicas=17)
    told = service(*[reading(0.78, curve=flat_curve())] * replicas)
    state, now = State(), NOW
    for _ in range(240):
        decision = decide(policy, told, state, now)
        assert decision.desired == replicas, decision.message
        state, now = decision.state, now + 15


def test_a_falling_hit_ratio_of_a_new_replica_asks_for_no_other() -> None:
    old = reading(0.7, curve=straight_curve(0.5, 0.9))
    cold = reading(0.7, cached_tokens=0.0, curve=straight_curve(0.05, 0.1))
    state = State(desired=3, changes=(Change(NOW - 60, 2, 3, "PrefillSpeed", ""),))
    seen = service(old, old, others=[replica(9, cold, age=50.0)])
    assert decide(ScalingPolicy(max_replicas=9), seen, state, NOW).desired == 3


def test_busy_gateways_alone_start_nothing_where_a_replica_runs() -> None:
    many: Callable[[int], Demand] = lambda number: replace(BUSY, num_running=number)  # noqa: E731 - one line, used here
    assert decide(ScalingPolicy(max_replicas=9), service(reading(0.5), demand=many(999)), State(), NOW).desired == 1
