"""When spans begin and end: the time of day once a request, then the clock that never jumps.

So all spans of a request fit together, and none is bent by a clock that is set meanwhile.
"""

from __future__ import annotations

import time


class SpanClock:
    """The times of one request's spans."""

    def __init__(self) -> None:
        self._zero_ns = time.time_ns() - time.monotonic_ns()
        """The time of day when the monotonic clock was 0."""

    def now(self) -> int:
        """Return the time now, in nanoseconds since 1970."""
        return self._zero_ns + time.monotonic_ns()

    def at(self, seconds: float) -> int:
        """Return the time at which the monotonic clock of this machine showed ``seconds``."""
        return self._zero_ns + int(seconds * 1_000_000_000)
