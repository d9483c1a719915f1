"""What is wrong with a document, told so that a person can mend it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sapwood_operator.errors import quote

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SECRET = re.compile(r"(^|\.)apiKeys(?![A-Za-z0-9_-])")
"""Where a key may stand by mistake, in the place of its hash."""
Step = str | int


@dataclass(frozen=True, slots=True)
class Problem:
    """One field that cannot be used."""

    path: str
    """As the API server writes it: ``spec.apiKeys[0].sha256``."""
    message: str
    """The value and what to do."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def unusable(path: str, value: object, fix: str) -> Problem:
    """Return the problem of a value that is there; it is quoted where it is short and no secret."""
    shown = "" if isinstance(value, dict | list) or is_secret(path) else f"{quote(value)} cannot be used: "
    return Problem(path, f"{shown}{fix}")


def is_secret(path: str) -> bool:
    """Whether nothing of what stands at ``path`` may be told."""
    return _SECRET.search(path) is not None


def below(path: str, step: Step) -> str:
    """Return the path of a field, an item or a key."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if not _PLAIN.fullmatch(step):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step
