"""What the whole service has to do, from what its replicas say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support_scaling import (
    BUSY,
    COST,
    IDLE,
    LOST,
    reading,
    replica,
    service,
)

from sapwood_operator.autoscaling.load import Load, hear, load_of, ninth_tenth_of, ninth_tenths_of
from sapwood_operator.autoscaling.values import Demand, Latencies, Observation, StepCost


def load(observation: Observation) -> Load:
    """Add up."""
    return load_of(hear(observation), observation.demand)


def test_a_replica_that_is_missed_is_taken_for_as_busy_as_the_busiest() -> None:
    found = load(service(reading(0.2), reading(0.4), reading(0.9), reading(0.1), LOST))
    assert found.prompt_tokens == pytest.approx((0.2 + 0.4 + 0.9 + 0.1 + 0.9) * 20_000)
    assert found.coverage == 0.8


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize(
    "name",
    [
        *("arrivals", "prompt_tokens", "cached_tokens", "generation_tokens", "running", "waiting", "waiting_tokens"),
        *("capacity_tokens", "pinned_tokens", "evicted_tokens", "window_seconds"),
    ],
)
def test_a_reading_with_a_number_that_cannot_be_is_none(name: str, wrong: float) -> None:
    found = load(service(reading(0.5), reading(0.5, **{name: wrong})))
    assert (found.num_reporting, found.num_missing) == (1, 1)
    assert found.prompt_tokens == pytest.approx(2 * 10_000)


def test_a_replica_that_got_ready_just_now_is_not_missed() -> None:
    found = load(service(reading(), others=[replica(9, LOST, age=15.0)]))
    assert (found.num_ready, found.num_reporting, found.num_missing, found.coverage) == (2, 1, 0, 1.0)


def test_what_moved_from_a_replica_to_a_newcomer_counts_once() -> None:
    """Of 75 seconds the newcomer took all for the last 15, and the other one all before."""
    former = replace(reading(0.8 * 60 / 75), window_seconds=75.0)
    newcomer = replace(reading(0.8), window_seconds=15.0)
    found = load(service(former, others=[replica(9, newcomer, age=15.0)]))
    assert found.prompt_tokens == pytest.approx(16_000)
    seen_late = load(service(former, others=[replica(9, newcomer, age=5000.0)]))
    assert seen_late.prompt_tokens == pytest.approx(28_800), "it was there all the time: nothing says that load moved"


def test_what_a_leaving_replica_got_will_come_to_the_others() -> None:
    found = load(service(reading(0.5), others=[replica(9, reading(0.3), stage="leaving")]))
    assert found.num_ready == 1
    assert found.prompt_tokens == pytest.approx(16_000)


def test_what_replicas_do_before_they_are_ready_counts_for_nothing() -> None:
    found = load(service(reading(0.5), others=[replica(9, reading(0.3), stage="warming")]))
    assert found.prompt_tokens == pytest.approx(10_000)


def test_while_requests_wait_what_arrives_counts_and_not_what_is_admitted() -> None:
    flooded = reading(1.0, arrivals=4.0, waiting=50.0, waiting_tokens=1e5, admissions=2.0)
    # 20,000 tokens a second of two requests a second were admitted; four arrive.
    assert load(service(flooded)).prompt_tokens == pytest.approx(40_000)


def test_requests_that_gateways_hold_wait_too() -> None:
    held = Demand(num_waiting=3, num_running=0, idle_seconds=0.0)
    found = load(service(reading(0.5), demand=held))
    assert found.waiting_tokens == pytest.approx(3 * 5000)
    assert found.in_flight == 4.0


def test_costs_that_make_no_sense_do_not_count() -> None:
    absurd = StepCost(prefill_token=math.nan, prefill_key=0.0, decode=0.0, decode_key=0.0, base=0.0)
    assert load(service(reading(), reading(cost=absurd))).cost == COST
    assert load(service(reading(cost=absurd))).cost is None


def test_prompt_tokens_that_cost_nothing_count_only_where_no_replica_knows_better() -> None:
    nothing = replace(COST, prefill_token=0.0)
    assert load(service(reading(), reading(cost=nothing))).cost == COST
    assert load(service(reading(cost=nothing))).cost == nothing
    assert load(service(reading(cost=replace(nothing, base=0.0)))).cost is None


def test_a_service_is_quiet_since_the_last_replica_had_work() -> None:
    assert load(service(replace(IDLE, quiet_seconds=30.0), replace(IDLE, quiet_seconds=15.0))).quiet_seconds == 15.0
    assert load(service(replace(IDLE, quiet_seconds=30.0), LOST)).quiet_seconds == 0.0
    assert load(service()).quiet_seconds == 0.0


@pytest.mark.parametrize("number", [10.0, 100.0, 10_000.0])
def test_the_fewer_were_measured_the_less_a_percentile_surely_is(number: float) -> None:
    told = Latencies((1.0, 2.0, math.inf), (0.9 * number, 0.1 * number, 0.0))
    surely = (0.9 - 2 * 0.3 / math.sqrt(number)) / 0.9
    assert list(ninth_tenths_of([told])) == pytest.approx([1.0, surely])


def test_a_service_is_idle_only_where_every_ready_replica_says_so() -> None:
    assert load(service(IDLE, IDLE)).is_idle
    assert not load(service(IDLE, reading(0.1))).is_idle
    assert not load(service(IDLE, LOST)).is_idle
    assert not load(service(IDLE, demand=Demand(num_waiting=1, num_running=0, idle_seconds=0.0))).is_idle
    assert load(service(IDLE, demand=BUSY)).is_idle


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ([], None),
        ([Latencies()], None),
        ([Latencies((1.0, math.inf), (0.0, 0.0))], None),
        ([Latencies((1.0, 2.0, math.inf), (80.0, 20.0, 0.0))], 1.5),
        ([Latencies((1.0, 2.0, math.inf), (40.0, 0.0, 0.0)), Latencies((1.0, 2.0, math.inf), (40.0, 20.0, 0.0))], 1.5),
        ([Latencies((1.0, 2.0, math.inf), (0.0, 0.0, 5.0))], 2.0),
        ([Latencies((1.0, math.inf), (5.0, 0.0)), Latencies((2.0, math.inf), (5.0, 0.0))], None),
        ([Latencies((1.0, math.inf), (5.0, math.nan))], None),
        ([Latencies((1.0, math.inf), (5.0, -1.0))], None),
        ([Latencies((math.nan, math.inf), (5.0, 0.0))], None),
        ([Latencies((1.0, math.inf), (5.0,))], None),
    ],
)
def test_the_90th_percentile_is_read_from_all_histograms_together(told: list[Latencies], seconds: float | None) -> None:
    assert ninth_tenth_of(told) == (None if seconds is None else pytest.approx(seconds))
