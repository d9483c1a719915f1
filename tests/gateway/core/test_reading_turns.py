"""Services take turns in being read, and those that hold up the others rest."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.reading_turns import ReadingTurns, RestSettings
from sapwood_gateway.core.routes import ServiceKey

A, B, C = (ServiceKey("team", name) for name in "abc")


def taken(turns: ReadingTurns[str]) -> str:
    return "".join(iter(lambda: turns.take() or "", ""))


def test_services_take_turns_however_much_one_of_them_asks() -> None:
    turns = ReadingTurns[str]()
    for service, item in ((A, "1"), (A, "2"), (A, "3"), (B, "x"), (C, "y"), (B, "z")):
        turns.add(service, item)
    assert taken(turns) == "1xy2z3"
    assert turns.take() is None


def test_who_comes_back_waits_for_all_others_again() -> None:
    turns = ReadingTurns[str]()
    turns.add(A, "1")
    turns.add(B, "x")
    assert turns.take() == "1"
    turns.add(A, "2")
    assert taken(turns) == "x2"


@pytest.mark.parametrize(
    ("seconds", "rests_for"), [(0.1, 0.0), (0.125, 0.0), (0.2, 0.8), (1.0, 4.0)], ids=["quick", "just", "slow", "worst"]
)
def test_a_slow_read_is_followed_by_a_rest_that_is_longer_than_it(seconds: float, rests_for: float) -> None:
    turns = ReadingTurns[str]()
    turns.took(A, seconds, now=10.0)
    assert turns.rests(A, 10.0) == (rests_for > 0)
    assert turns.rests(A, 10.0 + rests_for * 0.99) == (rests_for > 0)
    assert not turns.rests(A, 10.0 + rests_for)
    assert not turns.rests(B, 10.0)


def rest_of(turns: ReadingTurns[str], now: float) -> float:
    """Return for how many seconds A rests, to the tenth."""
    return next(tenths for tenths in range(100_000) if not turns.rests(A, now + tenths / 10)) / 10


def test_each_read_that_ends_the_reader_is_followed_by_a_longer_rest_up_to_a_bound() -> None:
    turns = ReadingTurns[str](RestSettings(first=1.0, longest=5.0, forgiven_after=1_000.0))
    now, rests = 0.0, []
    for _ in range(5):
        turns.broke(A, now)
        rests.append(rest_of(turns, now))
        now += 6.0
        turns.took(A, 0.01, now)  # what is read in between forgives nothing
    assert rests == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert not turns.rests(B, 0.0)


def test_after_a_long_time_of_nothing_wrong_rests_begin_anew() -> None:
    turns = ReadingTurns[str]()
    turns.broke(A, 0.0)
    turns.broke(A, 1.0)
    turns.broke(A, 1_000.0)
    assert rest_of(turns, 1_000.0) == 1.0


def test_a_rest_is_never_cut_short_and_numbers_stay_small_however_often_a_reader_ends() -> None:
    turns = ReadingTurns[str]()
    for number in range(2_000):
        turns.broke(A, float(number))
    turns.took(A, 0.2, 2_000.0)
    assert turns.rests(A, 1_999.0 + 599.0)
    assert not turns.rests(A, 1_999.0 + 600.0)


def test_a_tokenizer_that_has_no_room_beside_others_is_a_slow_read_each_time() -> None:
    turns = ReadingTurns[str]()
    for now in (0.0, 10.0):
        turns.crowded(A, now)
        assert rest_of(turns, now) == 4.0
    assert not turns.rests(B, 10.0)
