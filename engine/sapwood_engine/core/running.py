"""Who runs: seats, the sequences in them, and which of them is sent back when room is short.

A sequence that runs is in exactly one of ``prefilling`` (tokens known and not yet scheduled) and
``decoding`` (all known tokens scheduled). ``computing`` holds those whose known tokens are not all computed
and stored yet: others that share the prefix may wait for them. ``leaving`` holds ended sequences that a
launched step still has a row of.
"""

from __future__ import annotations

from collections.abc import Iterator

from sapwood_engine.core.sequence import NO_SEAT, Sequence


class RunningSet:
    """Dictionaries are used as ordered sets: in the order of admission, with removal in O(1)."""

    __slots__ = ("_free_seats", "computing", "decoding", "leaving", "max_seats", "prefilling")

    def __init__(self, max_seats: int) -> None:
        self.max_seats = max_seats
        self._free_seats = list(range(max_seats - 1, -1, -1))
        self.prefilling: dict[Sequence, None] = {}
        self.decoding: dict[Sequence, None] = {}
        self.computing: dict[Sequence, None] = {}
        self.leaving: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.prefilling
        yield from self.decoding

    @property
    def num_free_seats(self) -> int:
        return len(self._free_seats)

    def enter(self, sequence: Sequence) -> None:
        """``sequence`` takes a free seat and begins to compute."""
        sequence.seat = self._free_seats.pop()
        self.prefilling[sequence] = None
        self.computing[sequence] = None

    def start_decoding(self, sequence: Sequence) -> None:
        """Every known token of ``sequence`` is scheduled."""
        del self.prefilling[sequence]
        self.decoding[sequence] = None

    def leave(self, sequence: Sequence) -> None:
        """``sequence`` gives its seat back."""
        self.prefilling.pop(sequence, None)
        self.decoding.pop(sequence, None)
        self.computing.pop(sequence, None)
        self._free_seats.append(sequence.seat)
        sequence.seat = NO_SEAT

    def num_coming_pages(self) -> int:
        """Pages that come back with the commit of a launched step, at most: pages shared with others do
        not."""
        leaving = sum(len(s.table.pages) for s in self.leaving if s.table)
        return leaving + sum(len(s.table.pages) for s in self if s.preempting and s.table)

    def victim(self, *, uses_priority: bool) -> Sequence | None:
        """Return who is sent back first when KV is short: the newest, of the lowest priority where that
        counts."""
        eligible = [s for s in self if s.preempting is None]
        return max(eligible, key=lambda s: _seniority(s, uses_priority), default=None)

    def by_seniority(self, sequences: list[Sequence], *, uses_priority: bool) -> list[Sequence]:
        """Return ``sequences`` with those first that are sent back last."""
        return sorted(sequences, key=lambda s: _seniority(s, uses_priority))

    def priority_victims(self, priority: int, *, max_preemptions: int) -> list[Sequence]:
        """Return who may be sent back for a request of ``priority``, worst first."""
        eligible = [
            s
            for s in self
            if s.request.priority < priority
            and s.preempting is None
            and not s.overdue
            and s.num_preemptions < max_preemptions
        ]
        return sorted(eligible, key=lambda s: _seniority(s, True), reverse=True)

    def headroom_pages(self, *, page_size: int, growth_tokens: int) -> int:
        """Return how many pages it takes to let every running sequence grow by ``growth_tokens``, or to its
        end."""
        pages = 0
        for sequence in self:
            assert sequence.table is not None
            end = sequence.num_tokens + min(growth_tokens, sequence.max_output - sequence.num_sampled)
            pages += max(0, -(-end // page_size) - len(sequence.table.pages))
        return pages


def _seniority(sequence: Sequence, uses_priority: bool) -> tuple[int, int]:
    return (-sequence.request.priority if uses_priority else 0, sequence.arrival)
