"""Processes of this machine, started so that none outlives `sapwood local`.

Linux ends a child by itself when its parent dies (``PR_SET_PDEATHSIG``), also after a kill -9 of the parent. What an
engine or a gateway starts watches its own parent, so the whole tree goes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_LAST_WORDS_BYTES = 4096
_DIE_WITH_PARENT = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # it died before it could be watched
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What the new process runs before it becomes the program, as the same process. Set between fork and exec by ourselves
it would not be safe beside other threads, which read what engines answer.
"""


class Process(Protocol):
    """A program that was started."""

    def exit_code(self) -> int | None:
        """Return how it ended, as a shell tells it; None: it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it and all that it started."""
        ...

    def last_words(self) -> str:
        """Return the end of what it has written since it was started."""
        ...


class LocalProcess:
    """One process, the head of a group of its own: Ctrl-C in the terminal does not reach it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start ``argv``; its output is added to ``log``."""
        self._log = log
        with log.open("ab") as output:
            self._log_begin = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_own_environment(), **environment},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """As `Process.exit_code`; what it leaves behind of its own is ended."""
        if self._process.returncode is None and _has_ended(self.pid):
            # Not reaped yet, so the group's number is still its own.
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        code = self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    def terminate(self) -> None:
        """As `Process.terminate`."""
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """As `Process.kill`."""
        if self._process.returncode is None:
            self._signal_group(signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        """As `Process.last_words`."""
        try:
            with self._log.open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                log.seek(max(self._log_begin if self._log_begin <= size else 0, size - _LAST_WORDS_BYTES))
                return log.read(_LAST_WORDS_BYTES).decode("utf-8", "replace")
        except OSError:  # somebody has removed it
            return ""

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _own_environment() -> dict[str, str]:
    """Return what programs inherit: no key of an engine's API, for a pod has none that nobody gave it."""
    return {name: value for name, value in os.environ.items() if name != "SAPWOOD_API_KEY"}


def sapwood(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> LocalProcess:
    """Start a program of this installation."""
    return LocalProcess([sys.executable, "-m", "sapwood", *arguments], environment, log)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
