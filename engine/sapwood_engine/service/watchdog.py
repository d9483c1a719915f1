"""Tells a worker that hangs from one that computes for long: while it has work it says something after every step.

Looks are counted, not seconds: while all processes are stopped together, as a paused container's are, nobody looks.
"""

from __future__ import annotations

_NUM_LOOKS = 20
"""In the timeout; a hung worker is found so much of it late."""


class Watchdog:
    """Judges one worker, which is to be looked at every ``look_seconds``."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.look_seconds = timeout_seconds / _NUM_LOOKS
        self._num_silent_looks = 0
        """Since the last word, with work."""

    def heard(self) -> None:
        """The worker said something."""
        self._num_silent_looks = 0

    def is_hung(self, *, has_work: bool) -> bool:
        """Look once; return whether the worker has had work, and been silent, for the whole timeout or longer."""
        self._num_silent_looks = self._num_silent_looks + 1 if has_work else 0
        return self._num_silent_looks > _NUM_LOOKS
