"""Tokens of a conversation from those of its turns: each is tokenized once, and not again with every later one.

A tokenizer cuts a text at its added tokens ("<|im_end|>") first, and makes tokens of each piece alone. So the tokens of
a text are those of its parts in a row, where each part begins with an added token that is found wherever its text
stands::

    <|im_start|>user\\nhi | <|im_end|>\\n | <|im_start|>assistant\\nhello | <|im_end|>\\n | <|im_start|>user\\nmore

A part begins with that token and not behind it: some tokenizers treat what begins a text differently. Where a tokenizer
has no such token, or looks past them, texts are tokenized whole.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Hashable

from sapwood_text.tokenizer import Tokenizer

MOST_BYTES = 16 * 2**20
"""Of texts and tokens: some 600 conversations of 4,000 tokens."""
_ENTRY_BYTES = 512
"""Of a part, beyond its text and its tokens."""


class TurnCache:
    """The parts used last, with their tokens; for one thread."""

    def __init__(self, tokenizer: Tokenizer, *, most_bytes: int = MOST_BYTES) -> None:
        self._tokenizer = tokenizer
        self._cut = pattern_of(tokenizer.cuts())
        self._most_bytes = most_bytes
        self._parts: OrderedDict[tuple[Hashable, str], array[int]] = OrderedDict()
        self.num_bytes = 0
        """Never more than ``most_bytes``."""

    def encode(self, text: str, space: Hashable = None) -> array[int]:
        """Return the ids of ``text``, without special tokens added, exactly as `Tokenizer.encode` does.

        ``space``: whose text it is; nobody's time tells what texts of another were read before. Raises `UnusableText`
        where it does.
        """
        parts = [(space, part) for part in self._split(text)]
        missing = [part for part in dict.fromkeys(parts) if part not in self._parts]
        encoded = self._tokenizer.encode_all([part for _, part in missing], add_special_tokens=False)
        new = {part: array("i", ids) for part, ids in zip(missing, encoded, strict=True)}
        found = array("i")
        for part in parts:
            found.extend(new[part] if part in new else self._parts[part])
            if part in self._parts:
                self._parts.move_to_end(part)
        self._keep(new)
        return found

    def _split(self, text: str) -> list[str]:
        """Return the parts of ``text``, none of them empty but that of an empty text."""
        if self._cut is None:
            return [text]
        starts = [0, *(found.start() for found in self._cut.finditer(text) if found.start())]
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def _keep(self, new: dict[tuple[Hashable, str], array[int]]) -> None:
        if self._cut is None:
            return  # a whole text hardly comes again
        for part, ids in new.items():
            self._parts[part] = ids
            self.num_bytes += _size(part, ids)
        while self.num_bytes > self._most_bytes:
            self.num_bytes -= _size(*self._parts.popitem(last=False))


def pattern_of(cuts: frozenset[str]) -> re.Pattern[str] | None:
    """Return what finds each of ``cuts``; None for none."""
    return re.compile("|".join(map(re.escape, sorted(cuts)))) if cuts else None


def _size(part: tuple[Hashable, str], ids: array[int]) -> int:
    return sys.getsizeof(part[1]) + len(ids) * ids.itemsize + _ENTRY_BYTES
