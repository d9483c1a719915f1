"""What one pod did lately, from its scrapes of the last minute and a half. Pure.

A counter that has fallen belongs to an engine that began anew: what it has counted since then is all that is added. So
a rate is never negative, and a restart is no spike. One scrape alone says nothing of a rate, and the last one says
nothing once it is old: both are unknown, not 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from itertools import pairwise

from sapwood_operator.autoscaling.scrapes import Buckets, Kv, NoScrape, Scrape, Totals
from sapwood_operator.autoscaling.values import Latencies, NoReading, Reading

WINDOW_SECONDS = 90.0
"""Scrapes that are looked at: six of ours, three of a Prometheus that scrapes twice a minute."""
STALE_SECONDS = 45.0
"""The last scrape may be so old: two in a row may fail, or one of such a Prometheus, before a pod is unknown."""
_SKEW_SECONDS = 30.0
"""By so much the clock of whoever scraped may be ahead."""
_TOTALS = tuple(each.name for each in fields(Totals))


def window_with(window: Sequence[Scrape], heard: Iterable[Scrape], now: float) -> tuple[Scrape, ...]:
    """Return ``window`` with what was heard later, less what is too old at ``now`` (Unix time).

    What was heard out of order would look like a counter that fell. What lies ahead of ``now`` was heard before a clock
    was set back.
    """
    present = [each for each in window if _is_present(each, now)]
    for each in sorted(heard, key=lambda scrape: scrape.at):
        if _is_present(each, now) and (not present or each.at > present[-1].at):
            present.append(each)
    return tuple(present)


def _is_present(scrape: Scrape, now: float) -> bool:
    return now - WINDOW_SECONDS < scrape.at <= now + _SKEW_SECONDS


def reading(window: Sequence[Scrape], now: float, *, problem: NoScrape | None = None) -> Reading | NoReading:
    """Return what the pod did.

    ``window``: its scrapes, in the order of time; ``problem``: why the last question had no answer, if it had none.
    """
    told = f"; last, {problem.why}" if problem else ""
    if not window:
        return NoReading(problem.why if problem else "nobody has asked it yet")
    last = window[-1]
    if now - last.at > STALE_SECONDS:
        return NoReading(f"it was last heard {now - last.at:.0f} s ago{told}")
    if not isinstance(last.kv, Kv):
        return NoReading(f"it is {last.state} and has not said how much KV memory it has")
    if len(window) == 1:
        return NoReading(f"it was heard once, and rates need a second time{told}")
    return _reading(_runs(window), last.kv)


def _runs(window: Sequence[Scrape]) -> list[list[Scrape]]:
    """Split ``window`` where the engine began anew."""
    runs = [[window[0]]]
    for before, after in pairwise(window):
        if _is_of_another_process(before, after):
            runs.append([])
        runs[-1].append(after)
    return runs


def _is_of_another_process(before: Scrape, after: Scrape) -> bool:
    """Whether a counter has fallen, or other buckets are counted."""
    if before.ttft.keys() != after.ttft.keys() or before.itl.keys() != after.itl.keys():
        return True
    return (
        any(getattr(after.totals, name) < getattr(before.totals, name) for name in _TOTALS)
        or any(after.ttft[border] < count for border, count in before.ttft.items())
        or any(after.itl[border] < count for border, count in before.itl.items())
    )


def increases(scrapes: Sequence[Scrape]) -> tuple[float, float, float]:
    """Return the requests that the pod took between the first and the last of ``scrapes``, those of them whose prefill
    began, and the prompt tokens of these; 0 of less than two."""
    runs = _runs(scrapes) if scrapes else []
    return (
        _increase(runs, _arrivals),
        _increase(runs, lambda scrape: scrape.totals.admitted),
        _increase(runs, lambda scrape: scrape.totals.prompt),
    )


def _arrivals(scrape: Scrape) -> float:
    """Each request that was taken waits, runs or has ended."""
    return scrape.totals.ended + scrape.running + scrape.waiting


def _reading(runs: Sequence[Sequence[Scrape]], kv: Kv) -> Reading:
    present = runs[-1]
    last = present[-1]
    seconds = last.at - runs[0][0].at

    def rate(count: Callable[[Scrape], float]) -> float:
        return _increase(runs, count) / seconds

    pinned = [scrape.kv.pinned for scrape in present if isinstance(scrape.kv, Kv)]
    return Reading(
        window_seconds=seconds,
        arrivals=rate(_arrivals),
        admissions=rate(lambda scrape: scrape.totals.admitted),
        prompt_tokens=rate(lambda scrape: scrape.totals.prompt),
        cached_tokens=rate(lambda scrape: scrape.totals.cached),
        generation_tokens=rate(lambda scrape: scrape.totals.generated),
        running=_mean([scrape.running for scrape in present]),
        waiting=_mean([scrape.waiting for scrape in present]),
        waiting_tokens=last.waiting_tokens,
        capacity_tokens=kv.capacity,
        pinned_tokens=_mean(pinned),
        evicted_tokens=rate(lambda scrape: scrape.totals.evicted),
        regret_tokens=rate(lambda scrape: scrape.totals.regret),
        quiet_seconds=_quiet_seconds(present),
        ttft=_latencies(runs, lambda scrape: scrape.ttft),
        itl=_latencies(runs, lambda scrape: scrape.itl),
        cost=last.cost,
        curve=last.curve,
    )


def _quiet_seconds(scrapes: Sequence[Scrape]) -> float:
    """Return for how long the pod has had nothing to do, seen from its last scrape."""
    busy = [after.at for before, after in pairwise(scrapes) if _had_work(before, after)]
    return scrapes[-1].at - max(busy, default=scrapes[0].at)


def _had_work(before: Scrape, after: Scrape) -> bool:
    return after.running + after.waiting > 0 or after.totals.ended > before.totals.ended


def _increase(runs: Sequence[Sequence[Scrape]], count: Callable[[Scrape], float]) -> float:
    """Return by how much ``count`` has grown: within the first run, and in each later one from 0 on."""
    if not runs:
        return 0.0
    first = count(runs[0][-1]) - count(runs[0][0])
    return max(0.0, first) + math.fsum(count(run[-1]) for run in runs[1:])


def _latencies(runs: Sequence[Sequence[Scrape]], buckets: Callable[[Scrape], Buckets]) -> Latencies:
    def count(border: float, scrape: Scrape) -> float:
        return buckets(scrape).get(border, 0.0)

    borders = tuple(sorted(buckets(runs[-1][-1])))
    return Latencies(borders, tuple(_increase(runs, partial(count, border)) for border in borders))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
