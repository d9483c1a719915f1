"""When a tick was: ticks are counters, and seconds are wanted of a few of them.

Notes say which tick it was at which time. Their number is bounded, so that the time of a tick long past is known less
exactly than that of a recent one.
"""

from __future__ import annotations

from bisect import bisect_left


class TickTimes:
    """Notes in the order of ticks and times."""

    def __init__(self, *, most_notes: int = 1024) -> None:
        self._most_notes = most_notes
        self._ticks: list[int] = []
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._ticks)

    def note(self, tick: int, now: float) -> None:
        """``tick`` was the last one before ``now``. Amortised O(1)."""
        if self._ticks and self._ticks[-1] >= tick:
            # Nothing happened since the last note, so what happens next happens now.
            self._times[-1] = now
            return
        self._ticks.append(tick)
        self._times.append(now)
        if len(self._ticks) > self._most_notes:
            # Every second note of the older half: each halving doubles the gaps of what is older still.
            del self._ticks[1 : self._most_notes // 2 : 2]
            del self._times[1 : self._most_notes // 2 : 2]

    def time_of(self, tick: int) -> float:
        """Return the time of the last note before ``tick``, of the first one where there is none before; O(log n).

        There must be a note.
        """
        return self._times[max(0, bisect_left(self._ticks, tick) - 1)]
