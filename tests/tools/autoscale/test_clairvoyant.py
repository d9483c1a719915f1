"""The clairvoyant: never fewer than keep the promise where so many would, never more than that takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support_autoscale import PACE, fleet_settings, load

from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_tools.replay.autoscale.clairvoyant import Future, Plan, ahead, mend, needed
from sapwood_tools.replay.autoscale.compare import Scene, foresee
from sapwood_tools.replay.autoscale.score import PROMISE_SECONDS, percentiles
from sapwood_tools.replay.trace import TraceRequest, request

FUTURE = Future(pace=PACE, capacity_blocks=2_000, ttft_seconds=10.0, least=1, most=8)


def step(at: float) -> float:
    """One replica's work, then four replicas', then one's again."""
    return 4.5 if 300.0 <= at < 600.0 else 1.1


def plan(trace: Sequence[TraceRequest]) -> Sequence[int]:
    return needed(trace, FUTURE).numbers


def test_a_constant_load_needs_the_same_number_nearly_always() -> None:
    numbers = plan(load(lambda _: 2.6, seconds=600.0))
    assert set(numbers) <= {2, 3}
    assert len(numbers) == 40


def test_it_rises_before_a_step_arrives_and_falls_after_it() -> None:
    numbers = plan(load(step, seconds=900.0))
    assert max(numbers[:15]) <= 2
    assert min(numbers[20:38]) >= 3
    assert numbers[-1] == 1
    asked = ahead(numbers, 60.0, 0.0)
    assert asked[15] >= 3, "a minute before the step, so that they are ready then"
    assert all(most >= number for most, number in zip(asked, numbers, strict=True))


def test_a_valley_shorter_than_a_start_is_not_left() -> None:
    assert ahead([4, 1, 1, 4, 1, 1], 45.0, 0.0) == [4, 4, 4, 4, 1, 1]
    assert ahead([4, 1, 1, 4], 0.0, 0.0) == [4, 1, 1, 4]


def test_what_was_needed_within_the_window_on_the_way_down_is_kept() -> None:
    assert ahead([4, 1, 1, 1, 1], 0.0, 30.0) == [4, 4, 4, 1, 1]
    assert ahead([4, 1, 1, 1, 4], 0.0, 30.0) == [4, 4, 4, 1, 4]


def test_an_overload_that_no_number_keeps_gets_the_most() -> None:
    found = needed(load(lambda _: 30.0, seconds=120.0), FUTURE)
    assert set(found.numbers) == {8}
    assert not any(found.is_kept[4:])


def test_where_no_number_keeps_a_minute_it_is_the_fewest_with_the_fewest_late() -> None:
    """Prompts that are late even alone: a second replica makes none of them early."""
    long = [request(20.0 * number, 60_000, 1, tuple(range(118 * number, 118 * number + 118))) for number in range(9)]
    found = needed(long, FUTURE)
    assert set(found.numbers) == {1}
    assert not any(found.is_kept)


def test_the_end_of_a_trace_is_no_reason_for_fewer() -> None:
    numbers = plan(load(lambda _: 4.5, seconds=600.0))
    assert set(numbers[-4:]) == {numbers[-5]}


def test_minutes_that_were_late_get_one_more_from_a_minute_before() -> None:
    assert mend(Plan([1] * 12, [True] * 12), [60.0], FUTURE).numbers == [2] * 8 + [1] * 4
    assert mend(Plan([8] * 4, [True] * 4), [0.0], FUTURE).numbers == [8] * 4


def test_minutes_that_no_number_keeps_get_none() -> None:
    assert mend(Plan([1] * 12, [True] * 4 + [False] * 8), [60.0], FUTURE).numbers == [1] * 12


@pytest.mark.parametrize("rate", [lambda _: 2.6, step])
def test_its_run_keeps_the_promise_in_every_minute(rate: object) -> None:
    assert callable(rate)
    trace = load(rate, seconds=900.0)
    scene = Scene(
        policy=ScalingPolicy(max_replicas=8, ttft_p90_seconds=10.0),
        ttft_seconds=10.0,
        fleet=fleet_settings(),
        opening_seconds=60.0,
    )
    foreseen = foresee(trace, scene)
    assert all(p90 <= 10.0 for _, p90 in percentiles(foreseen.run, PROMISE_SECONDS, 0.9))
    assert foreseen.opening(60.0) == foreseen.asked[:4]
