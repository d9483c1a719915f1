"""What an answer says of its tokens, read from its last bytes as they pass by: nothing is held back for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

TAIL_BYTES = 1_024
"""An engine writes its usage at the end; two events of a stream fit in."""
_PROMPT = re.compile(rb'"prompt_tokens":\s?(\d{1,9})\b')
_COMPLETION = re.compile(rb'"completion_tokens":\s?(\d{1,9})\b')
_CACHED = re.compile(rb'"cached_tokens":\s?(\d{1,9})\b')
"""Not to be found inside a text: there each ``"`` stands behind a ``\\``, also the one after the name."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one answer."""

    completion_tokens: int
    cached_tokens: int | None
    """None where it is not told."""


def usage_of(tail: bytes) -> Usage | None:
    """Return the usage in the last bytes of an answer; None where there is none, as in a stream not asked for it."""
    completion, cached = _COMPLETION.findall(tail), _CACHED.findall(tail)
    return Usage(int(completion[-1]), int(cached[-1]) if cached else None) if completion else None


class Meter:
    """What one answer has brought, piece by piece, and how many tokens that is."""

    def __init__(self, prompt_estimate: int = 0) -> None:
        """``prompt_estimate``: tokens of the request, where the answer does not tell."""
        self.is_answered = False
        """An engine has begun to answer."""
        self.tail = b""
        """Its last bytes."""
        self._prompt_estimate = prompt_estimate
        self._is_refusal = False
        self._is_stream = False
        self._num_events = 0

    def begins(self, status: int, *, is_stream: bool) -> None:
        """An engine answers."""
        self.is_answered = True
        self._is_refusal = status >= 400
        self._is_stream = is_stream

    def passes(self, piece: bytes) -> None:
        """Take note of ``piece`` on its way to the client."""
        self.tail = (self.tail + piece)[-TAIL_BYTES:]
        self._num_events += piece.count(b"\n\n")

    def used_tokens(self) -> int | None:
        """Return the tokens that were computed for the answer; None where that cannot be known.

        A stream that was not asked for its usage, or did not come to it, is taken to have a token an event, as an
        engine sends them; what else broke off tells nothing.
        """
        if self._is_refusal:
            return 0
        prompt, completion = _PROMPT.findall(self.tail), _COMPLETION.findall(self.tail)
        if prompt and completion:
            return int(prompt[-1]) + int(completion[-1])
        return self._prompt_estimate + self._num_events if self._is_stream else None
