"""Who starts slowly, and how fast such a replica comes to its share."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from sapwood_gateway.core.prefix_affinity import Load
from sapwood_gateway.core.slow_start import LEAST_SHARE, SLOW_START_SECONDS, Newcomers, share_after, weighed, whose_turn


def test_a_share_grows_from_a_tenth_to_the_whole_and_stays() -> None:
    seconds = [0.0, 1.0, 3.0, 15.0, 29.0, 30.0, 31.0, 1e9]
    assert [share_after(each) for each in seconds] == pytest.approx([0.1, 0.1, 0.1, 0.5, 29 / 30, 1, 1, 1])


@pytest.mark.parametrize("first_turn", [0, 40_000])
@pytest.mark.parametrize(
    ("shares", "num_others"), [([0.1], 1), ([0.5], 1), ([1.0], 1), ([0.1], 7), ([0.5], 15), ([0.2, 0.8], 3)]
)
def test_newcomers_take_turns_as_their_shares_beside_the_others(
    shares: list[float], num_others: int, first_turn: int
) -> None:
    turns = Counter(whose_turn(shares, num_others, first_turn + turn) for turn in range(2_000))
    for index, share in enumerate(shares):
        assert turns[index] / turns.total() == pytest.approx(share / (sum(shares) + num_others), abs=0.003)
    assert set(turns) == set(range(len(shares) + 1))


def test_a_newcomers_turns_are_spread_evenly() -> None:
    mine = [turn for turn in range(2_000) if whose_turn([0.5], 3, turn) == 0]  # one in seven
    assert max(after - before for before, after in pairwise(mine)) < 2 * 7


@pytest.mark.parametrize(("num_services", "offset"), [(2, 0), (2, 1), (3, 1), (8, 5)])
def test_turns_that_other_services_take_in_between_change_no_share(num_services: int, offset: int) -> None:
    turns = Counter(whose_turn([0.5], 3, turn * num_services + offset) for turn in range(2_000))
    assert turns[0] / turns.total() == pytest.approx(1 / 7, abs=0.005)


def test_what_a_part_of_a_replica_has_to_do_weighs_as_much_more() -> None:
    assert weighed(Load("a", 3, 100), 0.5) == Load("a", 6, 200)
    assert weighed(Load("a", 0, 0), 0.1) == Load("a", 0, 0)
    assert weighed(Load("a", 1, 1), 0.3) == Load("a", 4, 4)


def seen(*ready: set[str], newcomers: Newcomers | None = None, are_all_old: bool = False) -> Newcomers:
    """Let each of ``ready`` be what is there and ready of one service, one after the other."""
    made = newcomers or Newcomers()
    for ids in ready:
        made.update([ids], known=ids, are_all_old=are_all_old)
        assert made.check_invariants(ids) == []
    return made


@pytest.mark.parametrize(
    ("ready", "new"),
    [
        ([{"a", "b"}], set()),  # the gateway's own start
        ([{"a"}, {"a", "b"}], {"b"}),
        ([{"a"}, {"a", "b", "c"}], {"b", "c"}),
        ([set(), {"a"}], set()),  # the only one
        ([set(), {"a", "b"}], set()),
        ([{"a"}, {"b"}], set()),  # it is when the other one has gone
        ([{"a", "b"}, {"a"}, {"a", "b"}], {"b"}),  # it had gone, and is another one
        ([{"a"}, {"a", "b"}, {"a"}], set()),
    ],
)
def test_who_becomes_ready_beside_others_that_are_starts_slowly(ready: list[set[str]], new: set[str]) -> None:
    made = seen(*ready)
    assert made.begin({"a", "b", "c"}, 0.0) == new
    assert made.shares(0.0) == dict.fromkeys(new, LEAST_SHARE)


def test_who_is_not_ready_for_a_while_does_not_start_again() -> None:
    made = seen({"a", "b"})
    for ready in ({"a"}, {"a", "b"}):
        made.update([ready], known={"a", "b"}, are_all_old=False)
    assert made.are_none


def test_replicas_of_another_service_make_nobody_new() -> None:
    made = Newcomers()
    made.update([{"a"}, set()], known={"a"}, are_all_old=False)
    made.update([{"a"}, {"b"}], known={"a", "b"}, are_all_old=False)
    assert made.are_none


def test_who_was_ready_before_it_was_asked_does_not_start_slowly() -> None:
    assert seen({"a"}, {"a", "b"}, are_all_old=True).are_none
    assert seen({"a", "b", "c"}, newcomers=seen({"a"}, {"a", "b"}, are_all_old=True)).begin({"c"}, 0.0) == {"c"}


def test_a_start_counts_from_the_first_request_that_could_go_there_and_ends() -> None:
    made = seen({"a"}, {"a", "b", "c"})
    assert made.shares(0.0) == {}
    assert made.begin({"a", "b"}, 100.0) == {"b"}
    assert made.begin({"a", "b"}, 110.0) == set()
    assert made.shares(100.0 + SLOW_START_SECONDS / 2) == {"b": 0.5}
    assert made.begin({"c"}, 120.0) == {"c"}
    assert made.shares(130.0) == {"c": pytest.approx(1 / 3)}
    assert not made.are_none
    assert made.shares(150.0) == {}
    assert made.are_none
