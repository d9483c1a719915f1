"""Who runs: seats, pages, and who gives them back when room is short.

A running sequence is in exactly one of ``prefilling`` (some known tokens are not scheduled yet) and
``decoding`` (all are). ``computing`` holds those whose known tokens are not all computed yet, with the key of
these tokens: a request that shares a prefix with one may wait for it. ``leaving`` holds ended sequences that a
launched step has a row of.

Pages that a launched step may read or write go back at that step's commit, never earlier. So an ended
sequence keeps its table while ``leaving``, and one that is sent back goes on holding its seat and pages
while ``preempting``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.ordering import WaitingQueue
from sapwood_engine.core.page_table import Opening
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.sequence import NO_SEAT, PreemptionReason, Sequence
from sapwood_engine.core.step import PageUpdate, PlanEvent, Preempted


class RunningSet:
    """The running sequences; those it sends back wait in ``queue`` again.

    Dictionaries serve as ordered sets: in the order of admission, with removal in O(1).
    """

    def __init__(self, max_seats: int, cache: PrefixCache, queue: WaitingQueue) -> None:
        self.max_seats = max_seats
        self._cache = cache
        self._queue = queue
        self._free_seats = list(range(max_seats - 1, -1, -1))
        self.prefilling: dict[Sequence, None] = {}
        self.decoding: dict[Sequence, None] = {}
        self.computing: dict[Sequence, TokenKey] = {}
        self.leaving: dict[Sequence, None] = {}
        self._table_changes: dict[Sequence, int] = {}
        """First page index from which the table that the executor knows is out of date."""
        self.events: list[PlanEvent] = []
        """What the next plan has to tell."""
        self.num_changes = 0
        """Counts whatever may let a request in that could not come in before."""

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.prefilling
        yield from self.decoding

    @property
    def num_free_seats(self) -> int:
        return len(self._free_seats)

    # --- coming and going

    def enter(self, sequence: Sequence, opening: Opening, key: TokenKey) -> None:
        """``sequence``, whose key is ``key``, takes a free seat and the table opened for it."""
        sequence.seat = self._free_seats.pop()
        sequence.table = opening.table
        sequence.num_computed = sequence.num_scheduled = opening.num_cached
        self.prefilling[sequence] = None
        self.computing[sequence] = key
        self._table_changes[sequence] = 0

    def start_decoding(self, sequence: Sequence) -> None:
        """Every known token of ``sequence`` is scheduled, and a step samples the next one."""
        del self.prefilling[sequence]
        self.decoding[sequence] = None

    def end(self, sequence: Sequence) -> None:
        """``sequence`` has ended: its seat is free, its pages are as soon as no launched step uses them."""
        self._leave(sequence)
        self.leaving[sequence] = None
        self.close_if_unused(sequence)

    def close_if_unused(self, sequence: Sequence) -> None:
        """Give back the pages of an ended sequence that no launched step has a row of any more.

        What it computed stays in the tree: ``num_computed`` tokens, hence never the last one sampled.
        """
        if sequence.num_in_flight:
            return
        assert sequence.table is not None
        self._close(sequence)
        sequence.table = None
        del self.leaving[sequence]
        self.num_changes += 1

    def preempt(self, sequence: Sequence, reason: PreemptionReason) -> None:
        """Send ``sequence`` back to wait: now, or at the commit of the launched step that has a row of it."""
        sequence.preempting = reason
        self.send_back_if_unused(sequence)

    def send_back_if_unused(self, sequence: Sequence) -> None:
        """Let a preempted sequence wait again.

        What it computed stays in the tree, so that resuming is a prefix hit while memory lasts.
        """
        if sequence.num_in_flight:
            return
        assert sequence.table is not None
        assert sequence.preempting is not None
        self.events.append(Preempted(sequence.request.request_id, sequence.num_computed, sequence.preempting))
        self._leave(sequence)
        self._close(sequence)
        sequence.wait_again()
        self._queue.push(sequence, cached_tokens=sequence.num_lost)

    def _close(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        key = sequence.key(sequence.num_computed)
        if sequence.trail is not None and self._cache.miss_ratio is not None:
            self._cache.miss_ratio.ended(sequence.trail, b"" if sequence.table.is_flushed else key)
        sequence.table.close(key, pinned_until=sequence.pinned_until)

    def _leave(self, sequence: Sequence) -> None:
        self.prefilling.pop(sequence, None)
        self.decoding.pop(sequence, None)
        self.computing.pop(sequence, None)
        self._table_changes.pop(sequence, None)
        self._free_seats.append(sequence.seat)
        sequence.seat = NO_SEAT
        self._queue.stopped(sequence)
        self.num_changes += 1

    # --- pages

    def grow_decodes(self) -> list[Sequence]:
        """Return the decoding sequences whose next token has a slot, pages given to those that needed one.

        Sends others back where KV is short, the newest first, of the lowest priority where the policy looks
        at it.
        """
        ready: list[Sequence] = []
        growing: list[Sequence] = []
        for sequence in self.decoding:
            if sequence.num_sampled < sequence.max_output and sequence.preempting is None:
                assert sequence.table is not None
                (ready if sequence.num_scheduled < sequence.table.num_slots else growing).append(sequence)
        if not growing:
            return ready
        pages = self._cache.allocate(len(growing))
        if not isinstance(pages, Shortfall):
            for sequence, page in zip(growing, pages, strict=True):
                self._grow(sequence, page)
            return ready + growing
        for sequence in sorted(growing, key=self._seniority):
            self._grow_one(sequence)
        return [
            s
            for s in ready + growing
            if s.table is not None and s.preempting is None and s.num_scheduled < s.table.num_slots
        ]

    def _grow_one(self, sequence: Sequence) -> None:
        """Give ``sequence`` a page, sending back others as needed, or itself if it is the first to go.

        Where pages come with the commit of a launched step, ``sequence`` sits out this step instead.
        """
        while sequence.table is not None and sequence.preempting is None:
            pages = self._cache.allocate(1)
            if not isinstance(pages, Shortfall):
                self._grow(sequence, pages[0])
            if not isinstance(pages, Shortfall) or self.pages_are_coming():
                return
            eligible = [s for s in self if s.preempting is None]
            self.preempt(max(eligible, key=self._seniority), "kv_full")

    def _grow(self, sequence: Sequence, page: int) -> None:
        assert sequence.table is not None
        self.note_table_change(sequence, sequence.table.grow(page))

    def pages_are_coming(self) -> bool:
        """Whether the commit of a launched step will give pages back."""
        return bool(self.leaving) or any(s.preempting for s in self)

    def _seniority(self, sequence: Sequence) -> tuple[int, int]:
        """Who has less goes last."""
        priority = sequence.request.priority if self._queue.policy.uses_priority else 0
        return -priority, sequence.arrival

    def priority_victims(self, priority: int, *, max_preemptions: int) -> list[Sequence]:
        """Return who may be sent back for a request of ``priority``, the first to go first.

        Left alone is who was admitted because it was overdue, and who was sent back often enough.
        """
        eligible = [
            s
            for s in self
            if s.request.priority < priority
            and s.preempting is None
            and not s.overdue
            and s.num_preemptions < max_preemptions
        ]
        return sorted(eligible, key=self._seniority, reverse=True)

    def headroom_pages(self, growth_tokens: int) -> int:
        """Return how many pages it takes to let all who run grow by ``growth_tokens``, or to their end."""
        num_pages = 0
        for sequence in self:
            assert sequence.table is not None
            growth = min(growth_tokens, sequence.max_output - sequence.num_sampled)
            end = sequence.num_tokens + growth
            num_pages += max(0, -(-end // self._cache.page_size) - len(sequence.table.pages))
        return num_pages

    # --- page tables of the executor

    def note_table_change(self, sequence: Sequence, first: int) -> None:
        """The executor does not know the pages of ``sequence`` from index ``first`` on."""
        self._table_changes[sequence] = min(first, self._table_changes.get(sequence, first))

    def take_page_updates(self, sequences: list[Sequence]) -> list[PageUpdate]:
        """Return what the executor must learn before it runs rows of ``sequences``."""
        if not self._table_changes:
            return []
        updates = []
        for sequence in sequences:
            first = self._table_changes.pop(sequence, None)
            if first is not None:
                assert sequence.table is not None
                updates.append(PageUpdate(sequence.seat, first, tuple(sequence.table.pages[first:])))
        return updates
