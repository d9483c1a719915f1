"""A decision after a decision: dry runs, clocks, replicas that hang, sleep and waking."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from support_scaling import (
    BUSY,
    ENOUGH,
    FLAT,
    IDLE,
    LONG_AGO,
    LOST,
    NOBODY,
    NOW,
    POLICY,
    PROMISED,
    SURE,
    ZERO,
    changed,
    latencies,
    no_demand,
    reading,
    replica,
    service,
    verdict,
    waits,
)

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Change, Observation, Reading, State
from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy, StepLimit


def dry_run(seen: Observation, state: State, *, turns: int, policy: ScalingPolicy = POLICY) -> list[tuple[int, int]]:
    """Return the changes that a dry run records while nothing changes; the newest first."""
    for turn in range(turns):
        decision = decide(replace(policy, mode="DryRun"), seen, state, NOW + 15 * turn)
        assert not decision.acts
        assert verdict(decision, "AutoscalingActive") == (False, "DryRun")
        state = decision.state
    return [(each.before, each.after) for each in state.changes]


def test_a_dry_run_goes_on_from_where_it_would_have_gone() -> None:
    seen = service(*[reading(0.15, curve=FLAT)] * 4)
    assert dry_run(seen, State(fewer_since=LONG_AGO), turns=20) == [(4, 3)]
    # A window, and the time that the change itself would have taken.
    assert dry_run(seen, State(fewer_since=LONG_AGO), turns=28) == [(3, 2), (4, 3)]
    assert dry_run(seen, State(fewer_since=LONG_AGO), turns=200) == [(2, 1), (3, 2), (4, 3)]


@pytest.mark.parametrize(
    "told",
    [
        reading(0.45, ttft=latencies(0.8), curve=FLAT),
        reading(1.3, waiting=9.0, waiting_tokens=2e6, curve=FLAT),
    ],
    ids=["users wait", "tokens wait"],
)
def test_a_dry_run_does_not_ask_again_for_what_nobody_made(told: Reading) -> None:
    changes = dry_run(service(told, told), State(), turns=240, policy=replace(PROMISED, max_replicas=20))
    assert len([after for before, after in changes if after > before]) == 1


def test_load_that_scatters_about_a_border_is_no_change_of_a_dry_run_a_minute() -> None:
    state, chance = State(), Random(1)
    for turn in range(240):
        told = reading(chance.gauss(0.79, 0.04), curve=FLAT)
        state = decide(replace(POLICY, mode="DryRun"), service(told, told), state, NOW + 15 * turn).state
    assert [(each.before, each.after) for each in state.changes] == [(2, 3)]


def test_a_dry_run_wakes_again_whom_it_would_have_let_sleep() -> None:
    policy, slept = replace(ZERO, mode="DryRun"), changed(60.0, 1, 0, "Idle")
    asleep = decide(policy, service(IDLE, demand=NOBODY), slept, NOW)
    assert (asleep.desired, asleep.reason) == (0, "Idle")
    awake = decide(policy, service(IDLE, demand=replace(NOBODY, idle_seconds=5.0)), slept, NOW)
    assert (awake.desired, awake.reason) == (1, "Demand")


def test_a_change_begins_all_clocks_anew() -> None:
    decision = decide(POLICY, service(SURE, SURE, SURE), ENOUGH, NOW)
    assert decision.state.fewer_since is None
    assert decision.state.changes[0] == Change(NOW, 3, 2, "LoadFell", decision.message)


def test_a_change_that_a_clock_dated_later_than_now_holds_nothing() -> None:
    seen = service(*[reading(0.9, ttft=latencies(0.9), curve=FLAT, waiting_tokens=2e6)] * 3)
    later = State(desired=3, changes=(Change(NOW + 7 * 86_400.0, 2, 3, "PrefillSpeed", ""),))
    known = decide(PROMISED, seen, later, NOW)
    unknown = decide(PROMISED, seen, State(desired=3), NOW)
    assert (known.desired, known.reason) == (unknown.desired, unknown.reason)
    assert known.desired > 3


def test_a_moment_in_which_one_fewer_would_not_do_begins_the_window_anew() -> None:
    busy = decide(POLICY, service(*[reading(0.6, curve=FLAT)] * 3), ENOUGH, NOW)
    assert busy.state.fewer_since is None
    calm = decide(POLICY, service(SURE, SURE, SURE), busy.state, NOW + 15)
    assert (calm.desired, calm.state.fewer_since) == (3, NOW + 15)


def test_a_rise_after_its_window_goes_to_the_least_that_was_wanted_in_it() -> None:
    policy = replace(POLICY, up=Behavior(window_seconds=60.0))
    decision = decide(policy, service(reading(2.0, curve=FLAT)), State(more_since=NOW - 60, more_least=2), NOW)
    assert decision.desired == 2


def test_a_rise_that_steps_cut_short_says_that_it_is_limited() -> None:
    limits = (StepLimit(type="Replicas", value=1, period_seconds=60.0),)
    policy = replace(POLICY, up=Behavior(window_seconds=0.0, limits=limits))
    decision = decide(policy, service(reading(2.0, curve=FLAT)), State(), NOW)
    assert (decision.desired, decision.reason) == (2, "PrefillSpeed")
    assert verdict(decision, "ScalingLimited") == (True, "StepLimit")


def test_a_replica_that_hangs_is_made_up_for_by_one_more_and_no_other() -> None:
    hung = replica(9, LOST, stage="starting", age=1000.0)
    told = [reading(0.7, curve=FLAT)] * 2
    first = decide(POLICY, service(*told, others=[hung], current=3), State(), NOW)
    assert (first.desired, first.reason) == (3, "AsNeeded")
    short = [reading(0.9, curve=FLAT)] * 2
    second = decide(POLICY, service(*short, others=[hung], current=3), State(), NOW)
    assert (second.desired, second.reason) == (4, "PrefillSpeed")
    third = decide(POLICY, service(*short, others=[hung], current=4), second.state, NOW + 15)
    assert third.desired == 4


def test_replicas_that_hang_one_after_the_other_are_not_ordered_without_end() -> None:
    """Three serve, the load needs five, and what waits for want of the others grows for hours."""
    policy, state, ages, trail = replace(POLICY, max_replicas=20), State(desired=3), list[float](), list[int]()
    for turn in range(960):
        busy = reading(1.0, arrivals=2.4, admissions=2.0, waiting=9.0, waiting_tokens=30_000.0 * (1 + turn), curve=FLAT)
        hung = [replica(10 + each, LOST, stage="starting", age=age) for each, age in enumerate(ages)]
        decision = decide(policy, service(busy, busy, busy, others=hung), state, NOW + 15 * turn)
        state, new = decision.state, decision.desired - 3
        ages = [*(age + 15 for age in ages[:new]), *[0.0] * (new - len(ages))]
        trail.append(decision.desired)
    assert sorted(set(trail)) == trail[:1] + trail[-1:] == [5, 6]
    assert verdict(decision, "ScalingLimited") == (True, "ReplicasNotReady")


def test_pods_that_found_no_node_in_time_are_told() -> None:
    waiting = replica(9, LOST, stage="pending", age=181.0)
    decision = decide(POLICY, service(SURE, others=[waiting]), State(), NOW)
    assert verdict(decision, "ScalingLimited") == (True, "InsufficientCapacity")
    early = decide(POLICY, service(SURE, others=[replica(9, LOST, stage="pending", age=179.0)]), State(), NOW)
    assert verdict(early, "ScalingLimited") == (False, "AsWanted")


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (service(IDLE, demand=replace(NOBODY, idle_seconds=899.0)), State()),
        (service(IDLE, demand=replace(NOBODY, idle_seconds=math.nan)), State()),
        (service(IDLE, demand=replace(NOBODY, num_running=1)), State()),
        (service(IDLE, demand=no_demand()), State()),
        (service(LOST, demand=NOBODY), State()),
        (service(reading(0.1), demand=NOBODY), State()),
        (service(others=[replica(0, IDLE, age=899.0)], demand=NOBODY), State()),
        (service(others=[replica(0, LOST, stage="starting")], demand=NOBODY), State()),
        (service(others=[replica(0, LOST, stage="starting")], demand=waits(1)), changed(30.0, 0, 1, "Demand")),
        (service(others=[replica(0, LOST, stage="starting")], demand=no_demand()), changed(30.0, 0, 1, "Demand")),
        (service(IDLE, others=[replica(1, LOST, stage="starting")], demand=NOBODY), State()),
    ],
)
def test_a_replica_that_may_be_needed_keeps_its_service_from_none(seen: Observation, state: State) -> None:
    assert decide(ZERO, seen, state, NOW).desired >= 1


def test_the_last_replica_of_a_service_that_may_go_to_none_is_said_to_wait_for_a_quiet_time() -> None:
    decision = decide(ZERO, service(reading(0.1), demand=NOBODY), State(), NOW)
    assert decision.reason == "Minimum"
    assert decision.message == "the last one goes when nobody has used the service for 900.0 s"


def test_a_quiet_time_shorter_than_what_is_measured_of_is_enough() -> None:
    soon, left = replace(ZERO, idle_seconds=20.0), replace(NOBODY, idle_seconds=25.0)
    last = reading(0.1, running=0.1, quiet_seconds=30.0)
    assert decide(soon, service(last, demand=left), State(), NOW).reason == "Idle"
    for busy in (replace(last, quiet_seconds=15.0), replace(last, quiet_seconds=0.0)):
        assert decide(soon, service(busy, demand=left), State(), NOW).desired == 1
    assert decide(replace(soon, idle_seconds=0.0), service(reading(0.1), demand=left), State(), NOW).desired == 1


def test_nothing_goes_while_a_promise_is_broken_whatever_replicas_would_do_for_it() -> None:
    slow = reading(0.1, ttft=latencies(2.5), curve=FLAT)
    decision = decide(PROMISED, service(*[slow] * 6), ENOUGH, NOW)
    assert (decision.desired, decision.reason) == (6, "PromisedLatency")
    kept = replace(slow, ttft=latencies(0.95))
    assert decide(PROMISED, service(*[kept] * 6), ENOUGH, NOW).desired == 5


def test_a_hundred_that_wait_wake_one_replica() -> None:
    woken = decide(ZERO, service(demand=waits(100)), State(), NOW)
    still = decide(
        ZERO,
        service(others=[replica(0, LOST, stage="starting", age=1.0)], demand=waits(100)),
        woken.state,
        NOW + 1,
    )
    assert (woken.desired, still.desired, len(still.state.changes)) == (1, 1, 1)


def test_a_service_that_may_not_go_to_none_stays_however_idle_it_is() -> None:
    assert decide(POLICY, service(IDLE, demand=NOBODY), ENOUGH, NOW).desired == 1
    assert decide(POLICY, service(current=0, demand=BUSY), State(), NOW).desired == 1
