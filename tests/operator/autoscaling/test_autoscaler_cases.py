"""Faults of other autoscalers, by the numbers of their cases: what this one does instead."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support_scaling import (
    FLAT,
    IDLE,
    NOW,
    World,
    latencies,
    no_demand,
    reading,
    replica,
    service,
    verdict,
)

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.state import from_status, to_status
from sapwood_operator.autoscaling.values import Demand, NoReading, Reading, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy

POLICY = ScalingPolicy(min_replicas=1, max_replicas=20)
HOUR = 3600


@pytest.mark.parametrize(
    "told",
    [
        NoReading("the answer held no series"),
        NoReading("HTTP 500"),
        reading(math.nan),
        reading(math.inf),
        reading(-1.0),
        reading(0.0, window_seconds=0.0),
    ],
    ids=["empty", "error", "nan", "infinite", "negative", "no window"],
)
def test_g01_no_data_is_not_zero(told: Reading | NoReading) -> None:
    state = State(fewer_since=NOW - HOUR)
    for turn in range(20):
        decision = decide(POLICY, service(*[told] * 5), state, NOW + 15 * turn)
        assert (decision.desired, decision.reason) == (5, "MetricsMissing")
        assert verdict(decision, "MetricsAvailable") == (False, "MetricsMissing")
        state = decision.state
    later = decide(replace(POLICY, fallback_replicas=7), service(*[told] * 5), state, NOW + 300)
    assert (later.desired, later.reason) == (7, "Fallback")


def test_g03_pods_that_load_are_not_ordered_again() -> None:
    # Load for four on two: they compute all that they can, and what arrives more waits, ever longer.
    world = World(policy=POLICY, replicas=2, arrivals=15.0, generation_tokens=0.0, most_hits=0.0, start_seconds=300.0)
    world.tick_seconds, world.waiting_tokens = 15.0, 1000.0
    assert world.run(285.0) == [4] * 19
    assert world.waiting_tokens > 100_000


def test_g05_a_busy_replica_that_is_lost_is_not_idle() -> None:
    busy = reading(0.75, curve=FLAT)
    state = State(fewer_since=NOW - HOUR)
    lost = decide(POLICY, service(busy, busy, NoReading("timeout")), state, NOW)
    assert lost.desired == 3
    counted = decide(POLICY, service(*[busy] * 9, NoReading("timeout")), state, NOW)
    assert counted.desired == 10
    assert counted.inputs["prompt_tokens_per_second"] == pytest.approx(10 * 15_000)
    assert counted.state.fewer_since is None


def test_g07_a_reset_that_a_reading_could_not_make_sense_of_moves_nothing() -> None:
    # That counters become no negative rates is the readings' work; whatever gets here all the same is no reading.
    state = State(fewer_since=NOW - HOUR)
    for rate in (-3.1, 18446744073709526456.0):
        decision = decide(POLICY, service(reading(0.5), reading(0.5, prompt_tokens=rate)), state, NOW)
        assert (decision.desired, decision.reason) == (2, "MetricsMissing")


def test_g09_a_restart_forgets_nothing_and_drops_nothing() -> None:
    told = [reading(0.3, curve=FLAT)] * 7
    before = decide(POLICY, service(*told), State(desired=7, fewer_since=NOW - 200), NOW).state
    state = from_status(to_status(before))
    first = decide(POLICY, service(*[NoReading("one sample")] * 7), state, NOW + 15)
    assert first.desired == 7
    state, wanted = first.state, []
    for turn in range(21):
        decision = decide(POLICY, service(*told), state, NOW + 30 + 15 * turn)
        wanted.append(decision.desired)
        state = from_status(to_status(decision.state))
    assert wanted == [*[7] * 20, 6]


def test_g09_a_restart_without_any_memory_keeps_what_there_is() -> None:
    assert decide(POLICY, service(*[reading(0.3)] * 7), State(), NOW).desired == 7


def test_g11_the_sum_of_all_that_replicas_say_decides() -> None:
    """That the leader alone writes is the shell's part."""
    uneven = service(reading(1.3, curve=FLAT), reading(0.1, curve=FLAT))
    assert decide(POLICY, uneven, State(), NOW).desired == 2
    more = service(reading(1.3, curve=FLAT), reading(0.5, curve=FLAT))
    assert decide(POLICY, more, State(), NOW).desired == 3


def test_g13_a_promise_out_of_reach_keeps_no_replica() -> None:
    # A prompt alone takes 2.2 s, promised are 2 s.
    promised = replace(POLICY, ttft_p90_seconds=2.0, min_replicas=1)
    slow = reading(0.11, arrivals=0.05, ttft=latencies(2.3, 3.0), curve=FLAT)
    state, seen = State(fewer_since=NOW - HOUR), [slow] * 3
    decision = decide(promised, service(*seen), state, NOW)
    assert (decision.desired, decision.reason) == (2, "LoadFell")
    assert verdict(decision, "ScalingLimited") == (True, "PromiseOutOfReach")
    message = next(each.message for each in decision.verdicts if each.type == "ScalingLimited")
    assert message.startswith("slo.ttftP90 is 2.0 s, and a request alone takes 2.2 s")


def test_g13_without_demand_the_service_goes_to_its_minimum() -> None:
    promised = replace(POLICY, ttft_p90_seconds=2.0)
    quiet = Demand(num_waiting=0, num_running=0, idle_seconds=500.0)
    state, replicas = State(fewer_since=NOW - HOUR), 4
    for turn in range(100):
        told = [replace(IDLE, ttft=latencies(2.2))] * replicas
        decision = decide(promised, service(*told, demand=quiet), state, NOW + 15 * turn)
        state, replicas = decision.state, decision.desired
    assert replicas == 1


def test_no_gateway_and_no_replica_is_no_reason_to_start_or_stop_any() -> None:
    zero = replace(POLICY, min_replicas=0, scale_to_zero=True)
    starting = service(others=[replica(0, NoReading("it starts"), stage="starting")], demand=no_demand())
    assert decide(zero, starting, State(), NOW).desired == 1
