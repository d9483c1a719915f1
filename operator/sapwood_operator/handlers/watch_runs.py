"""Whether the watches go on, decided: when the next run of kopf begins after one broke off, and when to give them up.

Times are seconds of one monotonic clock, given by the caller.
"""

from __future__ import annotations

import math

FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 30.0
"""Between two runs; the pause doubles from the first to the last."""
LASTING_SECONDS = 60.0
"""A run that has lasted so long watches: nothing of what broke the ones before is left."""
GIVE_UP_SECONDS = 300.0
"""How long runs may break off one after the other before the program should be started anew."""


class WatchRuns:
    """The runs so far. One thread begins and ends them, any may ask."""

    def __init__(self) -> None:
        self._began = math.inf
        """Of the run under way."""
        self._broken_since = math.inf
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def begin(self, now: float) -> None:
        """A run begins."""
        self._began = now

    def end(self, now: float) -> float:
        """The run broke off; return after how many seconds the next may begin."""
        if self._lasts(now):
            self._broken_since, self._pause_seconds = math.inf, FIRST_PAUSE_SECONDS
        self._broken_since = min(self._broken_since, now)
        self._began = math.inf
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LAST_PAUSE_SECONDS)
        return pause

    def are_given_up(self, now: float) -> bool:
        """Whether no run has lasted for too long."""
        return now - self._broken_since >= GIVE_UP_SECONDS and not self._lasts(now)

    def _lasts(self, now: float) -> bool:
        return now - self._began >= LASTING_SECONDS
