"""Rates of one pod: the rows of the cases G01, G05 and G07, and that no sequence of scrapes makes a spike."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_scrapes import counted, scrape

from sapwood_contract.curve import no_curve
from sapwood_operator.autoscaling.readings import STALE_SECONDS, WINDOW_SECONDS, reading, window_with
from sapwood_operator.autoscaling.scrapes import Kv, NoKv, NoScrape, Scrape
from sapwood_operator.autoscaling.values import Latencies, NoReading, Reading, StepCost

EVERY = 15.0
"""Seconds between two scrapes."""


def of_counts(*counts: float) -> list[Scrape]:
    """Scrapes of an engine whose every counter is at these values."""
    return [scrape(number * EVERY, totals=counted(count)) for number, count in enumerate(counts)]


def read(window: list[Scrape], now: float | None = None) -> Reading:
    found = reading(window, window[-1].at if now is None else now)
    assert isinstance(found, Reading), found
    return found


def unread(window: list[Scrape], now: float, problem: NoScrape | None = None) -> str:
    found = reading(window, now, problem=problem)
    assert isinstance(found, NoReading)
    return found.why


@pytest.mark.parametrize(
    ("ended", "running", "seconds"),
    [
        ((5, 5, 5, 5), (0, 0, 0, 0), 45),
        ((5, 5, 5, 6), (0, 0, 0, 0), 0),
        ((5, 5, 6, 6), (0, 1, 0, 0), 15),
        ((5, 5, 5, 5), (0, 0, 0, 1), 0),
    ],
)
def test_a_pod_is_quiet_since_the_last_scrape_that_saw_it_at_work(
    ended: tuple[int, ...], running: tuple[int, ...], seconds: float
) -> None:
    window = [
        scrape(number * EVERY, totals=replace(counted(50), ended=count), running=float(busy))
        for number, (count, busy) in enumerate(zip(ended, running, strict=True))
    ]
    assert read(window).quiet_seconds == seconds


# --- G07: counters and resets


@pytest.mark.parametrize(
    ("counts", "rate"),
    [((50, 50), 0), ((50, 50, 50), 0), ((50, 3), 3 / 15), ((3, 8), 5 / 15), ((50, 50, 50, 3, 8), 8 / 60)],
)
def test_g07_a_rate_is_what_was_added_and_after_a_restart_what_was_counted_anew(
    counts: tuple[float, ...], rate: float
) -> None:
    found = read(of_counts(*counts))
    rates = (found.prompt_tokens, found.cached_tokens, found.generation_tokens, found.admissions, found.arrivals)
    assert (*rates, found.evicted_tokens, found.regret_tokens) == (rate,) * 7
    assert found.window_seconds == EVERY * (len(counts) - 1)


def test_g07_the_first_scrape_is_unknown() -> None:
    assert "heard once" in unread(of_counts(50), 0.0)


def test_that_one_counter_fell_is_a_restart_of_all() -> None:
    before = scrape(0.0, totals=replace(counted(50), ended=50))
    after = scrape(15.0, totals=replace(counted(60), ended=2), ttft={1.0: 4.0, math.inf: 1.0})
    found = read([before, after])
    assert (found.prompt_tokens, found.arrivals) == (60 / 15, 2 / 15)
    assert found.ttft == Latencies((1.0, math.inf), (4.0, 1.0))


def test_a_bucket_that_fell_is_a_restart_and_no_count_is_negative() -> None:
    before, after = scrape(0.0, ttft={1.0: 2.0, math.inf: 6.0}), scrape(15.0, ttft={1.0: 8.0, math.inf: 0.0})
    assert read([before, after]).ttft.counts == (8.0, 0.0)


def test_other_borders_are_of_another_engine() -> None:
    before, after = scrape(0.0, itl={0.1: 5.0, math.inf: 5.0}), scrape(15.0, itl={0.2: 7.0, math.inf: 9.0})
    assert read([before, after]).itl == Latencies((0.2, math.inf), (7.0, 9.0))


# --- G01 and G05: nothing heard


def test_g01_nobody_asked_yet_is_unknown() -> None:
    assert unread([], 100.0) == "nobody has asked it yet"


def test_g01_why_there_is_no_answer_is_told() -> None:
    assert unread([], 100.0, NoScrape("it answers 500")) == "it answers 500"


def test_g05_one_lost_scrape_leaves_what_the_others_say() -> None:
    busy = [scrape(at, totals=counted(10 * at), running=3.0) for at in (0.0, 15.0, 30.0)]
    found = read(busy, now=60.0)
    assert (found.running, found.prompt_tokens) == (3.0, 10.0)


def test_g05_a_pod_that_is_not_heard_for_long_is_unknown_and_not_idle() -> None:
    busy = [scrape(at, running=3.0) for at in (0.0, 15.0, 30.0)]
    assert isinstance(reading(busy, 30.0 + STALE_SECONDS), Reading)
    told = unread(busy, 31.0 + STALE_SECONDS, NoScrape("it does not answer"))
    assert told == "it was last heard 46 s ago; last, it does not answer"


def test_a_live_engine_without_work_reads_zero() -> None:
    found = read(of_counts(7, 7))
    assert (found.arrivals, found.running, found.waiting_tokens, found.pinned_tokens) == (0, 0, 0, 0)


def test_an_engine_that_loads_is_unknown() -> None:
    window = [scrape(at, state="loading", kv=NoKv()) for at in (0.0, 15.0)]
    assert unread(window, 15.0) == "it is loading and has not said how much KV memory it has"


# --- what it was asked for


def test_a_request_that_waits_or_runs_has_arrived() -> None:
    before = scrape(0.0, totals=replace(counted(0), ended=2), running=1.0)
    after = scrape(10.0, totals=replace(counted(0), ended=4), running=2.0, waiting=6.0)
    assert read([before, after]).arrivals == (4 + 2 + 6 - 2 - 1) / 10


def test_gauges_are_averages_of_the_present_engine_and_the_last_where_now_counts() -> None:
    window = [
        scrape(0.0, totals=counted(9), running=90.0, kv=Kv(1000, 900)),
        scrape(15.0, totals=counted(1), running=1.0, waiting=2.0, waiting_tokens=10.0, kv=NoKv()),
        scrape(30.0, totals=counted(1), running=2.0, waiting=4.0, waiting_tokens=20.0, kv=Kv(2000, 100)),
        scrape(45.0, totals=counted(1), running=3.0, waiting=6.0, waiting_tokens=70.0, kv=Kv(2000, 300)),
    ]
    found = read(window)
    assert (found.running, found.waiting, found.waiting_tokens) == (2.0, 4.0, 70.0)
    assert (found.capacity_tokens, found.pinned_tokens) == (2000, 200)


def test_histograms_are_those_of_the_window() -> None:
    window = [scrape(0.0, ttft={0.5: 2.0, math.inf: 9.0}), scrape(15.0, ttft={0.5: 5.0, math.inf: 9.0})]
    assert read(window).ttft == Latencies((0.5, math.inf), (3.0, 0.0))


def test_cost_and_curve_are_the_last_that_were_told() -> None:
    cost = StepCost(prefill_token=1, prefill_key=2, decode=3, decode_key=4, base=5)
    told = read([scrape(0.0), scrape(15.0, cost=cost, curve=no_curve(9))])
    assert (told.cost, told.curve) == (cost, no_curve(9))
    untold = read([scrape(0.0, cost=cost, curve=no_curve(9)), scrape(15.0)])
    assert (untold.cost, untold.curve) == (None, None)


# --- the window


def test_a_window_is_in_the_order_of_time_and_has_each_moment_once() -> None:
    heard = [scrape(15.0, totals=counted(2)), scrape(30.0, totals=counted(4)), scrape(20.0, totals=counted(3))]
    window = window_with(of_counts(1, 2), heard, 30.0)
    assert window == tuple(scrape(at, totals=counted(at // 10 + 1)) for at in (0.0, 15.0, 20.0, 30.0))


def test_what_is_heard_out_of_order_is_passed_over_for_it_would_look_like_a_restart() -> None:
    window = window_with(of_counts(1, 5), [scrape(10.0, totals=counted(6))], 20.0)
    assert [each.at for each in window] == [0.0, 15.0]


def test_after_a_clock_was_set_back_a_window_begins_anew() -> None:
    window = window_with(of_counts(1, 2), [scrape(-3600.0, totals=counted(3))], -3600.0)
    assert [each.at for each in window] == [-3600.0]


def test_a_window_forgets_what_is_old() -> None:
    assert [each.at for each in window_with(of_counts(1, 2, 3), [], WINDOW_SECONDS)] == [15.0, 30.0]


COUNTS = st.floats(0, 1e9)
SCRAPES = st.builds(
    lambda values, running, kv: scrape(
        0.0,
        totals=replace(counted(values[0]), ended=values[1], cached=values[2]),
        ttft={1.0: values[3], math.inf: values[4]},
        running=running,
        kv=kv,
    ),
    st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    COUNTS,
    st.one_of(st.just(NoKv()), st.builds(Kv, st.floats(1, 1e9), COUNTS)),
)
GAPS = st.floats(0.1, 40.0)


@given(st.lists(st.tuples(GAPS, SCRAPES), max_size=8), st.floats(0, 100))
def test_whatever_was_scraped_no_number_is_negative_or_none(told: list[tuple[float, Scrape]], later: float) -> None:
    at, window = 0.0, []
    for gap, each in told:
        at += gap
        window.append(replace(each, at=at))
    found = reading(window, at + later)
    if isinstance(found, NoReading):
        assert found.why
        return
    numbers = [value for value in astuple(replace(found, curve=None)) if isinstance(value, float)]
    assert len(numbers) == 14
    assert all(0 <= value < math.inf for value in (*numbers, *found.ttft.counts, *found.itl.counts))


@given(st.lists(st.integers(0, 20), min_size=2, max_size=20), st.lists(st.booleans(), min_size=20, max_size=20))
def test_restarts_never_make_more_of_what_was_added(added: list[int], restarts: list[bool]) -> None:
    count, counts = 0, []
    for number, anew in zip(added, restarts, strict=False):
        count = number if anew else count + number
        counts.append(count)
    found = read(of_counts(*counts))
    assert found.prompt_tokens * found.window_seconds <= sum(added[1:]) + 1e-6
