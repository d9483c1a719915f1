"""Text to token ids and back, exact to the byte.

Decoding goes by bytes, never by strings: a token is a run of bytes, a character may lie across two tokens,
and a genuine U+FFFD is three bytes like any other. Invariant: for every way of cutting a byte string into
tokens, what `Detokenizer` delivers joined equals `Tokenizer.decode` of all ids, and both drop an incomplete
character at the end.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import tokenizers

from sapwood_text.bundle import TokenizerBundle, write_bundle
from sapwood_text.errors import UnusableText, UnusableTokenizer

_SENTENCEPIECE_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_SHORTCUT_RANGES = ((0x21, 0x7E), (0xA1, 0xAC), (0xAE, 0xFF))
"""Bytes that byte-level BPE writes as the character of the same number (GPT-2, `encoder.py`)."""
_NFC_SHRINKS = 4
"""Characters that NFC may make one of, at most: no canonical decomposition is longer (UAX #15)."""


class ChatTemplate(Protocol):
    """How a model writes conversations; `sapwood_text.chat_template.JinjaTemplate` is it, and heavy to import."""

    @property
    def source(self) -> str: ...

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Raises `UnusableText` where it refuses the messages."""
        ...


class Tokenizer:
    """One model's vocabulary. May be used from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """Raise `UnusableTokenizer` when the vocabulary's way of writing bytes is unknown."""
        self._backend = backend
        self._chat_template = chat_template
        self.eos_token_ids = eos_token_ids
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._spelling = _Spelling(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
        self._bytes = {token_id: token.content.encode() for token_id, token in added.items()}

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can be used."""
        return self._chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool, field: str = "prompt") -> list[int]:
        """Return the ids of ``text``; the text of a special token in it becomes that token, as in
        transformers.

        Raises `UnusableText` naming ``field`` for text that is not Unicode (a lone surrogate).
        """
        return self.encode_all([text], add_special_tokens=add_special_tokens, field=field)[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool, field: str = "prompt") -> list[list[int]]:
        """Return the ids of each of ``texts``; as of `encode`."""
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise UnusableText(
                    field, text[error.start : error.end], "it is half of a surrogate pair, not a character"
                ) from None
        # A batch, also of one: `encode` keeps Python's lock, and a long text would stop every other thread. The fast
        # one does not say where in the text each token stands.
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def cuts(self) -> frozenset[str]:
        """Return the texts of added tokens each of which cuts any text, as one token, wherever it stands.

        What begins with one and ends before the next has the same tokens alone as inside a text (without special tokens
        added). So it is for added tokens that are looked for before anything else is done to a text and take in no
        spaces, where none overlaps another: where one stood inside or across another, the other could be found in its
        place. None are returned where the tokenizer cuts off long texts, or draws lots.
        """
        added = self._backend.get_added_tokens_decoder().values()
        texts = [token.content for token in added]
        if (
            self._backend.truncation is not None
            or self._backend.padding is not None
            or getattr(self._backend.model, "dropout", None)
            or any(token.lstrip or token.rstrip or token.single_word for token in added)
        ):
            return frozenset()
        return frozenset(
            token.content
            for token in added
            if token.content and not token.normalized and not any(_overlaps(other, token.content) for other in texts)
        )

    @cached_property
    def max_characters_per_token(self) -> float:
        """A text of more than ``n`` times this many characters certainly has more than ``n`` tokens.

        Infinite where the tokenizer may drop text or make one token of any length of it.
        """
        backend = self._backend
        added = backend.get_added_tokens_decoder().values()
        pieces = _steps(backend.pre_tokenizer, "pretokenizers")
        if (
            backend.truncation is not None
            or any(token.lstrip or token.rstrip for token in added)
            or not self._spelling.knows_all_text(backend, pieces)
            or not all(_keeps_text(step) for step in pieces)
        ):
            return math.inf
        spelled = max(map(len, backend.get_vocab(with_added_tokens=False)), default=1)
        longest = max([spelled, *(len(token.content.encode()) for token in added)])
        return longest * math.prod(map(_shrinks, _steps(backend.normalizer, "normalizers")))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``, without an incomplete character at its end."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that the token stands for; empty for an id that the vocabulary does not hold."""
        data = self._bytes.get(token_id)
        if data is None:
            token = self._backend.id_to_token(token_id)
            # Spelled out on first use: a vocabulary has 150,000 entries, a start has no time for them.
            data = self._bytes[token_id] = b"" if token is None else self._spelling.to_bytes(token)
        return data

    def is_special(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves the token out."""
        return token_id in self._special_ids

    @property
    def strips_first_space(self) -> bool:
        """Whether the space that begins a text is the tokenizer's own, as in sentencepiece."""
        return self._spelling.strips_first_space

    def render_chat(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        """Return the conversation as the model's chat template writes it.

        Raises `UnusableText` where the model has no template or its template refuses the messages.
        """
        if self._chat_template is None:
            raise UnusableText(
                "messages", len(messages), "this model has no chat template; use /v1/completions", code=None
            )
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt, **template_kwargs)

    def bundle(self, model_revision: str) -> bytes:
        """Return what `sapwood_text.prompt_reader.PromptReader.from_bundle` makes a reader of the same ids of.

        It takes tens of milliseconds, in which no other thread runs.
        """
        template = self._chat_template
        return write_bundle(
            TokenizerBundle(
                model_revision=model_revision,
                tokenizer=self._backend.to_str(),
                chat_template=None if template is None else template.source,
                special_tokens={} if template is None else dict(template.special_tokens),
            )
        )


class Detokenizer:
    """Turns one stream of ids into text, holding back only the bytes of an unfinished character."""

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, prompt_tail_ids: Sequence[int] = ()
    ) -> None:
        """``prompt_tail_ids``: what the stream continues, if anything; only whether it is empty matters."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strips_first_space and not prompt_tail_ids

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that ``ids`` completed."""
        tokenizer = self._tokenizer
        if self._skip_special_tokens:
            data = b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i))
        else:
            data = b"".join(map(tokenizer.token_bytes, ids))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The stream is over: drop an unfinished character, whose bytes say nothing; there is nothing
        else to tell.
        """
        self._decoder.reset()
        return ""


class _Spelling:
    """How a vocabulary writes bytes: byte-level BPE, or sentencepiece with byte fallback."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        steps = [] if decoder is None else decoder.get("decoders", [decoder])
        kinds = {step["type"] for step in steps}
        self._byte_level = "ByteLevel" in kinds
        if not self._byte_level and not kinds & {"Metaspace", "ByteFallback", "Replace"}:
            raise UnusableTokenizer(
                f"its decoder is of a kind that is not read here ({', '.join(sorted(kinds)) or 'none'})",
                "Byte-level BPE and sentencepiece vocabularies are.",
            )
        self.strips_first_space = any(
            step["type"] == "Strip" or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in steps
        )

    def knows_all_text(self, backend: tokenizers.Tokenizer, pieces: list[dict[str, Any]]) -> bool:
        """Whether no text is unknown to the vocabulary, and so dropped or taken together."""
        if self._byte_level:
            writes_bytes = any(step["type"] == "ByteLevel" for step in pieces)
            return writes_bytes and all(backend.token_to_id(char) is not None for char in _BYTE_OF_CHAR)
        falls_back = getattr(backend.model, "byte_fallback", False)
        return falls_back and all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))

    def to_bytes(self, token: str) -> bytes:
        if self._byte_level:
            if all(char in _BYTE_OF_CHAR for char in token):
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace(_SENTENCEPIECE_SPACE, " ").encode()


def _overlaps(other: str, text: str) -> bool:
    """Whether ``other`` can stand in a text so that it holds a part of ``text``, or all of it and more."""
    return (other != text and text in other) or any(
        other[-length:] == text[:length] for length in range(1, min(len(other), len(text) - (other == text)) + 1)
    )


def _steps(part: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which may be None, one step or a sequence."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    return list(state.get(name, [state]))


def _keeps_text(pre_tokenizer: dict[str, Any]) -> bool:
    if pre_tokenizer["type"] == "Split":
        return bool(pre_tokenizer["behavior"] != "Removed")
    return pre_tokenizer["type"] in ("ByteLevel", "Digits", "Metaspace")


def _shrinks(normalizer: dict[str, Any]) -> float:
    """How many characters the step may make one of."""
    match normalizer:
        case {"type": "NFC"}:
            return _NFC_SHRINKS
        case {"type": "Prepend"}:
            return 1
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if len(old) <= len(new):
            return 1
    return math.inf


def _byte_level_alphabet() -> dict[str, int]:
    """Printable bytes stand for themselves; the others, in order, for the characters from U+0100 on."""
    printable = [byte for first, last in _SHORTCUT_RANGES for byte in range(first, last + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()
