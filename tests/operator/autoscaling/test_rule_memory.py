"""What is remembered from decision to decision, and what is said of a decision beside its number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_scaling import (
    CAPACITY,
    ENOUGH,
    FLAT,
    IDLE,
    LOST,
    NOBODY,
    NOW,
    POLICY,
    SURE,
    ZERO,
    changed,
    reading,
    replica,
    service,
    verdict,
)

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Demand, State
from sapwood_operator.domain.scaling_policy import Behavior, StepLimit


def asks(num_waiting: int = 0, num_running: int = 0) -> Demand:
    """What gateways have to do."""
    return Demand(num_waiting=num_waiting, num_running=num_running, idle_seconds=0.0)


def test_who_keeps_a_service_from_going_below_its_minimum_is_told() -> None:
    decision = decide(replace(POLICY, min_replicas=3), service(SURE, SURE, SURE), ENOUGH, NOW)
    assert decision.message == "minReplicas is 3"


def test_a_wake_is_remembered_until_its_replica_is_ready() -> None:
    woken = decide(ZERO, service(demand=asks(num_waiting=1)), State(), NOW)
    assert woken.state.waking_since == NOW
    starting = service(others=[replica(0, LOST, stage="starting", age=5.0)], demand=asks(num_waiting=1))
    still = decide(ZERO, starting, woken.state, NOW + 5)
    assert still.state.waking_since == NOW
    ready = decide(ZERO, service(IDLE, demand=asks(num_running=1)), still.state, NOW + 60)
    assert ready.state.waking_since is None
    gone = decide(ZERO, replace(starting, demand=NOBODY), still.state, NOW + 60)
    assert (gone.desired, gone.reason, gone.state.waking_since) == (0, "DemandGone", None)


def test_a_service_at_none_that_nobody_asks_for_wakes_nobody() -> None:
    decision = decide(ZERO, service(demand=NOBODY), State(desired=0), NOW)
    assert (decision.desired, decision.reason, decision.state.waking_since) == (0, "Idle", None)
    assert verdict(decision, "ScalingLimited") == (False, "AsWanted")
    assert verdict(decision, "MetricsAvailable") == (True, "Reported")


@pytest.mark.parametrize(("base", "least", "desired"), [(1, 3, 3), (3, 2, 4)])
def test_a_rise_after_its_window_is_the_least_that_was_wanted_and_one_at_least(
    base: int, least: int, desired: int
) -> None:
    policy = replace(POLICY, up=Behavior(window_seconds=60.0))
    state = State(desired=base, more_since=NOW - 60.0, more_least=least)
    assert decide(policy, service(*[reading(3.0 / base, curve=FLAT)] * base), state, NOW).desired == desired


def test_a_step_down_counts_against_the_next_one_and_a_step_up_does_not() -> None:
    limits = (StepLimit(type="Replicas", value=1, period_seconds=600.0),)
    policy = replace(POLICY, down=Behavior(window_seconds=0.0, limits=limits))
    held = decide(policy, service(*[SURE] * 4), changed(300.0, 5, 4, "LoadFell"), NOW)
    assert (held.desired, held.reason, verdict(held, "ScalingLimited")) == (4, "StepLimit", (True, "StepLimit"))
    free = decide(policy, service(*[SURE] * 4), changed(300.0, 3, 4), NOW)
    assert (free.desired, free.reason) == (3, "LoadFell")


def test_clocks_that_a_set_back_clock_left_ahead_begin_anew() -> None:
    ahead = State(fewer_since=NOW + 100.0, more_since=NOW + 100.0, blind_since=NOW + 100.0)
    assert decide(POLICY, service(SURE, SURE, SURE), ahead, NOW).state.fewer_since == NOW
    assert decide(POLICY, service(LOST, LOST), ahead, NOW).state.blind_since == NOW
    slow = replace(POLICY, up=Behavior(window_seconds=60.0))
    assert decide(slow, service(reading(0.9, curve=FLAT)), ahead, NOW).state.more_since == NOW


def test_a_rise_to_the_most_that_is_allowed_is_limited() -> None:
    flooded = service(reading(0.9, arrivals=20.0, waiting=50.0, admissions=1.0, curve=FLAT))
    decision = decide(POLICY, flooded, State(), NOW)
    assert (decision.desired, verdict(decision, "ScalingLimited")) == (8, (True, "Maximum"))


def test_the_most_that_is_allowed_says_how_many_would_be_needed() -> None:
    seen = service(reading(0.9, pinned_tokens=0.9 * CAPACITY, curve=FLAT))
    decision = decide(replace(POLICY, max_replicas=1), seen, State(), NOW)
    assert (decision.desired, decision.reason) == (1, "Maximum")
    assert decision.message.endswith("at least 2 replicas would be needed, maxReplicas is 1")
    assert verdict(decision, "ScalingLimited") == (True, "Maximum")
