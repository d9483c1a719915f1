"""One process at a time: a lock that its holder's end releases, however it ends."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock at ``path`` (made, and left there); says so if it must wait for ``what`` by another process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for {what} by another process")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """Tell the user, on stderr, what takes time."""
    print(f"[e2e] {line}", file=sys.stderr, flush=True)
