"""What makes the gateway end: a signal, or the death of a background task that it cannot do without."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

_log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_SIGNAL = 128
"""Plus the signal's number: a second signal ended the program at once."""


class Ending:
    """Tells when to begin to end, and with which exit code; for one event loop."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.exit_code = 0
        self._is_signalled = False

    def heed_signals(self) -> None:
        """Begin at the first SIGTERM or SIGINT; the second ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take, number)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Begin when ``task`` ends by itself, however it does; one that is cancelled was told to."""

        def over(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                self.died(task.get_name(), task.exception())

        task.add_done_callback(over)

    def died(self, name: str, error: BaseException | None) -> None:
        """Begin because a background task is gone: without it the gateway would go on with old news of the replicas.

        The exit code says so to whatever starts the program again.
        """
        _log.critical("a background task has died: the gateway ends", exc_info=error, extra={"task": name})
        self.exit_code = EXIT_FAILED
        self.begun.set()

    def _take(self, number: int) -> None:
        if self._is_signalled:
            os._exit(EXIT_SIGNAL + number)
        self._is_signalled = True
        self.begun.set()
