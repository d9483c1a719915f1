"""Log-probabilities in the two shapes that OpenAI's endpoints use."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from sapwood_engine.api.answers import ChatLogprobs, ContentLogprob, TextLogprobs, TopLogprob
from sapwood_engine.service.generation import TokenInfo

FLOOR = -9999.0
"""Stands for anything lower, minus infinity included."""


def finite(logprob: float) -> float:
    """Return ``logprob`` as JSON can carry it."""
    return max(logprob, FLOOR)


def chat_logprobs(infos: Sequence[TokenInfo]) -> ChatLogprobs:
    """Return the chat endpoint's form of ``infos``."""
    return ChatLogprobs(
        [
            ContentLogprob(
                info.text,
                finite(info.logprob),
                list(info.bytes),
                [TopLogprob(text, finite(logprob), list(raw)) for _, text, raw, logprob in info.top],
            )
            for info in infos
        ]
    )


class TextLogprobWriter:
    """Builds the text endpoint's form of one choice's tokens, as they come.

    Offsets follow the decoded bytes, so a character split over two tokens starts once.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_characters = 0

    def write(self, infos: Sequence[TokenInfo], *, first_has_none: bool = False) -> TextLogprobs:
        """Return the entries of ``infos``; with ``first_has_none`` the first has no log-probability."""
        written = TextLogprobs([], [], [], [])
        for position, info in enumerate(infos):
            written.tokens.append(info.text)
            written.text_offset.append(self._num_characters)
            self._num_characters += len(self._decoder.decode(info.bytes))
            if first_has_none and position == 0:
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
                continue
            written.token_logprobs.append(finite(info.logprob))
            # The sampled token belongs to the alternatives even where it is not among the most likely.
            top = {info.text: finite(info.logprob)}
            for _, text, _, logprob in info.top:
                top.setdefault(text, finite(logprob))
            written.top_logprobs.append(top)
        return written


def extend(target: TextLogprobs, more: TextLogprobs) -> None:
    """Append ``more`` to ``target``, in place."""
    target.tokens.extend(more.tokens)
    target.token_logprobs.extend(more.token_logprobs)
    target.top_logprobs.extend(more.top_logprobs)
    target.text_offset.extend(more.text_offset)
