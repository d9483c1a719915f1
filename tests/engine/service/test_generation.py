"""From the token ids of one choice to its text, its stops and its log-probabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_service import EOS_ID, VOCAB_SIZE, byte_tokenizer, generation, small_capacity

from sapwood_engine.core.request import SamplingParams, TokenLogprobs
from sapwood_engine.errors import ContextLengthExceeded, InvalidField
from sapwood_engine.service.generation import ChoiceText, Generation, check_generation
from sapwood_engine.service.messages import Delta


def run(call: Generation, *deltas: Delta) -> tuple[str, int, str | None, str | int | None]:
    """Push ``deltas`` until one finishes; the joined text, tokens counted, finish and stop reason."""
    choice = ChoiceText(call, byte_tokenizer())
    parts = []
    for delta in deltas:
        pushed = choice.push(delta)
        parts.append(pushed.text)
        if pushed.finish is not None:
            return "".join(parts), choice.num_output_tokens, pushed.finish, pushed.stop_reason
    return "".join(parts), choice.num_output_tokens, None, None


def tokens(text: str, finish: str | None = None) -> Delta:
    return Delta("id", tuple(text.encode()), finish)  # type: ignore[arg-type]  # the literals of FinishReason


def test_a_stop_string_ends_the_text_before_it_and_names_itself() -> None:
    call = generation(stop_strings=("END",))
    assert run(call, tokens("the E"), tokens("ND of it")) == ("the ", 7, "stop", "END")


def test_a_stop_string_is_part_of_the_text_where_asked_for() -> None:
    call = replace(generation(stop_strings=("END",)), include_stop_str=True)
    assert run(call, tokens("the E"), tokens("ND of it")) == ("the END", 7, "stop", "END")


@pytest.mark.parametrize(("stop", "pieces", "text"), [("assistant", ["ple", "as"], "pleas"), ("\n", ["?"], "?")])
def test_text_held_back_for_a_stop_string_is_delivered_at_the_end(stop: str, pieces: list[str], text: str) -> None:
    end = Delta("id", (EOS_ID,), "stop")
    delivered, _, finish, reason = run(generation(stop_strings=(stop,)), *map(tokens, pieces), end)
    assert (delivered, finish, reason) == (text, "stop", None)


def test_a_stop_string_counts_only_from_the_least_number_of_tokens_on() -> None:
    call = generation(stop_strings=("b",), min_tokens=4)
    assert run(call, tokens("abcab"), tokens("cd")) == ("abca", 5, "stop", "b")


def test_a_stop_token_is_counted_and_named_but_not_part_of_the_text() -> None:
    call = generation(stop_token_ids=frozenset({ord("!"), EOS_ID}))
    assert run(call, tokens("hi"), tokens("!", "stop")) == ("hi", 3, "stop", ord("!"))
    assert run(replace(call, include_stop_str=True), tokens("hi!", "stop")) == ("hi!", 3, "stop", ord("!"))


def test_the_end_of_sequence_token_is_no_stop_reason() -> None:
    call = generation(stop_token_ids=frozenset({EOS_ID}))
    assert run(call, tokens("hi"), Delta("id", (EOS_ID,), "stop")) == ("hi", 3, "stop", None)


def test_log_probabilities_carry_exact_bytes_and_readable_text() -> None:
    choice = ChoiceText(generation(), byte_tokenizer())
    info = choice.describe(TokenLogprobs(0xC4, -0.5, ((0x61, -0.1), (EOS_ID, -2.0))))
    assert (info.token_id, info.text, info.bytes, info.logprob) == (0xC4, "\ufffd", b"\xc4", -0.5)
    assert info.top == ((0x61, "a", b"a", -0.1), (EOS_ID, "<|end|>", b"<|end|>", -2.0))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (generation(()), "prompt"),
        (generation((1, VOCAB_SIZE)), "prompt"),
        (generation((-1,)), "prompt"),
        (generation(stop_token_ids=frozenset({5, VOCAB_SIZE})), "stop_token_ids"),
        (
            replace(generation(), sampling=SamplingParams(seed=0, logit_bias=((191_222, -100.0),))),
            "logit_bias",
        ),
        (replace(generation(), sampling=SamplingParams(seed=0, logit_bias=((-1, 1.0),))), "logit_bias"),
    ],
)
def test_token_ids_that_the_model_does_not_have_are_refused_by_field(call: Generation, field: str) -> None:
    with pytest.raises(InvalidField) as refusal:
        check_generation(call, small_capacity())
    assert refusal.value.param == field


def test_a_call_that_can_never_fit_is_refused_with_all_three_numbers() -> None:
    capacity = small_capacity(max_context_tokens=20)
    check_generation(generation("x" * 12, max_tokens=8), capacity)
    with pytest.raises(ContextLengthExceeded, match=r"20 tokens.*13.*8"):
        check_generation(generation("x" * 13, max_tokens=8), capacity)


def test_the_limit_is_what_the_kv_cache_holds_where_that_is_less() -> None:
    with pytest.raises(ContextLengthExceeded, match="32"):
        check_generation(generation("x" * 30), small_capacity(num_pages=2))
