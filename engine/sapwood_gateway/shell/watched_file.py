"""A file that is read anew whenever it has changed, seen by a look now and then: no service of the system is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 0.25
"""Between two looks: one costs a microsecond or two."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the file holds now; it is another than at the last look."""

    text: bytes


@dataclass(frozen=True, slots=True)
class CannotBeRead:
    """The file is away, or not to be read; ``reason`` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class AsBefore:
    """Nothing has happened since the last look."""


class WatchedFile:
    """Tells one file's content whenever it is another one.

    A writer that replaces the file (writes a new one and renames it) is never seen half way.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | str = ""
        """Inode, size and time of what was read last, or why it could not be read."""

    def look(self) -> Content | CannotBeRead | AsBefore:
        """Return what is new since the last look; blocks for as long as reading takes."""
        try:
            found = self.path.stat()
            mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if mark == self._seen:
                return AsBefore()
            text = self.path.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason == self._seen:
                return AsBefore()
            self._seen = reason
            return CannotBeRead(reason)
        self._seen = mark
        return Content(text)
