"""A file that is read anew whenever it has changed, seen by a look now and then: no service of the system is needed."""

from __future__ import annotations

import stat
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
    """Nothing that counts has happened since the last look."""


class WatchedFile:
    """Tells one file's content whenever it is another one, and has been since the look before.

    So neither a writer that replaces the file nor one that writes into it is seen half way, but at the very first look.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | str = ""
        """The mark of what was read last, or why it could not be read."""
        self._changed: tuple[int, ...] = ()
        """The mark of what was there at the last look, where that was not read."""

    def look(self) -> Content | CannotBeRead | AsBefore:
        """Return what is new since the last look; blocks for as long as reading takes."""
        try:
            mark = _mark(self.path)
            if mark == self._seen:
                return AsBefore()
            is_being_written = self._seen != "" and mark != self._changed
            self._changed = mark
            if is_being_written:
                return AsBefore()
            text = self.path.read_bytes()
            if self._seen != "" and _mark(self.path) != mark:
                return AsBefore()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason == self._seen:
                return AsBefore()
            self._seen = reason
            return CannotBeRead(reason)
        self._seen = mark
        return Content(text)


def _mark(path: Path) -> tuple[int, ...]:
    """Return what is another whenever the content is: inode, size and time."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")  # reading a pipe could wait for ever
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
