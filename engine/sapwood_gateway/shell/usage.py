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

    def __init__(self, *, prompt_estimate: int = 0, price: int = 0) -> None:
        """Both in tokens, where the answer does not tell: of the prompt, and of the whole request."""
        self._num_at_work = 0
        """Engines that were sent the request and did not refuse it."""
        self.tail = b""
        """Its last bytes."""
        self._prompt_estimate = prompt_estimate
        self._price = price
        self._is_refusal = False
        self._is_stream = False
        self._num_events = 0
        self._read: tuple[bytes, Usage | None] = (b"", None)
        """`usage`, and of what it was read."""

    @property
    def is_answer(self) -> bool:
        """Whether an engine has worked on the answer and did not refuse the request."""
        return self._num_at_work > 0 and not self._is_refusal

    @property
    def is_owed(self) -> bool:
        """Whether an engine has worked on the answer, as far as anybody can know."""
        return self._num_at_work > 0

    def sent(self) -> None:
        """An engine is sent the request: it works from now on, whether or not its answer is waited for."""
        self._num_at_work += 1

    def refused(self) -> None:
        """The engine that was sent it last did not work on it, or has failed."""
        self._num_at_work -= 1

    def begins(self, status: int, *, is_stream: bool) -> None:
        """An engine answers."""
        self._is_refusal = status >= 400
        self._is_stream = is_stream

    def passes(self, piece: bytes) -> None:
        """Take note of ``piece`` on its way to the client."""
        self._num_events += (self.tail[-1:] + piece).count(b"\n\n")
        self.tail = (self.tail + piece)[-TAIL_BYTES:]

    def usage(self) -> Usage | None:
        """Return what the answer says of itself, as of `usage_of`."""
        if self._read[0] is not self.tail:
            self._read = self.tail, usage_of(self.tail)
        return self._read[1]

    def num_prompt_tokens(self) -> int:
        """Return how many tokens the prompt has, as far as anybody has told."""
        told = _PROMPT.findall(self.tail)
        return int(told[-1]) if told else self._prompt_estimate

    def num_answer_tokens(self) -> int:
        """Return how many tokens the answer has, by its usage, or else by its events so far."""
        usage = self.usage()
        return self._num_events if usage is None else usage.completion_tokens

    def used_tokens(self) -> int | None:
        """Return the tokens that were computed for the answer; None where that cannot be known.

        A stream that did not come to its end costs its price, for tokens without text have no events, and as many
        tokens more as there are events beyond; what else broke off tells nothing.
        """
        if self._is_refusal:
            return 0
        prompt, completion = _PROMPT.findall(self.tail), _COMPLETION.findall(self.tail)
        if prompt and completion:
            return int(prompt[-1]) + int(completion[-1])
        return max(self._price, self._prompt_estimate + self._num_events) if self._is_stream else None
