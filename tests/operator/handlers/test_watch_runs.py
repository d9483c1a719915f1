"""Runs of the watches: begun anew after a pause, and given up when none lasts."""

from __future__ import annotations

from sapwood_operator.handlers.watch_runs import GIVE_UP_SECONDS, LAST_PAUSE_SECONDS, LASTING_SECONDS, WatchRuns


def test_pauses_double_up_to_the_last() -> None:
    runs, pauses = WatchRuns(), []
    for now in range(7):
        runs.begin(now)
        pauses.append(runs.end(now))
    assert pauses == [1, 2, 4, 8, 16, LAST_PAUSE_SECONDS, LAST_PAUSE_SECONDS]


def test_after_a_run_that_lasted_the_pauses_begin_anew() -> None:
    runs = WatchRuns()
    runs.begin(0)
    assert runs.end(1) == 1
    runs.begin(2)
    assert runs.end(2 + LASTING_SECONDS) == 1


def test_a_first_run_is_trusted_from_its_beginning() -> None:
    runs = WatchRuns()
    assert not runs.are_given_up(0)
    runs.begin(0)
    assert not runs.are_given_up(10 * GIVE_UP_SECONDS)


def test_runs_of_which_none_lasts_are_given_up() -> None:
    runs = WatchRuns()
    for now in range(0, 300, 20):
        runs.begin(now)
        runs.end(now + 10)
    assert not runs.are_given_up(9 + GIVE_UP_SECONDS)
    assert runs.are_given_up(10 + GIVE_UP_SECONDS)


def test_a_run_that_lasts_ends_the_trouble_while_it_is_under_way() -> None:
    runs = WatchRuns()
    runs.begin(0)
    runs.end(0)
    runs.begin(GIVE_UP_SECONDS)
    assert runs.are_given_up(GIVE_UP_SECONDS + LASTING_SECONDS - 1)
    assert not runs.are_given_up(GIVE_UP_SECONDS + LASTING_SECONDS)


def test_a_single_break_long_after_the_last_is_no_trouble() -> None:
    runs = WatchRuns()
    runs.begin(0)
    runs.end(0)
    runs.begin(1)
    runs.end(1 + 2 * GIVE_UP_SECONDS)
    assert not runs.are_given_up(2 + 2 * GIVE_UP_SECONDS)
