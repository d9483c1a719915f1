"""Which key is reconciled next, decided: a key is never worked on twice at once, and a burst of wakes is one turn.

After a turn a key rests for a moment, so that the wakes that its own writes cause come to one further turn. A turn that
failed is tried again after a delay that doubles; a wake does not wait for it.
Times are seconds of one monotonic clock, given by the caller.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon a key has its next turn."""

    rest_seconds: float = 0.2
    """Between the end of a turn and the next: what children report of one rollout step comes within it."""
    first_retry_seconds: float = 0.25
    last_retry_seconds: float = 60.0
    """The delay of a retry doubles from the first to the last, and is drawn from its upper half."""


@dataclass(frozen=True, slots=True)
class Take(Generic[K]):
    """Work on ``key`` now, then call `WorkQueue.done`, `WorkQueue.failed` or `WorkQueue.forget`."""

    key: K


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do before ``time`` (infinite: before the next wake)."""

    time: float


class WorkQueue(Generic[K]):
    """Keys that wait for a turn or have one."""

    def __init__(self, pace: Pace, uniform: Callable[[], float]) -> None:
        """``uniform`` draws from [0, 1): keys that failed together shall not come back together."""
        self._pace = pace
        self._uniform = uniform
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # holds outdated entries too: `_due` is what counts
        self._order = itertools.count()
        self._taken: set[K] = set()
        self._woken: set[K] = set()
        """Of those taken: woken since, so that the turn may have missed the reason."""
        self._rested_at: dict[K, float] = {}
        self._num_failures: dict[K, int] = {}

    def wake(self, key: K, now: float) -> None:
        """Ask for a turn, as soon as the key has rested."""
        if key in self._taken:
            self._woken.add(key)
        else:
            self._schedule(key, max(now, self._rested_at.get(key, now)))

    def take(self, now: float) -> Take[K] | WaitUntil:
        """Hand out the key that has been due for longest."""
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) == due:
                if due > now:
                    return WaitUntil(due)
                heapq.heappop(self._heap)
                del self._due[key]
                self._taken.add(key)
                return Take(key)
            heapq.heappop(self._heap)
        return WaitUntil(float("inf"))

    def done(self, key: K, now: float, *, again_after_seconds: float) -> None:
        """End a turn that went well; the next is due in ``again_after_seconds`` (infinite: at the next wake)."""
        self._num_failures.pop(key, None)
        self._end(key, now, now + again_after_seconds)

    def failed(self, key: K, now: float, *, not_before_seconds: float = 0.0) -> float:
        """End a turn that has to be tried again, and return after how many seconds it will be at the latest."""
        failures = self._num_failures[key] = self._num_failures.get(key, 0) + 1
        doubled = self._pace.first_retry_seconds * 2.0 ** min(failures - 1, 32)
        longest = min(doubled, self._pace.last_retry_seconds)
        delay = max(longest * (1 + self._uniform()) / 2, not_before_seconds)
        self._end(key, now, now + delay)
        return delay

    def forget(self, key: K, now: float) -> None:
        """End a turn that found nothing to look after any more."""
        self._num_failures.pop(key, None)
        woken = key in self._woken
        self._taken.discard(key)
        self._woken.discard(key)
        self._rested_at.pop(key, None)
        if woken:
            self._schedule(key, now)

    def num_due(self, now: float) -> int:
        """Keys that could be worked on now, and wait."""
        return sum(due <= now for due in self._due.values())

    def _end(self, key: K, now: float, next_due: float) -> None:
        self._taken.discard(key)
        rested_at = self._rested_at[key] = now + self._pace.rest_seconds
        if key in self._woken:
            self._woken.discard(key)
            next_due = min(next_due, rested_at)
        self._schedule(key, max(next_due, rested_at))

    def _schedule(self, key: K, due: float) -> None:
        """The earlier of two times counts: a wake does not put off a timer, nor a timer a wake."""
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
