"""Byte-exact tokens, and text that streams without ever splitting a character."""

from __future__ import annotations

import itertools
import math
import threading

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from support_service import EOS_ID, byte_backend, byte_tokenizer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from sapwood_text.errors import UnusableText, UnusableTokenizer
from sapwood_text.tokenizer import Detokenizer, Tokenizer

WORDS = ("\N{LOWER ONE EIGHTH BLOCK}Hello", "\N{LOWER ONE EIGHTH BLOCK}there", "\ufffd", "a")


def sentencepiece_backend() -> tokenizers.Tokenizer:
    """The vocabulary of Llama 2's kind: bytes 0 … 255 as <0x..>, then `WORDS`."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + i for i, word in enumerate(WORDS)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def sentencepiece_tokenizer() -> Tokenizer:
    return Tokenizer(sentencepiece_backend())


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each id in turn delivers, and what the end does."""
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", ["😀", " ď", "a😀b\N{LATIN SMALL LETTER E}\N{COMBINING ACUTE ACCENT}"])
def test_a_character_split_over_tokens_is_delivered_whole(text: str) -> None:
    delivered = stream(byte_tokenizer(), list(text.encode()))
    assert "\ufffd" not in "".join(delivered)
    assert "".join(delivered) == text


def test_a_genuine_replacement_character_survives_even_at_the_end() -> None:
    tokenizer = sentencepiece_tokenizer()
    assert stream(tokenizer, [259, 258]) == ["a", "\ufffd", ""]
    assert tokenizer.decode([259, 258]) == "a\ufffd"


def test_an_incomplete_character_at_the_end_is_dropped_streamed_or_not() -> None:
    tokenizer = byte_tokenizer()
    ids = [*b"ok", 0xF0, 0x9F, 0x98]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "ok"


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_streamed_text_is_the_whole_decode_for_every_cut_of_the_bytes(data: bytes, cuts: list[int]) -> None:
    tokenizer = byte_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    delivered = [detokenizer.push(list(data[a:b])) for a, b in itertools.pairwise(bounds)]
    assert "".join(delivered) + detokenizer.flush() == tokenizer.decode(list(data))


@given(st.text(max_size=30), st.text(max_size=3))
def test_valid_text_comes_back_as_it_was(text: str, tail: str) -> None:
    tokenizer = byte_tokenizer()
    ids = list((text + tail).encode())
    assert tokenizer.decode(ids) == text + tail
    assert tokenizer.encode(text + tail, add_special_tokens=True) == ids


@given(st.binary(max_size=30).filter(lambda data: data.decode(errors="ignore").encode() == data))
def test_decoding_agrees_with_the_library_on_valid_bytes(data: bytes) -> None:
    assert byte_tokenizer().decode(list(data)) == byte_backend().decode(list(data))


@given(st.lists(st.integers(0, 255 + len(WORDS)), max_size=12))
def test_sentencepiece_text_agrees_with_the_library_up_to_its_reading_of_broken_bytes(ids: list[int]) -> None:
    tokenizer = sentencepiece_tokenizer()
    ours = tokenizer.decode(ids)
    data = b"".join(map(tokenizer.token_bytes, ids))
    if data.decode(errors="ignore").encode() == data:
        assert ours == sentencepiece_backend().decode(ids)
    assert "".join(stream(tokenizer, ids)) == ours


def test_the_space_that_begins_a_sentencepiece_text_goes_only_at_its_start() -> None:
    tokenizer = sentencepiece_tokenizer()
    assert tokenizer.decode([256, 257]) == "Hello there"
    continued = Detokenizer(tokenizer, prompt_tail_ids=(0,))
    assert continued.push([256, 257]) == " Hello there"


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    tokenizer = byte_tokenizer()
    ids = [*b"a", EOS_ID, *b"b"]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|>b"


def test_every_token_has_its_exact_bytes_and_ids_outside_the_vocabulary_have_none() -> None:
    tokenizer = byte_tokenizer()
    assert [tokenizer.token_bytes(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.token_bytes(EOS_ID) == b"<|end|>"
    assert tokenizer.token_bytes(100_000) == b""
    assert sentencepiece_tokenizer().token_bytes(0xE2) == b"\xe2"


def test_text_with_half_a_surrogate_pair_is_refused_by_name() -> None:
    with pytest.raises(UnusableText, match="messages") as refusal:
        byte_tokenizer().encode("ab\ud800c", add_special_tokens=False, field="messages")
    assert refusal.value.field == "messages"


def test_a_vocabulary_that_writes_bytes_in_an_unknown_way_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnusableTokenizer, match="WordPiece"):
        Tokenizer(backend)


@given(st.text(max_size=60))
def test_no_text_has_more_characters_to_a_token_than_is_said(text: str) -> None:
    backend = byte_backend()
    backend.normalizer = normalizers.NFC()
    tokenizer = Tokenizer(backend)
    assert tokenizer.max_characters_per_token == 4 * len("<|end|>")
    for whole in (text, text + "<|end|>" * 9, "\u1100\u1161\u11a8" * 9):
        assert len(whole) <= tokenizer.max_characters_per_token * len(tokenizer.encode(whole, add_special_tokens=False))


def test_a_tokenizer_that_may_drop_text_bounds_nothing() -> None:
    assert byte_tokenizer().max_characters_per_token == len("<|end|>")
    assert sentencepiece_tokenizer().max_characters_per_token == len("<0x00>")
    strips, replaces, splits, eats, cuts, skips = (byte_backend() for _ in range(6))
    strips.normalizer = normalizers.Strip()
    replaces.normalizer = normalizers.Replace(Regex(" +"), "")
    splits.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), splits.pre_tokenizer])
    eats.add_tokens([tokenizers.AddedToken("<eats>", rstrip=True)])
    cuts.enable_truncation(5)
    skips.pre_tokenizer = pre_tokenizers.Digits()  # characters are not written as bytes: most are unknown
    unknown = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    unknown.decoder = decoders.ByteLevel()
    for backend in (strips, replaces, splits, eats, cuts, skips, unknown):
        assert Tokenizer(backend).max_characters_per_token == math.inf


def test_other_threads_run_while_a_long_text_is_tokenized() -> None:
    tokenizer, text, done = byte_tokenizer(), "word " * 100_000, threading.Event()
    turns, turns_meanwhile = 0, 0

    def encode() -> None:
        nonlocal turns_meanwhile
        before = turns
        tokenizer.encode(text, add_special_tokens=False)
        turns_meanwhile = turns - before
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns_meanwhile > 10, "a lock held throughout leaves a turn or two, before and after"


def test_a_model_without_a_chat_template_says_which_api_to_use() -> None:
    with pytest.raises(UnusableText, match="/v1/completions"):
        byte_tokenizer().render_chat([{"role": "user", "content": "hi"}])
