"""Keeps the index equal to one engine's cache by the events that the engine publishes.

Batches are numbered from 0 on within an epoch, which is drawn when the engine starts, with an empty cache. So number 0
begins from nothing, whatever was known; a number that follows on is applied; anything else means that something was
missed, and what may be untrue is worse than nothing: the replica's blocks are forgotten until a snapshot tells all of
them. What comes while the snapshot is on its way is kept for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sapwood_gateway.core.prefix_index import PrefixIndex

MOST_KEPT_BATCHES = 1_024
"""Kept for a snapshot. More would only be needed where it takes so long that asking for another is right."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The engine holds ``blocks``, which follow each other."""

    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """The engine holds ``blocks`` no more."""

    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """The engine holds nothing any more."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What an engine publishes at once; of a snapshot, all blocks after the batch ``sequence``, -1 for before any."""

    epoch: str
    """Empty where the publisher (vLLM's) has none."""
    sequence: int
    events: Sequence[Event]
    told_at: float | None = None
    """Seconds since 1970 by the engine's clock; None where it was not said."""


Applied = Literal["applied", "ignored", "gap"]
"""``ignored``: it was there already, or waits for a snapshot, or is a snapshot that nobody waits for. ``gap``:
something was missed; ask for a snapshot and give it to `BlockFeed.heal`."""


class BlockFeed:
    """One replica's events into the index, which the replica must have joined; at first its blocks are not known."""

    def __init__(self, index: PrefixIndex, replica: str) -> None:
        self._index = index
        self._replica = replica
        self._epoch = ""
        self._next = 0
        """The number that follows on, while the feed is exact."""
        self._is_exact = False
        self._waits = False
        """Whether a snapshot was asked for."""
        self._kept: deque[Batch] = deque(maxlen=MOST_KEPT_BATCHES)

    @property
    def last_applied(self) -> tuple[str, int] | None:
        """Epoch and number of the batch after which the engine held what the index holds; None while none is known."""
        return (self._epoch, self._next - 1) if self._is_exact else None

    def apply(self, batch: Batch) -> Applied:
        """Take the next batch."""
        if batch.sequence == 0:
            self._begin(batch.epoch, 0)
        elif self._waits:
            self._kept.append(batch)
            return "ignored"
        elif self._is_exact and batch.epoch == self._epoch != "" and batch.sequence < self._next:
            return "ignored"  # sent again. Without an epoch it may as well be another engine's.
        if not self._is_exact or batch.epoch != self._epoch or batch.sequence != self._next:
            self.lose()
            self._waits = True
            self._kept.append(batch)
            return "gap"
        self._next += 1
        self._enter(batch.events)
        return "applied"

    def heal(self, snapshot: Batch) -> Applied:
        """Take all blocks that there are, then what came meanwhile; ``gap`` where that does not follow on."""
        if self._is_exact:
            return "ignored"
        kept = list(self._kept)
        self._begin(snapshot.epoch, snapshot.sequence + 1)
        self._enter(snapshot.events)
        for batch in kept:
            if batch.epoch == snapshot.epoch and batch.sequence >= self._next and self.apply(batch) == "gap":
                return "gap"
        return "applied"

    def lose(self) -> None:
        """Know nothing until a snapshot, or a new engine's first batch: the connection was lost, say."""
        self._index.clear(self._replica)
        self._is_exact = self._waits = False
        self._kept.clear()

    def _begin(self, epoch: str, following: int) -> None:
        self.lose()
        self._epoch, self._next, self._is_exact = epoch, following, True

    def _enter(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Stored(blocks):
                    self._index.store(self._replica, blocks)
                case Removed(blocks):
                    self._index.remove(self._replica, blocks)
                case Cleared():
                    self._index.clear(self._replica)
