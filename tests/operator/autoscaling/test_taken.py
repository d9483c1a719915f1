"""What a service took within minutes: a mean that chance moves less, and that nothing but requests moves."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from support_scaling import reading, service
from support_scrapes import counted, scrape

from sapwood_operator.autoscaling.load import Load, hear, load_of
from sapwood_operator.autoscaling.scrapes import Scrape
from sapwood_operator.autoscaling.taken import LONGEST_SECONDS, Windows, over_minutes, taken_with
from sapwood_operator.autoscaling.values import NoReading, Taken

EVERY = 15.0
MINUTES = tuple(
    Taken(at=EVERY * at, arrivals=30.0 * at, admissions=30.0 * at, prompt_tokens=150_000.0 * at) for at in range(21)
)
"""Five, of 10,000 tokens a second in two requests."""


def pods(at: float, **counts: float) -> Windows:
    """Pods that have counted so much at that time."""
    return {uid: (scrape(at, totals=counted(count)),) for uid, count in counts.items()}


def after(*steps: Windows) -> tuple[Taken, ...]:
    """What was taken, sampled so."""
    taken: tuple[Taken, ...] = ()
    windows: dict[str, tuple[Scrape, ...]] = {}
    for step in steps:
        former = dict(windows)
        windows = {uid: (*windows.get(uid, ()), *heard) for uid, heard in step.items()}
        taken = taken_with(taken, former, windows)
    return taken


def minute(share: float, **changes: object) -> Load:
    """A load of one replica of which as much is asked as 20,000 tokens a second times ``share``."""
    found = service(reading(share, **changes))
    return load_of(hear(found), found.demand)


# --- what was taken


def test_what_pods_had_counted_before_anybody_asked_is_not_taken() -> None:
    assert [each.arrivals for each in after(pods(0, a=5_000), pods(15, a=5_010))] == [0.0, 10.0]


def test_a_pod_that_is_gone_keeps_its_share_and_a_new_one_begins_with_none() -> None:
    found = after(pods(0, a=0, b=0), pods(15, a=10, b=20), pods(30, a=15), pods(45, a=20, c=0), pods(60, a=25, c=7))
    assert [each.arrivals for each in found] == [0.0, 30.0, 35.0, 40.0, 52.0]


def test_a_restart_takes_nothing_back_and_counts_from_nothing() -> None:
    found = after(pods(0, a=1_000), pods(15, a=1_010), pods(30, a=4), pods(45, a=6))
    assert [each.arrivals for each in found] == [0.0, 10.0, 14.0, 16.0]


def test_a_scrape_that_was_missed_is_made_up_for_by_the_next() -> None:
    first, second = pods(0, a=0, b=0), pods(15, a=10, b=10)
    silent = {"a": scrape(30, totals=counted(20))}
    known = {uid: (*first[uid], *second[uid]) for uid in first}
    taken = taken_with(taken_with(taken_with((), {}, first), first, known), known, {**known, "a": (silent["a"],)})
    last = {"a": (silent["a"], scrape(45, totals=counted(30))), "b": (*known["b"], scrape(45, totals=counted(30)))}
    assert taken_with(taken, {**known, "a": (silent["a"],)}, last)[-1].arrivals == 60.0


def test_counting_begins_anew_with_a_pod_that_served_while_nobody_heard_it() -> None:
    found = after(pods(0, a=10), pods(15, a=20), pods(30, a=30, b=300), pods(45, a=40, b=310))
    assert [(each.at, each.arrivals) for each in found] == [(30.0, 0.0), (45.0, 20.0)]


def test_what_is_older_than_the_longest_mean_is_dropped() -> None:
    found = after(*[pods(EVERY * at, a=at) for at in range(60)])
    assert found[-1].at - found[0].at >= LONGEST_SECONDS
    assert len(found) < 30


def test_nothing_new_changes_nothing() -> None:
    known = pods(0, a=0)
    taken = taken_with((), {}, known)
    assert taken_with(taken, known, known) == taken
    assert taken_with((), {}, {}) == ()


def test_a_clock_that_was_set_back_begins_anew() -> None:
    found = after(pods(1000, a=0), pods(1015, a=10), pods(15, a=20))
    assert [(each.at, each.arrivals) for each in found] == [(15.0, 0.0)]


# --- the mean


def test_a_promise_of_half_a_minute_has_its_load_told_by_five_minutes() -> None:
    found = over_minutes(minute(0.55), MINUTES, 30.0)
    assert found.prompt_tokens == pytest.approx(10_000)
    assert found.mean_prompt_tokens == pytest.approx(5_000)
    assert found.num_arrived == 600


def test_it_is_as_long_as_ten_promises() -> None:
    risen = (*MINUTES[:17], *(replace(each, prompt_tokens=each.prompt_tokens + 60_000.0) for each in MINUTES[17:]))
    assert over_minutes(minute(0.55), risen, 12.0).prompt_tokens == pytest.approx(10_500)
    assert over_minutes(minute(0.55), risen, 30.0).prompt_tokens == pytest.approx(10_200)


@pytest.mark.parametrize("promised", [None, 1.0, 6.0])
def test_a_short_promise_or_none_has_its_load_told_by_the_minute(promised: float | None) -> None:
    load = minute(0.55)
    assert over_minutes(load, MINUTES, promised) is load


@pytest.mark.parametrize(("share", "believed"), [(0.2, -1.0), (1.0, 1.0)])
def test_what_a_minute_brings_beyond_chance_is_believed_at_once_less_what_chance_may_have_added(
    share: float, believed: float
) -> None:
    load = minute(share)
    chance = 2.0 * math.sqrt(2.0 / load.num_arrived) * 10_000
    found = over_minutes(load, MINUTES, 30.0)
    assert found.prompt_tokens == pytest.approx(load.prompt_tokens - believed * chance)
    assert (found.mean_prompt_tokens, found.num_arrived) == (load.mean_prompt_tokens, load.num_arrived)


def test_a_minute_just_beyond_chance_says_hardly_more_than_the_mean() -> None:
    loads = [over_minutes(minute(share / 1000), MINUTES, 30.0).prompt_tokens for share in range(300, 1000)]
    assert max(abs(after - before) for before, after in pairwise(loads)) <= 20.1, (
        "no jump: 20 is a thousandth of 20,000"
    )


def test_few_requests_scatter_more_and_are_believed_less() -> None:
    assert over_minutes(minute(0.8, arrivals=0.2), MINUTES, 30.0).prompt_tokens == pytest.approx(10_000)


def test_while_requests_wait_what_arrives_counts() -> None:
    flooded = tuple(replace(each, arrivals=1.1 * each.arrivals) for each in MINUTES)
    assert over_minutes(minute(0.5), flooded, 30.0).prompt_tokens == pytest.approx(10_000)
    assert over_minutes(minute(0.5, waiting=9.0, waiting_tokens=9e4), flooded, 30.0).prompt_tokens == pytest.approx(
        11_000
    )


def test_unknown_stays_with_the_minute() -> None:
    load = minute(0.55)
    assert over_minutes(load, (), 30.0) is load
    assert over_minutes(load, MINUTES[:3], 30.0) is load, "half a minute says less"
    assert over_minutes(load, (MINUTES[0], replace(MINUTES[-1], prompt_tokens=math.nan)), 30.0) is load
    missed = service(reading(0.27), NoReading("it did not answer"))
    seen = load_of(hear(missed), missed.demand)
    assert seen.prompt_tokens == pytest.approx(10_800), "as chance might have it"
    assert over_minutes(seen, MINUTES, 30.0) is seen
