"""Tokens put together of turns are those of the whole text, for every tokenizer; and turns are kept within bounds."""

from __future__ import annotations

from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from support_service import byte_backend, byte_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from sapwood_engine.checkpoint.source import open_checkpoint
from sapwood_engine.service.tokenizer_files import load_tokenizer
from sapwood_text.errors import UnusableText
from sapwood_text.tokenizer import Tokenizer
from sapwood_text.turns import TurnCache

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
TURN_TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>")
PIECES = (
    *TURN_TOKENS,
    "<|im_",
    "end|>",
    "<",
    ">",
    "|",
    "/s",
    " ",
    "  ",
    "\n",
    "user",
    "he",
    "llo",
    "hello 12",
    "é",
    "é",
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join)


def add_turn_tokens(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in TURN_TOKENS])
    return Tokenizer(backend)


def spelled(merges: list[tuple[str, str]], words: tuple[str, ...]) -> tokenizers.Tokenizer:
    """A vocabulary of Llama 2's kind: bytes as <0x..>, letters, and what ``merges`` make."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    spellings = [f"<0x{byte:02X}>" for byte in range(256)] + [SPACE, *letters, *words]
    vocab = {spelling: number for number, spelling in enumerate(spellings)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def sentencepiece(*, legacy: bool) -> Tokenizer:
    """``legacy``: a space before each piece, by the normalizer; else before what begins the text alone."""
    backend = spelled([("h", "e"), ("l", "l"), (SPACE, "he")], ("he", "ll", SPACE + "he"))
    if legacy:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return add_turn_tokens(backend)


def composing() -> Tokenizer:
    backend = byte_backend()
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    return add_turn_tokens(backend)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    match name:
        case "smollm2":
            return load_tokenizer(open_checkpoint("builtin:smollm2-135m"))
        case "bytes":
            return byte_tokenizer()
        case "composing":
            return composing()
        case _:
            return sentencepiece(legacy=name == "legacy")


@pytest.mark.parametrize("name", ["smollm2", "bytes", "composing", "first", "legacy"])
@given(text=texts, more=st.lists(texts, max_size=3))
def test_a_growing_text_has_the_tokens_of_the_whole(name: str, text: str, more: list[str]) -> None:
    tokenizer = tokenizer_of(name)
    assert tokenizer.cuts()
    turns = TurnCache(tokenizer)
    for piece in ("", *more, *more):
        text += piece
        assert list(turns.encode(text)) == tokenizer.encode(text, add_special_tokens=False)


added_tokens = st.builds(
    AddedToken,
    st.text("ab<>", min_size=1, max_size=4),
    lstrip=st.sampled_from([False, False, False, True]),
    rstrip=st.sampled_from([False, False, False, True]),
    single_word=st.sampled_from([False, False, False, True]),
    normalized=st.booleans(),
    special=st.booleans(),
)


@given(st.lists(added_tokens, max_size=4), st.lists(st.text("ab<> ", max_size=12), min_size=1, max_size=3))
def test_whatever_tokens_are_added_the_tokens_are_those_of_the_whole(added: list[AddedToken], parts: list[str]) -> None:
    backend = byte_backend()
    for token in added:
        backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
    tokenizer = Tokenizer(backend)
    turns = TurnCache(tokenizer)
    for text in (*parts, "".join(parts)):
        assert list(turns.encode(text)) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("added", "cuts"),
    [
        ((AddedToken("<a>"), AddedToken("<b>")), {"<a>", "<b>", "<|end|>"}),
        # Another holds it, begins in it, or ends in it.
        ((AddedToken("<a>"), AddedToken("[<a>]")), {"[<a>]", "<|end|>"}),
        ((AddedToken("<a>"), AddedToken("x<")), {"x<"}),
        ((AddedToken("aba"),), {"<|end|>"}),
        # It is looked for in what was normalized, so it may have been something else.
        ((AddedToken("<a>", normalized=True),), {"<|end|>"}),
        # One that takes in spaces changes what stands beside it.
        ((AddedToken("<a>"), AddedToken("<b>", rstrip=True)), set()),
        ((AddedToken("<a>", single_word=True),), set()),
    ],
    ids=str,
)
def test_a_text_is_cut_only_where_no_other_token_can_stand(added: tuple[AddedToken, ...], cuts: set[str]) -> None:
    backend = byte_backend()
    backend.add_special_tokens(list(added))
    assert Tokenizer(backend).cuts() == cuts


def test_a_tokenizer_that_cuts_off_pads_or_draws_lots_is_asked_for_whole_texts() -> None:
    truncating, padding, drawing = (byte_backend() for _ in range(3))
    truncating.enable_truncation(5)
    padding.enable_padding(length=5)
    drawing.model.dropout = 0.5
    for backend in (truncating, padding, drawing):
        tokenizer = Tokenizer(backend)
        assert tokenizer.cuts() == frozenset()
        assert TurnCache(tokenizer).num_bytes == 0


class Counting(Tokenizer):
    """Notes what it is asked to tokenize."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__(backend)
        self.asked: list[str] = []

    def encode_all(self, texts: list[str], **how: object) -> list[list[int]]:  # type: ignore[override]  # passed on
        self.asked += texts
        return super().encode_all(texts, **how)  # type: ignore[arg-type]


def test_only_the_new_turn_is_tokenized_and_nobody_elses_turns_help() -> None:
    tokenizer = Counting(byte_backend())
    turns = TurnCache(tokenizer)
    turns.encode("system<|end|>hello<|end|>", "a")
    tokenizer.asked.clear()
    turns.encode("system<|end|>hello<|end|>more<|end|>", "a")
    assert tokenizer.asked == ["<|end|>more"]
    tokenizer.asked.clear()
    turns.encode("system<|end|>hello", "b")
    assert tokenizer.asked == ["system", "<|end|>hello"]


@given(st.lists(texts, max_size=20), st.integers(0, 4_000))
def test_no_more_is_kept_than_allowed_and_what_is_not_kept_is_tokenized_again(asked: list[str], most: int) -> None:
    tokenizer = byte_tokenizer()
    turns = TurnCache(tokenizer, most_bytes=most)
    for text in asked:
        assert list(turns.encode(text)) == tokenizer.encode(text, add_special_tokens=False)
        assert 0 <= turns.num_bytes <= most


def test_half_a_surrogate_pair_in_any_turn_is_refused() -> None:
    turns = TurnCache(byte_tokenizer())
    with pytest.raises(UnusableText):
        turns.encode("a<|end|>\ud800")
    assert list(turns.encode("a")) == [97]
