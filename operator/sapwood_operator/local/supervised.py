"""One program that is kept running: started again when it ends, later and later while it keeps ending."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sapwood_operator.local.pod import Exit
from sapwood_operator.local.processes import Process

_LONGEST_REST_SECONDS = 30.0
_CANNOT_BE_STARTED = 127
"""As a shell tells it."""
_STEADY_SECONDS = 60.0
"""Who has run for so long is no longer one that keeps ending."""


def rest_seconds(num_failures: int) -> float:
    """Return the pause before a start: 0 after the first end, then 1, 2, 4 … 30."""
    return 0.0 if num_failures <= 1 else min(2.0 ** (num_failures - 2), _LONGEST_REST_SECONDS)


@dataclass(frozen=True, slots=True)
class Running:
    """It has a process."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """It has none until its time has come, in seconds on the monotonic clock."""

    until: float


class Supervised:
    """Keeps one program running; `step` is to be called several times a second."""

    def __init__(self, start: Callable[[], Process]) -> None:
        self._start = start
        self._process: Process | None = None
        self._started_at = 0.0
        self._retry_at = 0.0
        self._num_failures = 0
        self.num_restarts = 0
        self.last_exit: Exit | None = None
        self.is_leaving = False
        """It is to end, and is not started again."""

    @property
    def state(self) -> Running | Waiting:
        """Whether it runs, as the last step found."""
        return Running() if self._process is not None else Waiting(self._retry_at)

    def step(self, now: float) -> None:
        """Notice an end, and start it where its time has come."""
        if self._process is not None:
            code = self._process.exit_code()
            if code is None:
                return
            self._ended(Exit(code=code, last_words=self._process.last_words()), now)
        if not self.is_leaving and now >= self._retry_at:
            self.num_restarts += self.last_exit is not None
            self._started_at = now
            try:
                self._process = self._start()
            except OSError as error:
                self._ended(Exit(code=_CANNOT_BE_STARTED, last_words=str(error)), now)

    def _ended(self, end: Exit, now: float) -> None:
        self._process = None
        self.last_exit = end
        self._num_failures = 1 if now - self._started_at >= _STEADY_SECONDS else self._num_failures + 1
        self._retry_at = now + rest_seconds(self._num_failures)

    def terminate(self) -> None:
        """Ask it to end; it is not started again."""
        self.is_leaving = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now; it is not started again."""
        self.is_leaving = True
        if self._process is not None:
            self._process.kill()
