"""Pods in virtual time: every request is answered once, and what is paid for adds up."""

from __future__ import annotations

import pytest
from support_autoscale import PACE, Always, fleet_settings, load

from sapwood_operator.autoscaling.values import Demand, Reading
from sapwood_tools.replay.autoscale.fleet import Fleet
from sapwood_tools.replay.autoscale.observe import SAMPLE_SECONDS, observe
from sapwood_tools.replay.autoscale.run import Run, play
from sapwood_tools.replay.engine import CacheTooSmall
from sapwood_tools.replay.trace import request

TRACE = load(lambda _: 1.5, seconds=600.0)
UP_AND_DOWN = (2, 2, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 1, 1, 4, 4, 4, 4, 1)


def run(*numbers: int, seconds: float = 60.0) -> Run:
    return play(TRACE, Always(*numbers), fleet_settings(start_seconds=seconds), (2,))


def test_every_request_is_answered_once_by_a_pod_that_was_ready_whatever_the_number_does() -> None:
    played = run(*UP_AND_DOWN)
    assert sorted(each.arrived_at for each in played.answered) == [each.arrival_seconds for each in TRACE]
    assert played.num_held == 0
    for each in played.answered:
        number = int(each.pod.removeprefix("pod-"))
        assert number < 2 or each.arrived_at >= 60.0, (
            "a pod that was asked for later took a request before it was ready"
        )


def test_pod_time_is_that_of_all_pods_from_asked_for_to_gone() -> None:
    played = run(3)
    assert [each.asked for each in played.intervals] == [2, *[3] * 39]
    assert played.pod_seconds == pytest.approx(3 * (600.0 - SAMPLE_SECONDS))
    assert [each.existing for each in run(*UP_AND_DOWN).intervals][12] >= 1, "leaving pods are paid for until they go"


def test_a_replay_comes_out_the_same_again() -> None:
    assert run(*UP_AND_DOWN) == run(*UP_AND_DOWN)


def test_a_pod_is_ready_after_its_start_and_what_it_computes_before_it_is_ready() -> None:
    fleet = Fleet(fleet_settings(start_seconds=30.0), 1)
    for each in load(lambda _: 1.0, seconds=40.0, num_shared=6):
        fleet.send(each)
    fleet.resize(2)
    asked_at = fleet.now
    fleet.advance(asked_at + 29.9)
    assert fleet.num_in("starting") == 1
    fleet.advance(asked_at + 30.0)
    assert fleet.num_in("warming") == 1
    fleet.advance(asked_at + 45.0)
    assert fleet.num_in("ready") == 2
    newcomer = fleet.pods["pod-1"]
    assert newcomer.cache.num_nodes, "it has what prompts begin with"
    assert newcomer.serve(request(fleet.now, 4_096, 1, (*range(6), 91, 92)), fleet.now).cached_tokens >= 6 * 512


def test_a_pod_on_its_way_out_finishes_what_it_has_and_gets_nothing_new() -> None:
    fleet = Fleet(fleet_settings(), 2)
    for number in range(12):
        fleet.send(request(0.1 * number, 4_096, 50, tuple(range(8 * number, 8 * number + 8))))
    fleet.resize(1)
    (leaving,) = (pod for pod in fleet.pods.values() if pod.stage == "leaving")
    num_left = leaving.num_requests
    assert num_left > 0
    assert fleet.asked == 1
    for number in range(12, 16):
        fleet.send(request(0.1 * number, 4_096, 1, tuple(range(8 * number, 8 * number + 8))))
        assert fleet.answered[-1].pod != leaving.name
    fleet.advance(100.0)
    assert leaving.name not in fleet.pods
    assert len(fleet.answered) == 16


def test_a_pod_on_its_way_out_is_taken_back_where_more_are_wanted_again() -> None:
    fleet = Fleet(fleet_settings(), 2)
    for number in range(8):
        fleet.send(request(0.0, 4_096, 50, tuple(range(8 * number, 8 * number + 8))))
    fleet.resize(1)
    fleet.resize(2)
    assert (fleet.asked, fleet.num_in("ready"), len(fleet.pods)) == (2, 2, 2)


def test_who_is_not_ready_goes_first() -> None:
    fleet = Fleet(fleet_settings(), 2)
    fleet.resize(3)
    fleet.advance(10.0)
    fleet.resize(2)
    assert sorted(fleet.pods) == ["pod-0", "pod-1"]


def test_requests_are_held_while_no_pod_is_ready_and_their_wait_counts() -> None:
    fleet = Fleet(fleet_settings(warm_seconds=0.0), 1)
    fleet.resize(0)
    fleet.send(request(5.0, 1_000, 1, (1, 2)))
    assert isinstance(demand := observe(fleet, 15.0).demand, Demand)
    assert demand.num_waiting == 1
    fleet.resize(1)
    fleet.advance(100.0)
    (answered,) = fleet.answered
    assert answered.ttft_seconds == pytest.approx(fleet.pods["pod-1"].created_at + 60.0 - 5.0 + 0.2)


def test_a_prompt_that_fits_nowhere_is_told() -> None:
    with pytest.raises(CacheTooSmall):
        play(TRACE, Always(1), fleet_settings(capacity_blocks=4), (1,))


# --- what is seen of it


def test_what_is_seen_of_a_steady_load_is_the_load() -> None:
    controller = Always(2)
    play(TRACE, controller, fleet_settings(), (2,))
    seen = controller.seen[-1]
    readings = [each.reading for each in seen.replicas]
    assert all(isinstance(each, Reading) for each in readings)
    told = [each for each in readings if isinstance(each, Reading)]
    arrived = [each for each in TRACE if 525.0 < each.arrival_seconds <= 585.0]
    assert sum(each.arrivals for each in told) == pytest.approx(len(arrived) / 60.0, abs=0.05)
    assert sum(each.prompt_tokens for each in told) == pytest.approx(4_096 * len(arrived) / 60.0, rel=0.05)
    assert sum(each.cached_tokens for each in told) == pytest.approx(512 * len(arrived) / 60.0, rel=0.05)
    assert sum(sum(each.ttft.counts) for each in told) == pytest.approx(len(arrived), abs=3)
    assert [each.window_seconds for each in told] == [60.0, 60.0]
    assert all(each.cost == PACE.cost() and each.curve is not None for each in told)
    assert (seen.current, len(seen.replicas)) == (2, 2)
