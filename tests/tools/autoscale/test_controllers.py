"""The rules that replays compare with do what their authors wrote, and the operator's decision is asked as it is."""

from __future__ import annotations

import pytest
from support_autoscale import fleet_settings, load, observation, reading

from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy
from sapwood_tools.replay.autoscale.controllers import (
    CurrentHit,
    HpaOnQueue,
    KedaOnKv,
    Sapwood,
    SloRatio,
    Targets,
    p90,
    rules,
)
from sapwood_tools.replay.autoscale.hpa import Bounds, Stabilised, wanted
from sapwood_tools.replay.autoscale.run import play

BOUNDS = Bounds(least=1, most=16)
POLICY = ScalingPolicy(max_replicas=8, ttft_p90_seconds=10.0, down=Behavior(window_seconds=60.0))


# --- the HPA


@pytest.mark.parametrize(
    ("values", "num_unready", "expected"),
    [
        ([10.0, 10.0], 0, 2),
        ([10.9, 10.9], 0, 2),
        ([12.0, 12.0], 0, 3),
        ([5.0, 5.0, 5.0, 5.0], 0, 2),
        ([0.0, 0.0], 0, 0),
        ([20.0, 20.0], 2, 4),
        ([30.0, 30.0], 2, 6),
        ([5.0, 5.0], 2, 1),
        ([], 2, 2),
    ],
)
def test_the_hpa_wants_as_many_as_bring_the_average_to_the_target(
    values: list[float], num_unready: int, expected: int
) -> None:
    assert wanted(values, num_unready, 10.0, len(values) + num_unready) == expected


def test_the_hpa_rises_by_four_or_twice_at_once_and_falls_to_the_most_of_five_minutes() -> None:
    hpa = Stabilised(BOUNDS)
    assert hpa.settle(16, 1, 0.0) == 5
    assert hpa.settle(16, 5, 15.0) == 10
    assert hpa.settle(99, 10, 30.0) == 16
    assert hpa.settle(2, 16, 45.0) == 16
    assert hpa.settle(2, 16, 329.0) == 16
    assert hpa.settle(2, 16, 331.0) == 2
    assert hpa.settle(0, 2, 700.0) == 1


def test_the_hpa_on_the_queue_follows_waiting_requests() -> None:
    hpa = HpaOnQueue(BOUNDS, 2.0)
    assert hpa.desired(observation([reading(waiting=6.0), reading(waiting=2.0)]), 0.0) == 4
    assert hpa.desired(observation([reading(waiting=6.0), reading(waiting=2.0)], starting=2), 15.0) == 4


def test_keda_on_kv_follows_what_running_requests_hold() -> None:
    keda = KedaOnKv(BOUNDS, 0.5)
    assert keda.desired(observation([reading(pinned_share=0.9), reading(pinned_share=0.7)]), 0.0) == 4


# --- planners and laws


def test_the_planner_sizes_prefill_by_what_is_not_hit_now() -> None:
    planner = CurrentHit(BOUNDS, 0.8)
    cold = observation([reading(prompt_tokens=8_000.0)])
    assert planner.desired(cold, 0.0) == 2
    half = observation([reading(prompt_tokens=12_000.0, cached_tokens=6_000.0)] * 2)
    assert CurrentHit(BOUNDS, 0.8).desired(half, 0.0) == 3


@pytest.mark.parametrize(("ttft", "expected"), [(5.0, 4), (3.9, 4), (9.0, 7), (60.0, 8)])
def test_the_law_of_the_slo_ratio_rests_within_its_band(ttft: float, expected: int) -> None:
    law = SloRatio(BOUNDS, 10.0, 0.4, 0.55)
    assert law.desired(observation([reading(ttft=ttft)] * 4), 0.0) == expected


def test_the_law_goes_down_by_one_once_its_window_is_over() -> None:
    law = SloRatio(BOUNDS, 10.0, 0.4, 0.55)
    calm = observation([reading(ttft=1.0)] * 4)
    assert [law.desired(calm, at) for at in (0.0, 15.0, 301.0)] == [4, 4, 3]
    assert p90([reading(ttft=2.0).ttft]) == pytest.approx(1.98)


# --- the operator's own


def test_a_constant_load_is_not_followed_up_and_down() -> None:
    trace = load(lambda _: 2.6, seconds=1_500.0)
    played = play(trace, Sapwood(POLICY), fleet_settings(), (3,) * 8)
    asked = [each.asked for each in played.intervals]
    assert set(asked[40:]) <= {3, 4, 5}
    assert played.num_changes <= 4


def test_a_step_is_met_within_its_start_and_left_again() -> None:
    trace = load(lambda at: 5.0 if 300.0 <= at < 900.0 else 1.1, seconds=2_400.0)
    controller = Sapwood(POLICY)
    asked = [each.asked for each in play(trace, controller, fleet_settings(), (2,) * 8).intervals]
    assert max(asked[:20]) <= 3
    assert 5 <= max(asked[20:28]) <= 8, "within two minutes of the step"
    assert asked[100] <= 3, "within ten minutes of the fall: the readings' window, then one at a time"
    assert asked[-1] <= 2
    assert len(controller.reasons) == len(asked) - 8


@pytest.mark.parametrize("name", rules(POLICY, Targets(), 10.0))
def test_every_controller_keeps_to_the_bounds_of_the_policy_and_comes_out_the_same_again(name: str) -> None:
    trace = load(lambda at: 9.0 if at > 100.0 else 0.2, seconds=240.0)
    first, again = (play(trace, rules(POLICY, Targets(), 10.0)[name](), fleet_settings(), (2,)) for _ in range(2))
    assert first == again
    assert all(1 <= each.asked <= 8 for each in first.intervals)
    assert len(first.answered) == len(trace)
