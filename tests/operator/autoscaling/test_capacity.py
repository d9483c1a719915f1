"""What so many replicas would do, and which bound breaks first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support_scaling import CAPACITY, COST, NOW, reading, service

from sapwood_operator.autoscaling.capacity import Bound, Capacity, wait_p90
from sapwood_operator.autoscaling.situation import situation_of
from sapwood_operator.autoscaling.values import Observation, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy

POLICY = ScalingPolicy(max_replicas=16)


def capacity(observation: Observation, policy: ScalingPolicy = POLICY) -> Capacity:
    """Return what is foretold of it, long after any change."""
    return situation_of(policy, observation, State(), NOW).capacity


def test_half_of_the_prefill_speed_on_each_of_two_is_all_of_it_on_one() -> None:
    found = capacity(service(reading(0.5), reading(0.5), by_prefix=False))
    # Round robin and no curve: the hit ratio stays as it is.
    assert [found.at(number).prefill_use for number in (1, 2, 4)] == pytest.approx([1.0, 0.5, 0.25])


def test_decoding_takes_speed_from_prompts() -> None:
    found = capacity(service(reading(0.3, generation_tokens=400.0)))
    # A decode takes a millisecond: four tenths of the time are left out.
    assert found.at(1).prefill_use == pytest.approx(0.3 / 0.6)
    assert found.at(1).itl_seconds == pytest.approx(0.01 / (1 - 0.4 - 0.3))
    assert found.at(1).single_itl_seconds == pytest.approx(0.011)


def test_what_nobody_can_do_is_infinite_and_not_a_fault() -> None:
    flooded = capacity(service(reading(0.5, generation_tokens=2000.0)))
    forecast = flooded.at(1)
    assert (forecast.prefill_use, forecast.itl_seconds, forecast.ttft_p90_seconds) == (math.inf, math.inf, math.inf)


def test_without_costs_what_is_computed_is_unknown_unless_nothing_is() -> None:
    unknown = capacity(service(reading(0.5, cost=None))).at(1)
    assert (unknown.prefill_use, unknown.ttft_p90_seconds, unknown.itl_seconds) == (None, None, None)
    nothing = capacity(service(reading(0.0, cost=None))).at(1)
    assert nothing.prefill_use == 0.0


def test_a_prompt_whose_tokens_cost_nothing_costs_a_step() -> None:
    """Two requests a second, and 10 ms a step."""
    nothing = replace(COST, prefill_token=0.0)
    found = capacity(service(*[reading(0.1, waiting_tokens=9.0, cost=nothing)] * 2))
    assert found.at(2).prefill_use == pytest.approx(0.02)
    assert found.at(1).prefill_use == pytest.approx(0.04)
    nothing_missed = capacity(service(reading(0.1, cached_tokens=2000.0, cost=nothing))).at(1)
    assert nothing_missed.prefill_use == 0.0


@pytest.mark.parametrize(
    ("told", "changes", "bound"),
    [
        (reading(0.5), {}, None),
        (reading(0.81), {}, "PrefillSpeed"),
        (reading(0.5), {"ttft_p90_seconds": 1.0}, "TimeToFirstToken"),
        (reading(0.2), {"ttft_p90_seconds": 1.0}, None),
        (reading(0.5, waiting=9.0, waiting_tokens=400_000.0), {}, "TimeToFirstToken"),
        (reading(0.5, waiting=9.0, waiting_tokens=200_000.0), {}, None),
        (reading(0.1, pinned_tokens=0.86 * CAPACITY), {}, "KvMemory"),
        (reading(0.1, generation_tokens=500.0), {"itl_p90_seconds": 0.02}, "DecodeSpeed"),
        (reading(0.1, generation_tokens=300.0), {"itl_p90_seconds": 0.02}, None),
    ],
)
def test_a_bound_breaks_where_the_load_exceeds_it(told: object, changes: dict[str, float], bound: Bound | None) -> None:
    observation = service(told, by_prefix=False)  # type: ignore[arg-type]  # a reading
    assert capacity(observation, replace(POLICY, **changes)).breaks(1) == bound  # type: ignore[arg-type]  # floats


def test_a_margin_makes_every_bound_narrower() -> None:
    found = capacity(service(reading(0.7)))
    assert (found.breaks(1), found.breaks(1, 0.85)) == (None, "PrefillSpeed")


def test_no_replica_serves_no_load() -> None:
    assert capacity(service(reading(0.1))).breaks(0) == "PrefillSpeed"


@pytest.mark.parametrize(("promised", "bound"), [(0.5, None), (0.51, None), (1.5, "TimeToFirstToken")])
def test_a_promise_that_a_request_alone_cannot_meet_asks_for_nothing(promised: float, bound: Bound | None) -> None:
    # 10,000 tokens a prompt, half of them found: half a second to compute, and a step's base.
    found = capacity(service(reading(0.6, arrivals=1.2)), replace(POLICY, ttft_p90_seconds=promised))
    assert found.at(1).alone_seconds == pytest.approx(0.51)
    assert found.breaks(1) == bound


def test_requests_wait_longer_the_busier_replicas_are_and_shorter_the_more_there_are() -> None:
    waits = [wait_p90(1.0, use, 1.0) for use in (0.0, 0.05, 0.3, 0.6, 0.9, 1.0)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.0, math.inf)
    assert wait_p90(1.0, 0.9, 4.0) < wait_p90(1.0, 0.9, 2.0) < wait_p90(1.0, 0.9, 1.0)


def test_one_server_keeps_nine_tenths_waiting_no_longer_than_theory_says() -> None:
    # M/M/1: P(wait > t) = use * exp(-(1 - use) * t / service).
    assert 0.8 * math.exp(-0.2 * wait_p90(1.0, 0.8, 1.0)) == pytest.approx(0.1)


def test_a_line_that_the_promise_has_room_for_is_not_to_be_caught_up() -> None:
    """Four tenths of what is promised beyond a request's own time: 12 s of 10,000 tokens a second."""
    flooded = service(reading(0.9, waiting=9.0, waiting_tokens=100_000.0))
    unpromised = capacity(flooded, ScalingPolicy(max_replicas=8))
    assert unpromised.at(1).catch_up_seconds == pytest.approx(100.0)
    promised = capacity(flooded, ScalingPolicy(max_replicas=8, ttft_p90_seconds=30.0))
    assert promised.at(1).catch_up_seconds == 0.0
    own = promised.at(1).own_seconds
    assert own is not None
    longer = capacity(service(reading(0.9, waiting=9.0, waiting_tokens=150_000.0)), promised.policy)
    assert longer.at(1).catch_up_seconds == pytest.approx((150_000.0 - 4_000.0 * (30.0 - own)) / 1_000.0)


def test_on_fewer_replicas_slower_streams_pin_more() -> None:
    found = capacity(service(reading(0.1, generation_tokens=300.0), reading(0.1, generation_tokens=300.0)))
    both, one = found.at(2), found.at(1)
    assert both.kv_use is not None
    assert one.kv_use is not None
    assert one.kv_use > 2 * both.kv_use
