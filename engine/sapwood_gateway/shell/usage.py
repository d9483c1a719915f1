"""What an answer says of its tokens, read from its last bytes as they pass by: nothing is held back for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

TAIL_BYTES = 1_024
"""An engine writes its usage at the end; two events of a stream fit in."""
_COMPLETION = re.compile(rb'"completion_tokens":\s?(\d{1,9})\b')
_CACHED = re.compile(rb'"cached_tokens":\s?(\d{1,9})\b')
"""Not to be found inside a text: there each ``"`` stands behind a ``\\``, also the one after the name."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one answer."""

    completion_tokens: int
    cached_tokens: int


def usage_of(tail: bytes) -> Usage | None:
    """Return the usage in the last bytes of an answer; None where there is none, as in a stream not asked for it."""
    completion, cached = _COMPLETION.findall(tail), _CACHED.findall(tail)
    return Usage(int(completion[-1]), int(cached[-1])) if completion and cached else None
