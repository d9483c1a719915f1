"""Which waiting requests enter the step being planned: one pass over the queue a plan.

Keeps these rules: a request is admitted only with pages for all its known tokens, and only if every running
one keeps room to grow (hysteresis: more room while a preempted request waits); one that does not fit now is
passed over, unless it is overdue; one that shares an uncached prefix with a request being computed is held
back, unless it is overdue.
"""

from __future__ import annotations

from collections.abc import Callable

from sapwood_engine.core.admission import SchedulerConfig, shared_whole_page_tokens
from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.ordering import WaitingQueue
from sapwood_engine.core.page_table import Opening, open_table
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.running import RunningSet
from sapwood_engine.core.sequence import Sequence
from sapwood_engine.core.step import Admitted, SeatOpened, StepPlan

LOOK_UPS_PER_PASS = 16
"""Waiting requests whose cached prefix is looked up anew in a pass; some 10 µs each."""


class Admitter:
    """Moves sequences from ``queue`` to ``running``."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        queue: WaitingQueue,
        running: RunningSet,
        *,
        clock: Callable[[], float],
    ) -> None:
        """``clock``: for what is told of an admission; nothing is decided by it."""
        self._clock = clock
        self._config = config
        self._cache = cache
        self._queue = queue
        self._running = running
        self._exhausted = (-1, -1)
        self._exhausted_pages = -1

    def look_up(self, sequence: Sequence) -> int:
        """Return how many tokens of ``sequence`` the cache holds, leaving no trace."""
        return self._look_up(sequence, sequence.key())

    def _look_up(self, sequence: Sequence, key: TokenKey) -> int:
        return self._cache.peek(sequence.request.namespace, key, limit_tokens=sequence.reusable_tokens)

    def admit(self, plan: StepPlan, *, num_step_tokens: int, now: float) -> None:
        """Admit requests in the policy's order while seats, step tokens and pages last.

        Adds their seats and copies to ``plan``; ``num_step_tokens`` are left for them. Under a preempting
        policy running sequences may be sent back.
        """
        running, queue = self._running, self._queue
        if num_step_tokens <= 0 or not (running.num_free_seats or queue.policy.preempts):
            return
        if self._is_exhausted():
            return
        queue.refresh(self.look_up, count=LOOK_UPS_PER_PASS)
        num_admitted = num_skips = 0
        for _ in range(self._config.max_looks):
            if num_step_tokens <= 0 or (taken := queue.take()) is None:
                break
            sequence, overdue = taken
            began = self._clock()
            key = sequence.key()
            cached = self._look_up(sequence, key)
            queue.note_cached(sequence, cached)
            if not overdue and self._is_held_back(sequence, key, cached):
                continue
            opening = self._open(sequence, key, cached)
            if opening is not None:
                self._start(plan, sequence, key, opening, now=now, began=began)
                sequence.overdue = overdue
                num_step_tokens -= sequence.next_chunk(self._config.chunk_tokens)
                num_admitted += 1
                continue
            num_skips += 1
            if overdue or num_skips > self._config.max_skips or not running.num_free_seats:
                break
            if queue.policy.preempts and running.pages_are_coming():
                break  # They were sent back for this request; nobody behind it may take what it waits for.
        queue.end_pass()
        if not num_admitted and len(running):
            self._exhausted = (running.num_changes, queue.num_arrivals)
            self._exhausted_pages = self._cache.num_available()

    def _is_exhausted(self) -> bool:
        """Whether the last pass admitted nobody and another one would not either."""
        unchanged = self._exhausted == (self._running.num_changes, self._queue.num_arrivals)
        return unchanged and self._cache.num_available() <= self._exhausted_pages

    def _is_held_back(self, sequence: Sequence, key: TokenKey, cached: int) -> bool:
        """Whether somebody computes a prefix of ``sequence`` now that the cache does not hold yet."""
        if not self._running.computing or not self._cache.enabled:
            return False
        namespace = sequence.request.namespace
        for leader, leaders_key in self._running.computing.items():
            if leader.request.namespace == namespace:
                shared = shared_whole_page_tokens(
                    key,
                    leaders_key,
                    unit_bytes=self._cache.keys.unit_bytes,
                    page_size=self._cache.page_size,
                    limit_tokens=sequence.reusable_tokens,
                )
                if shared - cached >= self._config.min_shared_tokens:
                    return True
        return False

    def _open(self, sequence: Sequence, key: TokenKey, cached: int) -> Opening | None:
        """Find a seat and pages, under a preempting policy by sending back lower priorities."""
        opening = self._open_beside(sequence, key, cached)
        if opening is not None or not self._queue.policy.preempts:
            return opening
        num_coming = 0
        for victim in self._victims(sequence):
            assert victim.table is not None
            num_pages = len(victim.table.pages)
            self._running.preempt(victim, "priority")
            if victim.preempting is None:
                opening = self._open_beside(sequence, key, cached)
            else:
                num_coming += num_pages
            if opening is not None or (num_coming and self._suffices(sequence, num_coming)):
                return opening
        return None

    def _open_beside(self, sequence: Sequence, key: TokenKey, cached: int) -> Opening | None:
        """Find a seat and pages for ``sequence`` beside all who run."""
        headroom_pages = self._headroom_pages()
        needed = self._num_pages(sequence) - cached // self._cache.page_size + headroom_pages
        if not self._running.num_free_seats or needed > self._cache.num_available():
            return None  # Without a match, which would count the prefix as used.
        opening = open_table(
            self._cache,
            sequence.request.namespace,
            key,
            num_tokens=len(sequence.tokens),
            limit_tokens=sequence.reusable_tokens,
            headroom_pages=headroom_pages,
            priority=sequence.request.priority,
        )
        return None if isinstance(opening, Shortfall) else opening

    def _num_pages(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self._cache.page_size)

    def _headroom_pages(self) -> int:
        """Return the pages that an admission must leave for those who run."""
        page_size = self._cache.page_size
        growth = max(page_size, self._config.headroom_tokens) if self._queue.num_resuming else page_size
        return self._running.headroom_pages(growth)

    def _suffices(self, sequence: Sequence, num_coming_pages: int) -> bool:
        """Whether ``sequence`` could do with what is available now and ``num_coming_pages``."""
        needed = self._num_pages(sequence) + self._headroom_pages()
        return self._cache.num_available() + num_coming_pages >= needed

    def _victims(self, sequence: Sequence) -> list[Sequence]:
        """Return who may go, the first to go first; nobody if all their pages were not enough."""
        victims = self._running.priority_victims(
            sequence.request.priority, max_preemptions=self._config.max_priority_preemptions
        )
        num_pages = sum(len(victim.table.pages) for victim in victims if victim.table)
        return victims if self._suffices(sequence, num_pages) else []

    def _start(
        self, plan: StepPlan, sequence: Sequence, key: TokenKey, opening: Opening, *, now: float, began: float
    ) -> None:
        """``began``: when the look into the cache did, by the clock."""
        admitted_at = self._clock()
        request = sequence.request
        resumed = sequence.num_cached is not None
        self._queue.started(sequence)
        self._running.enter(sequence, opening, key)
        if opening.copy is not None:
            plan.copies.append(opening.copy)
        plan.opened.append(
            SeatOpened(
                sequence.seat,
                request.sampling,
                tuple(sorted(sequence.stop_ids)),
                request.prompt_ids,
                tuple(sequence.tokens[sequence.num_prompt :]),
            )
        )
        self._running.events.append(
            Admitted(
                request.request_id,
                num_prompt_tokens=sequence.num_prompt,
                num_cached_tokens=0 if resumed else opening.num_cached,
                num_recomputed_tokens=max(0, sequence.num_lost - opening.num_cached),
                queue_seconds=now - sequence.arrived_at,
                resumed=resumed,
                reuse_gap_seconds=() if resumed else opening.reuse_gap_seconds,
                admitted_at=admitted_at,
                match_seconds=admitted_at - began,
            )
        )
        if not resumed:
            sequence.num_cached = opening.num_cached
            if self._cache.miss_ratio is not None:
                sequence.trail = self._cache.miss_ratio.admitted(
                    request.namespace,
                    key,
                    num_tokens=sequence.num_prompt,
                    num_cached=opening.num_cached,
                    most_cached=sequence.reusable_tokens,
                    is_counted=not request.is_sibling,
                )
