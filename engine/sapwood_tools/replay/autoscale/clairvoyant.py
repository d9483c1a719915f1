"""The fewest replicas that keep the promise, for one who knows what will come.

For every interval of 15 seconds, in order: the smallest n with which, were it kept for the next minute, 90 of 100
requests of that minute would have their first token within the promised time. It knows each request, and how much of it
one cache of n replicas' sizes would hold then (`sapwood_tools.replay.one_cache`: the true curve at every moment). Its n
replicas share one line and compute n times as fast as one, but for a prompt itself, which one replica computes. What it
leaves undone in one interval is there in the next.

A replica must have been asked for as long before as a start takes. So what is asked for at t is the most that is needed
from t until then: a valley shorter than a start is not worth leaving. That is a plan; `compare.foresee` tries it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_operator.autoscaling.values import Observation
from sapwood_tools.replay.autoscale.observe import SAMPLE_SECONDS, WINDOW_SECONDS
from sapwood_tools.replay.autoscale.pace import Pace
from sapwood_tools.replay.one_cache import OneCache
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Future:
    """What it knows and is bound by."""

    pace: Pace
    capacity_blocks: int
    ttft_seconds: float
    """Promised to `kept_share` of the requests."""
    least: int
    most: int
    kept_share: float = 0.9


class Clairvoyant:
    """The controller that follows a plan made beforehand."""

    name = "clairvoyant"

    def __init__(self, asked: Sequence[int]) -> None:
        self._asked = asked

    def desired(self, observation: Observation, now: float) -> int:
        """Return what the plan has for the interval that begins ``now``, whatever is seen."""
        del observation
        return self._asked[min(round(now / SAMPLE_SECONDS), len(self._asked) - 1)]


def needed(requests: Sequence[TraceRequest], future: Future) -> list[int]:
    """Return how many replicas must be ready in each interval of `SAMPLE_SECONDS` from time 0 on."""
    arrivals = [request.arrival_seconds for request in requests]
    seconds = {n: _own_seconds(requests, future, n) for n in range(future.least, future.most + 1)}
    num_intervals = int(arrivals[-1] // SAMPLE_SECONDS) + 1
    backlog = 0.0
    """Seconds of one replica's work."""
    plan = []
    for number in range(num_intervals):
        begin = number * SAMPLE_SECONDS
        first = bisect_left(arrivals, begin)
        last = bisect_left(arrivals, begin + WINDOW_SECONDS)
        end = bisect_left(arrivals, begin + SAMPLE_SECONDS)
        for n in range(future.least, future.most + 1):
            if n == future.most or _keeps(arrivals, seconds[n], (first, last), begin, backlog, n, future):
                break
        plan.append(n)
        backlog += sum(seconds[n][first:end])
        backlog = max(0.0, backlog - n * SAMPLE_SECONDS)
    return plan


def ahead(plan: Sequence[int], start_seconds: float) -> list[int]:
    """Return how many are to be asked for in each interval, so that as many as ``plan`` needs are ready in time."""
    reach = -(-int(start_seconds) // int(SAMPLE_SECONDS)) + 1
    return [max(plan[at : at + reach]) for at in range(len(plan))]


def mend(plan: Sequence[int], late_minutes: Sequence[float], future: Future) -> list[int]:
    """Return ``plan`` with one replica more from a minute before each of ``late_minutes`` to its end.

    ``late_minutes``: when they began. Who came late found a line that had been there before.
    """
    per_minute = round(WINDOW_SECONDS / SAMPLE_SECONDS)
    short: set[int] = set()
    for begin in late_minutes:
        first = round(begin / SAMPLE_SECONDS)
        short.update(range(first - per_minute, first + per_minute))
    return [min(future.most, n + (at in short)) for at, n in enumerate(plan)]


def _own_seconds(requests: Sequence[TraceRequest], future: Future, n: int) -> list[float]:
    """Return how long each prompt takes where one cache of ``n`` replicas' sizes has served all before it."""
    cache = OneCache(n * future.capacity_blocks)
    seconds = []
    for request in requests:
        num_tokens = request.prompt.num_tokens
        num_cached = min(cache.serve(request.blocks) * BLOCK_TOKENS, num_tokens - 1)
        seconds.append(future.pace.prefill_seconds(num_tokens, num_cached))
    return seconds


def _keeps(
    arrivals: Sequence[float],
    seconds: Sequence[float],
    span: tuple[int, int],
    begin: float,
    backlog: float,
    n: int,
    future: Future,
) -> bool:
    """Whether enough of the requests in ``span`` are in time with ``n`` replicas."""
    at, num_late = begin, 0
    for number in range(*span):
        backlog = max(0.0, backlog - (arrivals[number] - at) * n)
        at = arrivals[number]
        num_late += backlog / n + seconds[number] > future.ttft_seconds
        backlog += seconds[number]
    return num_late <= (1 - future.kept_share) * (span[1] - span[0])
