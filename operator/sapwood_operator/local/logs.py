"""The folder with the log of every program, bounded in files and in bytes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_BYTES = 4 * 2**20
"""Of one log; twice as much with what was moved aside."""
MAX_FILES = 40
"""Of programs that have run before."""


class Logs:
    """One folder of logs."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, and remove the oldest logs beyond `MAX_FILES`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        by_age = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_age[MAX_FILES:]:
            path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Return the log of one program."""
        return self.folder / f"{name}.log"

    def bound(self) -> None:
        """Move aside what large logs hold; who writes only adds, and goes on in the same file.

        What is written in this very moment may be lost.
        """
        for path in self.folder.glob("*.log"):
            with contextlib.suppress(OSError):  # removed meanwhile, or a full disk: the next time will do
                if not path.name.endswith(_ASIDE) and path.stat().st_size > MAX_BYTES:
                    path.with_name(path.stem + _ASIDE).write_bytes(path.read_bytes())
                    os.truncate(path, 0)


_ASIDE = ".1.log"
