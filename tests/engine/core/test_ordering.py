"""The order of every policy, and how long each may let a request wait."""

from __future__ import annotations

import gc
from typing import get_args

import pytest
from support_scheduling import request

from sapwood_contract.launch import SchedulerPolicy
from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.ordering import Waiting, WaitingQueue
from sapwood_engine.core.request import Request
from sapwood_engine.core.sequence import Sequence

PAGE_SIZE = 4
POLICIES: tuple[SchedulerPolicy, ...] = get_args(SchedulerPolicy)


class Line:
    """A queue and the sequences in it, by name."""

    def __init__(self, policy: SchedulerPolicy, *, max_overtaken: int = 1000, ttft_target: float = 10.0) -> None:
        config = SchedulerConfig(
            policy=policy, max_overtaken=max_overtaken, ttft_target_seconds=ttft_target, max_step_tokens=100
        )
        self.queue = WaitingQueue(config, first_page_tokens=PAGE_SIZE)
        self.arrivals = 0

    def wait(self, new: Request, *, cached: int = 0, at: float = 0.0) -> Sequence:
        sequence = Sequence(new, arrival=self.arrivals, arrived_at=at, max_output=new.stop.max_tokens)
        self.arrivals += 1
        self.queue.push(sequence, cached_tokens=cached)
        return sequence

    def start_next(self) -> str:
        """Admit whoever comes first."""
        taken = self.queue.take()
        assert taken is not None
        self.queue.started(taken[0])
        self.queue.end_pass()
        return taken[0].request.request_id

    def order(self) -> list[str]:
        """Everybody, in the order of one pass that admits nobody."""
        names = []
        while (taken := self.queue.take()) is not None:
            names.append(str(taken[0].request.request_id))
        self.queue.end_pass()
        return names


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pass_shows_every_waiting_request_once_and_a_second_pass_the_same(policy: SchedulerPolicy) -> None:
    line = Line(policy)
    for index in range(20):
        line.wait(request(str(index), [index % 3, index], priority=index % 4), cached=index % 2)
    first = line.order()
    assert sorted(first, key=int) == [str(index) for index in range(20)]
    assert line.order() == first


def test_fcfs_goes_by_arrival_also_for_who_comes_back() -> None:
    line = Line("fcfs")
    first = line.wait(request("first", [1]))
    line.wait(request("second", [2]))
    line.queue.started(first)
    line.queue.stopped(first)
    line.queue.push(first, cached_tokens=0)
    assert line.order() == ["first", "second"]


def test_lpm_goes_by_cached_tokens_then_arrival() -> None:
    line = Line("lpm")
    line.wait(request("cold", [1]))
    line.wait(request("warm", [2]), cached=8)
    line.wait(request("as warm", [3]), cached=8)
    assert line.order() == ["warm", "as warm", "cold"]


def test_a_look_up_anew_moves_a_request_whose_prefix_was_computed_meanwhile() -> None:
    line = Line("lpm")
    line.wait(request("a", [1]))
    line.wait(request("b", [2]))
    line.queue.refresh(lambda sequence: 8 if sequence.request.request_id == "b" else 0, count=16)
    assert line.order() == ["b", "a"]


def test_look_ups_go_round_however_long_the_queue_is() -> None:
    line = Line("lpm")
    for index in range(50):
        line.wait(request(str(index), [index]))
    seen: list[str] = []

    def look_up(sequence: Sequence) -> int:
        seen.append(str(sequence.request.request_id))
        return 0

    for _ in range(5):
        line.queue.refresh(look_up, count=10)
    assert sorted(seen, key=int) == [str(index) for index in range(50)]


def test_dfs_weight_visits_the_heaviest_subtree_first_and_keeps_its_branches_together() -> None:
    line = Line("dfs-weight")
    line.wait(request("lonely", [9, 9, 9, 9, 1]))
    line.wait(request("left 1", [1, 1, 1, 1, 5, 1]))
    line.wait(request("right", [1, 1, 1, 1, 7, 1]))
    line.wait(request("left 2", [1, 1, 1, 1, 5, 2]))
    assert line.order() == ["left 1", "left 2", "right", "lonely"]


def test_lof_takes_the_longest_output_first() -> None:
    line = Line("lof")
    line.wait(request("short", [1], max_tokens=2))
    line.wait(request("long", [2], max_tokens=20))
    assert line.order() == ["long", "short"]


def test_random_is_a_permutation_that_the_seed_decides() -> None:
    def order(seed: int) -> list[str]:
        queue = WaitingQueue(SchedulerConfig(policy="random", seed=seed), first_page_tokens=PAGE_SIZE)
        line = Line("random")
        line.queue = queue
        for index in range(30):
            line.wait(request(str(index), [index]))
        return line.order()

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != [str(index) for index in range(30)]


def test_routing_key_takes_the_key_that_most_running_requests_have() -> None:
    line = Line("routing-key")
    line.wait(request("a", [1], routing_key="x"))
    b = line.wait(request("b", [2], routing_key="y"))
    assert line.order() == ["a", "b"]
    line.queue.started(b)
    line.wait(request("c", [3], routing_key="y"))
    assert line.order() == ["c", "a"]
    line.queue.stopped(b)
    assert line.order() == ["a", "c"]


def test_priority_takes_the_highest_number_first() -> None:
    line = Line("priority")
    line.wait(request("low", [1], priority=-1))
    line.wait(request("high", [2], priority=1))
    line.wait(request("normal", [3]))
    assert line.order() == ["high", "normal", "low"]


def test_sapwood_prefers_a_hit_until_the_other_has_waited_longer_than_the_hit_is_worth() -> None:
    # 100 cached tokens are worth 10 * 100 / (100 + 100) = 5 s.
    line = Line("sapwood", ttft_target=10.0)
    line.wait(request("cold", [1]), at=0.0)
    line.wait(request("warm, soon after", [2]), cached=100, at=4.9)
    line.wait(request("warm, too late", [3]), cached=100, at=5.1)
    assert line.order() == ["warm, soon after", "cold", "warm, too late"]


def test_sapwood_lets_nobody_overtake_who_arrived_a_target_later() -> None:
    line = Line("sapwood", ttft_target=10.0)
    line.wait(request("cold", [1]), at=0.0)
    line.wait(request("warm", [2]), cached=10**9, at=10.1)
    assert line.order() == ["cold", "warm"]


def test_sapwood_counts_a_level_of_priority_as_one_target_waited() -> None:
    line = Line("sapwood", ttft_target=10.0)
    line.wait(request("normal", [1]), at=0.0)
    line.wait(request("urgent", [2], priority=1), at=9.0)
    line.wait(request("urgent, late", [3], priority=1), at=11.0)
    assert line.order() == ["urgent", "normal", "urgent, late"]


LEAST_WANTED = request("least wanted", [9, 9, 9, 9], max_tokens=1, priority=-5, routing_key="rare")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_ahead", [0, 3])
def test_under_every_policy_a_request_waits_a_bounded_number_of_admissions(
    policy: SchedulerPolicy, num_ahead: int
) -> None:
    """An endless stream of requests that every policy likes better; it loses to arrival order by at most
    the bound."""
    line = Line(policy, max_overtaken=7)

    def wait_preferred() -> None:
        name = str(line.arrivals)
        line.wait(request(name, [1, 1, 1, 1], max_tokens=50, priority=5, routing_key="often"), cached=1000)

    for _ in range(num_ahead):
        wait_preferred()
    line.wait(LEAST_WANTED, at=5.0)
    for admissions in range(1, 100):
        wait_preferred()
        if line.start_next() == "least wanted":
            assert admissions <= num_ahead + 7 + 1
            return
    raise AssertionError("it starved")


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_taken_after_an_overdue_request_that_could_not_be_admitted(
    policy: SchedulerPolicy,
) -> None:
    line = Line(policy, max_overtaken=0)
    line.wait(request("first", [1]))
    line.wait(request("second", [2]), cached=100)
    assert line.order() == ["first"]


@pytest.mark.parametrize("policy", POLICIES)
def test_who_is_removed_is_not_shown_again(policy: SchedulerPolicy) -> None:
    line = Line(policy)
    sequences = [line.wait(request(str(index), [index])) for index in range(5)]
    line.queue.remove(sequences[2])
    assert sorted(line.order()) == ["0", "1", "3", "4"]
    assert len(line.queue) == 4
    assert line.queue.num_uncached_tokens == 4


def test_a_long_churn_leaves_no_more_behind_than_who_waits() -> None:
    """Stale entries of the heaps are swept: memory follows the queue, not its history."""
    line = Line("lpm")
    for index in range(3000):
        line.wait(request(str(index), [1]), cached=index % 7)
        line.queue.refresh(lambda sequence: (sequence.arrival * 13) % 11, count=3)
        if index >= 10:
            line.start_next()
    gc.collect()
    assert sum(type(each) is Waiting for each in gc.get_objects()) < 500


def test_a_request_that_came_back_does_not_hide_that_another_is_overdue() -> None:
    line = Line("lpm", max_overtaken=2)
    sent_back = line.wait(request("sent back", [1]), cached=50)
    line.wait(request("cold", [2]))
    assert line.start_next() == "sent back"
    line.wait(request("warm", [3]), cached=9)
    assert line.start_next() == "warm"
    line.queue.stopped(sent_back)
    line.queue.push(sent_back, cached_tokens=0)
    line.wait(request("warm again", [4]), cached=9)
    assert line.start_next() == "warm again"
    line.wait(request("warm once more", [5]), cached=9)
    assert line.start_next() == "cold"
