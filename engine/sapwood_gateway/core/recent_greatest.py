"""The greatest of some numbers of late: a gauge that a look now and then does not miss."""

from __future__ import annotations

from collections import deque


class RecentGreatest:
    """Numbers of the last ``seconds``; ``now`` never goes back."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: deque[tuple[float, float]] = deque()
        """When, and what: each greater than all after it, so the first is the greatest."""

    def note(self, value: float, now: float) -> None:
        """Take in ``value``."""
        while self._kept and self._kept[-1][1] <= value:
            self._kept.pop()
        self._kept.append((now, value))
        self._forget(now)

    def at(self, now: float) -> float:
        """Return the greatest; 0 where there was none."""
        self._forget(now)
        return self._kept[0][1] if self._kept else 0.0

    def _forget(self, now: float) -> None:
        while self._kept and self._kept[0][0] < now - self._seconds:
            self._kept.popleft()
