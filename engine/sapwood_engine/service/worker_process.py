"""The worker process as its parent sees it: started, watched, ended. Imports next to nothing: it comes
first.

A process of its own that imports torch, so that this one does not. It is spawned afresh, never forked: a
fork of a process with threads and an event loop inherits their locks. Two ends of one pipe tie the lives
together: the worker reads its standard input, which ends when this process does, however it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

_STANDARD_INPUT = 0
_END_SECONDS = 2.0
"""How long a worker that was asked to end may take before it is killed."""


class WorkerProcess:
    """One child process."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start ``command``. What it prints goes to this process's stderr, in full."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            # A terminal's Ctrl-C reaches every process of the session: this one decides when the worker ends.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call ``ended`` from a thread, once, with the exit code; negative: the signal that ended it."""
        threading.Thread(target=lambda: ended(self._process.wait()), name="worker-watch", daemon=True).start()

    def kill(self) -> None:
        """End it at once; idempotent."""
        self._process.kill()

    def let_go(self) -> None:
        """Close its standard input, as this process's own end would: it ends at once. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Wait for a worker that was asked to end, two seconds at most, then kill it; idempotent."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self.let_go()


def watch_parent(ended: Callable[[], None]) -> None:
    """In the worker: call ``ended`` from a thread once the process that started it is gone."""

    def watch() -> None:
        # Not through sys.stdin: at exit the interpreter would wait for its lock, which this thread holds.
        while os.read(_STANDARD_INPUT, 1):
            pass
        ended()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
