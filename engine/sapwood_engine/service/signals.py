"""SIGTERM and SIGINT from the program's first moment on: the first asks it to end, a second ends it at once.

Until there is an event loop the first is only noted: an exception out of a handler may be lost in the middle of an
import.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from sapwood_engine.service.exit_codes import EXIT_SIGNAL

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Both signals are taken from its creation on, which is the main thread's to do."""

    def __init__(self) -> None:
        self.came = False
        self._stop: Callable[[], None] = _nothing
        self._end_at_once: Callable[[], None] = _nothing
        for number in _SIGNALS:
            signal.signal(number, lambda number, _frame: self._take(number))

    def hand_over(self, *, stop: Callable[[], None], end_at_once: Callable[[], None]) -> None:
        """From now on have the running loop call ``stop`` at the first signal, at once where it has come already.

        ``end_at_once`` is called at the second, before the process ends.
        """
        self._stop, self._end_at_once = stop, end_at_once
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._take, number)
        if self.came:
            stop()

    def _take(self, number: int) -> None:
        if self.came:
            self._end_at_once()
            os._exit(EXIT_SIGNAL + number)
        self.came = True
        self._stop()


def _nothing() -> None:
    pass
