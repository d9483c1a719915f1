"""The fewest replicas that keep the promise, for one who knows what will come.

For every interval of 15 seconds, in order: the smallest n with which, were it kept for the next minute, 90 of 100
requests of that minute would have their first token within the promised time. It knows each request, and how much of it
one cache of n replicas' sizes would hold then (`sapwood_tools.replay.one_cache`: the true curve at every moment). Its n
replicas share one line and compute n times as fast as one, but for a prompt itself, which one replica computes. What it
leaves undone in one interval is there in the next.

Where no number keeps a minute it is the fewest with the fewest late. What binds all binds it too: a replica must have
been asked for as long before as a start takes, and what was needed within the policy's window on the way down is kept.
So what is asked for at t is the most that is needed from a window before t until a start after it: a valley shorter
than both is not left. That is a plan; `compare.foresee` tries it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Of each interval of `SAMPLE_SECONDS` from time 0 on."""

    numbers: Sequence[int]
    """Replicas that must be ready."""
    is_kept: Sequence[bool]
    """Whether a number within the bounds keeps the promise in the minute that begins there."""


def needed(requests: Sequence[TraceRequest], future: Future) -> Plan:
    """Return how many replicas must be ready, and where no number suffices.

    The last minute is not whole, and it alone knows that nothing comes after it: it gets what the last whole one needs.
    """
    arrivals = [request.arrival_seconds for request in requests]
    seconds = {n: _own_seconds(requests, future, n) for n in range(future.least, future.most + 1)}
    backlog = 0.0
    """Seconds of one replica's work."""
    numbers: list[int] = []
    is_kept: list[bool] = []
    for number in range(int(arrivals[-1] // SAMPLE_SECONDS) + 1):
        begin = number * SAMPLE_SECONDS
        first = bisect_left(arrivals, begin)
        last = bisect_left(arrivals, begin + WINDOW_SECONDS)
        end = bisect_left(arrivals, begin + SAMPLE_SECONDS)
        if begin + WINDOW_SECONDS <= arrivals[-1] or not numbers:
            n, keeps = _fewest(arrivals, seconds, (first, last), begin, backlog, future)
        numbers.append(n)
        is_kept.append(keeps)
        backlog += sum(seconds[n][first:end])
        backlog = max(0.0, backlog - n * SAMPLE_SECONDS)
    return Plan(numbers, is_kept)


def ahead(numbers: Sequence[int], start_seconds: float, down_seconds: float) -> list[int]:
    """Return how many are to be asked for in each interval, so that as many as ``numbers`` are ready in time, and no
    more go than the policy's window of ``down_seconds`` lets anybody take away.
    """
    reach = -(-int(start_seconds) // int(SAMPLE_SECONDS)) + 1
    window = -(-int(down_seconds) // int(SAMPLE_SECONDS))
    return [max(numbers[max(0, at - window) : at + reach]) for at in range(len(numbers))]


def mend(plan: Plan, late_minutes: Sequence[float], future: Future) -> Plan:
    """Return ``plan`` with one replica more from a minute before each of ``late_minutes`` to its end.

    ``late_minutes``: when they began; those that no number keeps are left as they are. Who came late found a line that
    had been there before.
    """
    per_minute = round(WINDOW_SECONDS / SAMPLE_SECONDS)
    short: set[int] = set()
    for begin in late_minutes:
        first = round(begin / SAMPLE_SECONDS)
        if plan.is_kept[first]:
            short.update(range(first - per_minute, first + per_minute))
    return Plan([min(future.most, n + (at in short)) for at, n in enumerate(plan.numbers)], plan.is_kept)


def _own_seconds(requests: Sequence[TraceRequest], future: Future, n: int) -> list[float]:
    """Return how long each prompt takes where one cache of ``n`` replicas' sizes has served all before it."""
    cache = OneCache(n * future.capacity_blocks)
    seconds = []
    for request in requests:
        num_tokens = request.prompt.num_tokens
        num_cached = min(cache.serve(request.blocks) * BLOCK_TOKENS, num_tokens - 1)
        seconds.append(future.pace.prefill_seconds(num_tokens, num_cached))
    return seconds


def _fewest(
    arrivals: Sequence[float],
    seconds: Mapping[int, Sequence[float]],
    span: tuple[int, int],
    begin: float,
    backlog: float,
    future: Future,
) -> tuple[int, bool]:
    """Return the fewest replicas with which enough of the requests in ``span`` are in time, and whether any are enough:
    where none are, the fewest with the fewest late, and of these with the least that a line makes them late.
    """
    may_be_late = (1 - future.kept_share) * (span[1] - span[0])
    best, least = future.least, (math.inf, math.inf)
    for n in range(future.least, future.most + 1):
        late = _late(arrivals, seconds[n], span, begin, backlog, n, future.ttft_seconds)
        if late[0] <= may_be_late:
            return n, True
        if late < least:
            best, least = n, late
    return best, False


def _late(
    arrivals: Sequence[float],
    seconds: Sequence[float],
    span: tuple[int, int],
    begin: float,
    backlog: float,
    n: int,
    ttft_seconds: float,
) -> tuple[int, float]:
    """Return how many are late, and by how many seconds together those which would not be alone."""
    at, num_late, seconds_late = begin, 0, 0.0
    for number in range(*span):
        backlog = max(0.0, backlog - (arrivals[number] - at) * n)
        at = arrivals[number]
        over = backlog / n + seconds[number] - ttft_seconds
        if over > 0:
            num_late += 1
            seconds_late += over if seconds[number] <= ttft_seconds else 0.0
        backlog += seconds[number]
    return num_late, seconds_late
