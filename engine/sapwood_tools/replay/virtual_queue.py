"""Requests of a virtual engine, and those of them that wait, in the order of the policy ``sapwood``.

Simpler than `core.ordering`, which a test holds it beside: nobody is ever overdue.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sapwood_engine.core.admitting import LOOK_UPS_PER_PASS
from sapwood_engine.core.prefix_cache import Receipt
from sapwood_tools.replay.trace import TraceRequest

_MOST_STALE = 64


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine; tokens of the model."""

    request_id: int
    """Below 0: a prefix that is computed ahead of requests, of which nobody is told."""
    request: TraceRequest
    offered_at: float
    num_tokens: int
    """Of the prompt."""
    num_outputs: int
    num_pages: int
    """Of prompt and answer."""
    cached: int = 0
    """Found in the cache when last looked up."""
    looked_at: int = -1
    """The version of the cache then; -1: never."""
    hit: float = 0.0
    """Rank among those that wait: seconds that it counts as earlier than it came."""
    is_waiting: bool = True
    found: int = 0
    """In the cache, when it was admitted."""
    done: int = 0
    """Scheduled of the prompt, what was cached included."""
    wanted: int = 0
    """How far the prompt must be computed before somebody who waits for it can go on; 0: nobody does."""
    receipt: Receipt | None = None
    pages: list[int] = field(default_factory=list)


class VirtualQueue:
    """Who waits. ``look_up`` renews `Job.cached` where the cache has changed since."""

    def __init__(self, look_up: Callable[[Job], None], *, ttft_target_seconds: float, max_step_tokens: int) -> None:
        self._look_up = look_up
        self._target = ttft_target_seconds
        self._half = max_step_tokens
        self._heap: list[tuple[float, int, Job]] = []
        """By rank; who does not wait, or has another rank by now, is stale there."""
        self._to_refresh: deque[Job] = deque()
        self._aside: list[tuple[float, int, Job]] = []
        self._num_pushed = 0
        self._alone: Job | None = None
        """Who was not looked up, because nobody else waited: most are admitted before anybody asks."""
        self._uncached_tokens = 0
        self.num_waiting = 0

    @property
    def uncached_tokens(self) -> int:
        """Of all who wait, by the last look at each, on its arrival at least."""
        self._see()
        return self._uncached_tokens

    def push(self, job: Job) -> None:
        """``job`` waits."""
        if self.num_waiting:
            self._see()
            self._look_up(job)
        else:
            self._alone = job
        self.num_waiting += 1
        self._uncached_tokens += job.num_tokens - job.cached
        self._to_refresh.append(job)
        if len(self._to_refresh) > 2 * self.num_waiting + _MOST_STALE:
            self._to_refresh = deque(each for each in self._to_refresh if each.is_waiting)
        self._rank(job)

    def refresh(self) -> None:
        """Rank those anew that were looked up the longest time ago."""
        for _ in range(min(LOOK_UPS_PER_PASS, len(self._to_refresh))):
            job = self._to_refresh.popleft()
            if job.is_waiting:
                self._to_refresh.append(job)
                if self.renew(job):
                    self._rank(job)

    def renew(self, job: Job) -> bool:
        """Look ``job`` up, its rank aside; return whether more or less of it is there."""
        before = job.cached
        self._look_up(job)
        self._uncached_tokens += before - job.cached
        return job.cached != before

    def take(self) -> Job | None:
        """Return who is next; None where all were looked at in this pass. `end_pass` puts back who is not admitted."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            job = entry[2]
            if job.is_waiting and entry[0] == job.offered_at - job.hit:
                self._aside.append(entry)
                return job
        return None

    def admitted(self, job: Job) -> None:
        """``job``, which was taken, waits no more."""
        job.is_waiting = False
        self.num_waiting -= 1
        self._uncached_tokens -= job.num_tokens - job.cached

    def end_pass(self) -> None:
        """Put back who was taken and still waits."""
        for entry in self._aside:
            if entry[2].is_waiting:
                heapq.heappush(self._heap, entry)
        self._aside.clear()

    def _see(self) -> None:
        """Look up who waited alone."""
        job, self._alone = self._alone, None
        if job is not None and job.is_waiting and self.renew(job):
            self._rank(job)

    def _rank(self, job: Job) -> None:
        """As `core.policies` ranks."""
        job.hit = self._target * job.cached / (job.cached + self._half)
        self._num_pushed += 1
        heapq.heappush(self._heap, (job.offered_at - job.hit, self._num_pushed, job))
