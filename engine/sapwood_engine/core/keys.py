"""What the prefix tree is indexed by: the bytes of a sequence's index units, one unit a KV slot.

Unit i holds what the KV of position i depends on beyond the units before it::

    tokens   t[i]            N tokens make N units
    pairs    t[i], t[i+1]    N tokens make N - 1 units: what EAGLE's draft model stores at a position depends on the
                             token behind it as well, so that position is shared only with who has that token too

A token is one int32, so that comparing two runs of tokens is one memcmp however long they are. Where prompts may
hold content (``content=True``) it is four: a plain id and zeros, or 127 bits drawn from the content's hash, and a mark.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import shake_128
from typing import Literal

from sapwood_engine.core.request import ContentSpan

KeyUnit = Literal["tokens", "pairs"]

TokenKey = bytes
"""int32 words in the machine's byte order (little-endian on everything Sapwood runs on)."""

_WORD_BYTES = 4
_CONTENT_WORDS = 4
_CONTENT_MARK = -(2**31)
"""The sign bit of a position's first word: set where content stands, never in a token id."""
_UNKNOWN_ID = -1


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """How sequences become keys; one for all sequences of a cache.

    Nothing outside the core chooses ``pairs`` (EAGLE drafting will) or ``content`` (models that see images will).
    """

    unit: KeyUnit = "tokens"
    content: bool = False
    """Whether prompts may have `ContentSpan`s."""

    @property
    def words_per_token(self) -> int:
        return _CONTENT_WORDS if self.content else 1

    @property
    def words_per_unit(self) -> int:
        return self.words_per_token * (2 if self.unit == "pairs" else 1)

    @property
    def unit_bytes(self) -> int:
        return self.words_per_unit * _WORD_BYTES

    def num_units(self, num_tokens: int) -> int:
        """Return how many units ``num_tokens`` tokens make."""
        return num_tokens if self.unit == "tokens" else max(0, num_tokens - 1)

    def num_tokens(self, num_units: int) -> int:
        """Return how many tokens it takes to make ``num_units`` units, at least one unit."""
        return num_units if self.unit == "tokens" else num_units + 1

    def key(self, token_ids: Iterable[int], content: Sequence[ContentSpan] = ()) -> TokenKey:
        """Return the key of ``token_ids``."""
        return GrowingKey(self, array("i", token_ids), content).key()

    def token_ids(self, key: TokenKey) -> list[int]:
        """Return the token at which each unit of ``key`` begins, -1 where content stands."""
        return [max(word, _UNKNOWN_ID) for word in memoryview(key).cast("i")[:: self.words_per_unit]]


TOKENS_ONLY = KeyFormat()
"""The format of every engine today."""


def token_key(token_ids: Iterable[int]) -> TokenKey:
    """Return the key of ``token_ids`` in the format `TOKENS_ONLY`."""
    return array("i", token_ids).tobytes()


class GrowingKey:
    """The key of a sequence that is only ever appended to; each of its units is written once."""

    __slots__ = ("_content", "_format", "_num_written", "_tokens", "_words")

    def __init__(self, key_format: KeyFormat, tokens: array[int], content: Sequence[ContentSpan]) -> None:
        """``tokens`` stays the caller's, who appends to it; ``content`` lies within it already."""
        assert key_format.content or not content, f"{len(content)} spans of content, and no room for them in the keys"
        self._format = key_format
        self._tokens = tokens
        self._content = content
        # Keys of nothing but tokens are the tokens' own bytes; all others are kept beside them.
        self._words = tokens if key_format.words_per_unit == 1 else array("i")
        self._num_written = 0

    def key(self, num_tokens: int | None = None) -> TokenKey:
        """Return the key of the first ``num_tokens`` tokens, of all of them where None."""
        if self._words is not self._tokens:
            self._catch_up()
        if num_tokens is None:
            return self._words.tobytes()
        return self._words[: self._format.num_units(num_tokens) * self._format.words_per_unit].tobytes()

    def _catch_up(self) -> None:
        begin, end = self._num_written, len(self._tokens)
        if begin == end:
            return
        self._num_written = end
        if self._format.unit == "tokens":
            self._words += self._elements(begin, end)
        else:
            self._words += _paired(self._elements(max(0, begin - 1), end), self._format.words_per_token)

    def _elements(self, begin: int, end: int) -> array[int]:
        """Return the words of the tokens ``begin … end - 1``, one token after the other."""
        if not self._format.content:
            return self._tokens[begin:end]
        size = _CONTENT_WORDS
        words = array("i", bytes((end - begin) * size * _WORD_BYTES))
        words[::size] = self._tokens[begin:end]
        for span in self._content:
            first, last = max(begin, span.start), min(end, span.end)
            if first < last:
                mine = _content_words(span)[(first - span.start) * size : (last - span.start) * size]
                words[(first - begin) * size : (last - begin) * size] = mine
        return words


def _paired(words: array[int], size: int) -> array[int]:
    """Return each element of ``size`` words followed by the one behind it; the last has none and stands for none."""
    num_words = len(words) - size
    paired = array("i", bytes(2 * num_words * _WORD_BYTES))
    for at in range(size):
        paired[at :: 2 * size] = words[at:num_words:size]
        paired[size + at :: 2 * size] = words[size + at :: size]
    return paired


def _content_words(span: ContentSpan) -> array[int]:
    """Return ``[length * 4]`` words: position after position of what SHAKE128 makes of length and content hash.

    127 bits a position and the mark: no plain token is equal to one for certain, another content's position or another
    offset's as good as never. A single position suffices for that, because a match may end at any.
    """
    seed = span.length.to_bytes(8, "little") + span.content_hash
    words = array("i", shake_128(seed).digest(span.length * _CONTENT_WORDS * _WORD_BYTES))
    words[::_CONTENT_WORDS] = array("i", [word | _CONTENT_MARK for word in words[::_CONTENT_WORDS]])
    return words
