"""How fast the number of replicas may change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support_scaling import IDLE, NOW, reading, replica, service

from sapwood_operator.autoscaling.capacity import Capacity
from sapwood_operator.autoscaling.load import hear, load_of
from sapwood_operator.autoscaling.situation import situation_of
from sapwood_operator.autoscaling.stabilise import (
    LATENCY_REST_SECONDS,
    Moving,
    learnt,
    moving,
    num_sharing,
    scatter,
    settle_seconds,
    since_change,
    tried,
    was_too_few,
    within_steps,
)
from sapwood_operator.autoscaling.values import Change, Observation, State
from sapwood_operator.domain.scaling_policy import Behavior, LimitType, ScalingPolicy, Select, StepLimit

POLICY = ScalingPolicy(max_replicas=16)
OFTEN = reading(0.5, arrivals=1e6)
"""Of so many that chance is nothing."""


def behavior(*limits: tuple[LimitType, int, float], select: Select = "Max") -> Behavior:
    """Limits of a step: type, value, period."""
    steps = tuple(StepLimit(type=kind, value=value, period_seconds=period) for kind, value, period in limits)
    return Behavior(window_seconds=0.0, select=select, limits=steps)


def change(ago: float, before: int, after: int, reason: str = "PrefillSpeed") -> Change:
    """One that was decided so many seconds ago."""
    return Change(NOW - ago, before, after, reason, "")


def capacity_of(observation: Observation) -> Capacity:
    """What is reckoned from what is seen."""
    return situation_of(POLICY, observation, State(), NOW).capacity


@pytest.mark.parametrize(
    ("steps", "changes", "base", "wanted", "allowed"),
    [
        (behavior(), [], 2, 9, 9),
        (behavior(("Replicas", 2, 60.0)), [], 2, 9, 4),
        (behavior(("Replicas", 2, 60.0)), [change(30, 2, 4)], 4, 9, 4),
        (behavior(("Replicas", 2, 60.0)), [change(61, 2, 4)], 4, 9, 6),
        (behavior(("Replicas", 2, 60.0)), [change(30, 2, 3)], 3, 9, 4),
        (behavior(("Percent", 50, 60.0)), [], 3, 9, 5),
        (behavior(("Percent", 100, 60.0), ("Replicas", 4, 60.0)), [], 2, 9, 6),
        (behavior(("Percent", 100, 60.0), ("Replicas", 4, 60.0), select="Min"), [], 2, 9, 4),
        (behavior(select="Disabled"), [], 2, 9, 2),
        (behavior(("Replicas", 1, 60.0)), [change(30, 5, 4, "LoadFell")], 4, 3, 4),
        (behavior(("Replicas", 1, 60.0)), [change(61, 5, 4, "LoadFell")], 4, 3, 3),
        (behavior(("Percent", 10, 60.0)), [], 4, 3, 3),
        (behavior(("Replicas", 1, 60.0)), [change(30, 3, 4)], 4, 3, 3),
        (behavior(select="Disabled"), [], 4, 3, 4),
    ],
)
def test_steps_keep_to_the_limits_of_a_horizontal_pod_autoscaler(
    steps: Behavior, changes: list[Change], base: int, wanted: int, allowed: int
) -> None:
    assert within_steps(steps, base, wanted, changes=changes, now=NOW) == allowed


@pytest.mark.parametrize(
    ("stages", "base", "since", "expected"),
    [
        ([("ready", 900.0)], 1, math.inf, Moving(0, 0, 0, 0)),
        ([("ready", 900.0), ("pending", 100.0)], 2, 100.0, Moving(1, 0, 0, 0)),
        ([("ready", 900.0), ("pending", 181.0)], 2, 181.0, Moving(0, 1, 0, 0)),
        ([("ready", 900.0), ("starting", 300.0), ("warming", 20.0)], 3, 300.0, Moving(2, 0, 0, 0)),
        ([("ready", 900.0), ("starting", 901.0)], 2, 901.0, Moving(0, 0, 1, 0)),
        ([("ready", 900.0), ("starting", 901.0)], 1, 901.0, Moving(0, 0, 0, 1)),
        ([("ready", 900.0)], 3, 10.0, Moving(2, 0, 0, 0)),
        ([("ready", 900.0)], 3, 181.0, Moving(0, 2, 0, 0)),
        ([("ready", 900.0), ("leaving", 10.0)], 1, 10.0, Moving(0, 0, 0, 1)),
        ([("ready", 900.0), ("ready", 900.0)], 1, 10.0, Moving(0, 0, 0, 1)),
    ],
)
def test_replicas_that_come_or_go_are_told_from_those_that_will_not(
    stages: list[tuple[str, float]], base: int, since: float, expected: Moving
) -> None:
    replicas = [replica(number, stage=stage, age=age) for number, (stage, age) in enumerate(stages)]  # type: ignore[arg-type]  # a stage
    assert moving(service(others=replicas), base, since) == expected


@pytest.mark.parametrize(
    ("evicted", "seconds"),
    [(0.0, 120.0), (10_000.0, 120.0), (1000.0, 200.0), (1.0, 600.0)],
)
def test_caches_settle_until_they_were_renewed_twice_within_bounds(evicted: float, seconds: float) -> None:
    observation = service(reading(evicted_tokens=evicted))
    assert settle_seconds(POLICY, load_of(hear(observation), observation.demand)) == pytest.approx(seconds)


def test_curves_are_of_the_replicas_that_shared_the_stream_while_they_were_made() -> None:
    added = service(reading(), reading(), others=[replica(9, age=20.0)])
    assert num_sharing(added, [change(80, 2, 3)], 3, now=NOW, settle=120.0) == 2
    assert num_sharing(added, [], 3, now=NOW, settle=10.0) == 3
    removed = service(reading(), reading())
    assert num_sharing(removed, [change(80, 3, 2, "LoadFell")], 2, now=NOW, settle=120.0) == 3
    assert num_sharing(removed, [change(130, 3, 2, "LoadFell")], 2, now=NOW, settle=120.0) == 2


def test_a_clock_that_went_back_makes_no_negative_time() -> None:
    assert since_change([change(-50, 1, 2)], NOW) == 0.0
    assert since_change([], NOW) == math.inf
    assert LATENCY_REST_SECONDS > 0


def test_a_number_that_is_remembered_as_too_few_is_so_by_what_each_would_have_to_do() -> None:
    capacity, known = capacity_of(service(OFTEN, OFTEN)), 5_000
    state = State(desired=3, too_many_tokens=known, changes=(change(1000, 2, 3, "PromisedLatency"),))
    assert was_too_few(state, capacity, 2)
    assert not was_too_few(state, capacity, 3)
    more_is_hit = capacity_of(service(*[replace(OFTEN, cached_tokens=8_000.0)] * 2))
    assert not was_too_few(state, more_is_hit, 2)
    assert learnt(state, capacity, 3, "AsNeeded", NOW) == known
    assert learnt(state, capacity, 3, "AsNeeded", NOW + 2601) is None


def test_a_step_that_was_taken_back_is_remembered_for_a_day() -> None:
    capacity = capacity_of(service(OFTEN, OFTEN))
    down = change(600, 3, 2, "LoadFell")
    assert tried(State(desired=3), capacity, 2, "LoadFell") == pytest.approx(5_000, rel=0.001)
    known = learnt(State(desired=2, tried_tokens=5_000, changes=(down,)), capacity, 3, "KvMemory", NOW)
    assert known == pytest.approx(5_000, rel=0.001)
    assert learnt(State(desired=2), capacity, 3, "KvMemory", NOW) is None
    assert learnt(State(desired=2), capacity, 3, "PromisedLatency", NOW) is None
    both = State(desired=3, too_many_tokens=5_000, changes=(change(0, 2, 3), down))
    assert learnt(both, capacity, 3, "AsNeeded", NOW + 80_000) == 5_000
    assert learnt(both, capacity, 3, "AsNeeded", NOW + 90_000) is None


@pytest.mark.parametrize("reason", ["PrefillSpeed", "PromisedLatency"])
def test_a_step_that_is_taken_back_because_more_came_teaches_nothing(reason: str) -> None:
    state = State(desired=2, tried_tokens=4_000, changes=(change(600, 3, 2, "LoadFell"),))
    assert learnt(state, capacity_of(service(OFTEN, OFTEN)), 3, reason, NOW) is None


def test_what_is_learnt_is_not_the_chance_of_a_minute() -> None:
    """200 requests of scattering sizes are 30 % more or fewer tokens in three minutes of a thousand."""
    capacity = capacity_of(service(*[reading(0.5, arrivals=100 / 60)] * 2))
    assert scatter(capacity.load) == pytest.approx(0.3)
    back = State(desired=2, changes=(change(600, 3, 2, "LoadFell"),))
    assert learnt(back, capacity, 3, "PromisedLatency", NOW) == pytest.approx(5_000 / 1.3, rel=0.001)
    assert tried(State(desired=3), capacity, 2, "LoadFell") == pytest.approx(5_000 * 1.3, rel=0.001)
    assert scatter(capacity_of(service(IDLE)).load) == scatter(capacity_of(service(reading(arrivals=1e-310))).load) < 5


def test_pods_that_nobody_made_are_on_their_way_for_a_while() -> None:
    asked = service(reading(), current=2)
    state = State(desired=2, changes=(change(50_000, 1, 2),))
    first = situation_of(POLICY, asked, state, NOW)
    assert (first.moving, first.unmade_since) == (Moving(1, 0, 0, 0), NOW)
    later = situation_of(POLICY, asked, replace(state, unmade_since=NOW - 181), NOW)
    assert (later.moving, later.unmade_since) == (Moving(0, 1, 0, 0), NOW - 181)
    assert (
        situation_of(POLICY, service(reading(), reading()), replace(state, unmade_since=NOW), NOW).unmade_since is None
    )
