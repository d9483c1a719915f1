"""``/v1/chat/completions``: from messages to a prompt, and what a whole answer holds."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from support_api import CHAT, chat_body, error_of, events, http, strict_json
from support_fake_client import END_ID, ByteTokenizer, FakeClient, Say, Script, info
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from sapwood_engine.api.app import build_app
from sapwood_engine.checkpoint.sampling_defaults import SamplingDefaults
from sapwood_engine.service.generation import Generation
from sapwood_text.errors import UnusableText
from sapwood_text.schemas import TAKEN_TEMPLATE_ARGUMENTS


async def ask(client: FakeClient, **fields: Any) -> dict[str, Any]:
    async with http(build_app(client)) as api:
        response = await api.post(CHAT, json=chat_body(**fields))
    assert response.status_code == 200, response.text
    return dict(strict_json(response.text))


async def prompt_of(**fields: Any) -> str:
    client = FakeClient()
    await ask(client, **fields)
    return bytes(client.asked[0].prompt_ids).decode()


async def generation_of(client: FakeClient | None = None, **fields: Any) -> Generation:
    client = client or FakeClient()
    await ask(client, **fields)
    return client.asked[0]


async def test_a_whole_answer_has_every_field_that_openai_sends() -> None:
    client = FakeClient(reply="Paris", num_cached_tokens=3)
    answer = await ask(client)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == client.model_name
    assert isinstance(answer["created"], int)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    num_prompt = len(client.asked[0].prompt_ids)
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 5,
        "total_tokens": num_prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_cached_tokens_are_there_when_nothing_was_cached() -> None:
    assert (await ask(FakeClient()))["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_prompt_and_cached_tokens_count_once_for_n_choices() -> None:
    """A11: the prompt was looked up once."""
    client = FakeClient(reply="abc", num_cached_tokens=4)
    usage = (await ask(client, n=3))["usage"]
    assert usage["prompt_tokens"] == len(client.asked[0].prompt_ids)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["completion_tokens"] == 9


async def test_nul_in_a_message_cuts_nothing() -> None:
    """D25."""
    messages = [{"role": "user", "content": "alpha\x00omega"}, {"role": "user", "content": "second"}]
    assert await prompt_of(messages=messages) == "user:alpha\x00omega\nuser:second\nassistant:"


class RecordingTokenizer(ByteTokenizer):
    """Keeps the messages that the template was given."""

    def __init__(self) -> None:
        self.rendered: list[dict[str, Any]] = []

    def render_chat(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        self.rendered += messages
        return super().render_chat(messages, **arguments)


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"m":"}A"}'}}


@pytest.mark.parametrize(
    "assistant",
    [
        {"tool_calls": [CALL], "content": None},
        {"tool_calls": [CALL]},
        {"tool_calls": [CALL], "content": ""},
        {"content": None},
        {},
    ],
)
async def test_an_assistant_turn_without_content_reads_as_an_empty_text(assistant: dict[str, Any]) -> None:
    """D27: templates would print "None"."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", **assistant}]
    assert await prompt_of(messages=messages) == "user:q\nassistant:\nassistant:"


@pytest.mark.parametrize("role", ["assistant", "user", "system"])
async def test_a_list_of_text_parts_reads_as_the_string(role: str) -> None:
    """D27: seen elsewhere silently blanked."""
    as_parts = [{"role": role, "content": [{"type": "text", "text": "x"}]}]
    assert await prompt_of(messages=as_parts) == await prompt_of(messages=[{"role": role, "content": "x"}])


async def test_a_developers_turn_is_the_systems() -> None:
    messages = [{"role": "developer", "content": "rules"}, {"role": "user", "content": "q"}]
    assert await prompt_of(messages=messages) == "system:rules\nuser:q\nassistant:"


async def test_an_answer_can_be_sent_back_as_the_next_turn() -> None:
    message = (await ask(FakeClient(reply="first")))["choices"][0]["message"]
    messages = [{"role": "user", "content": "q"}, message, {"role": "user", "content": "go on"}]
    assert await prompt_of(messages=messages) == "user:q\nassistant:first\nuser:go on\nassistant:"


async def test_tool_turns_of_a_history_reach_the_template_with_arguments_as_objects() -> None:
    tokenizer = RecordingTokenizer()
    tool = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    messages = [{"role": "assistant", "tool_calls": [CALL]}, tool]
    await ask(FakeClient(tokenizer=tokenizer), messages=messages)
    assert tokenizer.rendered[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"m": "}A"}}
    assert tokenizer.rendered[1] == tool


async def test_a_final_assistant_message_can_be_continued() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Once upon"}]
    prompt = await prompt_of(messages=messages, continue_final_message=True)
    assert prompt == "user:q\nassistant:Once upon\ncontinue_final_message=True"
    assert await prompt_of(messages=messages, add_generation_prompt=False) == "user:q\nassistant:Once upon"


async def test_template_arguments_reach_the_template() -> None:
    assert "enable_thinking=False" in await prompt_of(chat_template_kwargs={"enable_thinking": False})
    ours = {"engine": 1, "messages_": 2, "arguments": 3, "request": 4, "work": 5}
    assert "engine=1" in await prompt_of(chat_template_kwargs=ours)


def test_no_template_argument_of_a_client_can_shadow_one_of_transformers() -> None:
    for function in (PreTrainedTokenizerBase.apply_chat_template, render_jinja_template):
        assert set(inspect.signature(function).parameters) - {"kwargs"} <= TAKEN_TEMPLATE_ARGUMENTS


async def test_every_sampling_field_reaches_the_engine() -> None:
    asked = await generation_of(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "7": 1.5},
        seed=-7,
        n=2,
        stop=["x", "yz"],
        stop_token_ids=[65],
        max_completion_tokens=9,
        min_tokens=2,
        logprobs=True,
        top_logprobs=20,
        priority=3,
        cache_pin_seconds=60,
        cache_salt="tenant",
        extra_key="key",
        routing_key="route",
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        user="u",
        metadata={"a": "b"},
        store=False,
    )
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.2, -0.3)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == ((5, -100.0), (7, 1.5))
    assert (sampling.num_logprobs, sampling.num_prompt_logprobs) == (20, None)
    assert (asked.seed, asked.n, asked.stop_strings) == (-7, 2, ("x", "yz"))
    assert (asked.stop.max_tokens, asked.stop.min_tokens) == (9, 2)
    assert asked.stop.stop_token_ids == {65, END_ID}
    assert (asked.priority, asked.routing_key, asked.cache_pin_seconds) == (3, "route", 60.0)
    assert (asked.namespace.tenant_salt, asked.namespace.extra_key) == ("tenant", "key")
    assert asked.namespace.adapter_id is None
    assert (asked.skip_special_tokens, asked.include_stop_str) == (False, True)


async def test_what_is_not_given_or_null_has_openais_defaults() -> None:
    for fields in ({}, {"temperature": None, "n": None, "stop": None, "seed": None, "tools": None}):
        asked = await generation_of(**fields)
        assert (asked.sampling.temperature, asked.sampling.top_p, asked.n) == (1.0, 1.0, 1)
        assert asked.sampling.num_logprobs is None
        assert (asked.stop_strings, asked.seed) == ((), None)
        assert asked.stop.stop_token_ids == {END_ID}


RECOMMENDED = SamplingDefaults(temperature=0.2, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.05)


@pytest.mark.parametrize(
    "absent", [{}, dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty"))]
)
async def test_what_is_not_given_or_null_is_as_the_checkpoint_recommends(absent: dict[str, None]) -> None:
    sampling = (await generation_of(FakeClient(sampling_defaults=RECOMMENDED), **absent)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.2, 0.9, 20, 0.05)
    assert sampling.repetition_penalty == 1.05
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)


async def test_what_is_given_wins_over_the_checkpoint_also_where_it_is_0_or_openais_default() -> None:
    given = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    sampling = (await generation_of(FakeClient(sampling_defaults=RECOMMENDED), **given)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 1.0, 0, 0.0)
    assert sampling.repetition_penalty == 1.0
    sampling = (await generation_of(FakeClient(sampling_defaults=RECOMMENDED), temperature=1.5)).sampling
    assert (sampling.temperature, sampling.top_p) == (1.5, 0.9)


async def test_an_empty_stop_list_means_no_stop() -> None:
    assert (await generation_of(stop=[])).stop_strings == ()


async def test_ignoring_the_end_of_sequence_leaves_only_the_callers_own_stop_ids() -> None:
    assert (await generation_of(ignore_eos=True, stop_token_ids=[7])).stop.stop_token_ids == {7}


async def test_max_tokens_left_out_is_what_the_context_leaves() -> None:
    asked = await generation_of()
    assert asked.stop.max_tokens == 1024 - len(asked.prompt_ids)


async def test_a_temperature_that_would_overflow_is_greedy() -> None:
    assert (await generation_of(temperature=5e-324)).sampling.temperature == 0
    assert (await generation_of(temperature=0.001)).sampling.temperature == 0.001


async def test_a_top_k_of_the_whole_vocabulary_is_none() -> None:
    assert (await generation_of(top_k=-1)).sampling.top_k == 0
    assert (await generation_of(top_k=10**9)).sampling.top_k == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_logprob_of_minus_infinity_is_sent_as_a_finite_floor(stream: bool) -> None:
    """D11."""
    never = info(65, float("-inf"), [(66, 0.0), (67, float("-inf"))])
    said: Script = [Say("A", token_ids=(65,), logprobs=(never,), finish="stop")]
    async with http(build_app(FakeClient(script=lambda _: said))) as api:
        response = await api.post(CHAT, json=chat_body(logprobs=True, top_logprobs=2, stream=stream))
    answer = events(response.text)[1] if stream else strict_json(response.text)
    (token,) = answer["choices"][0]["logprobs"]["content"]
    assert token["logprob"] == -9999.0
    assert [top["logprob"] for top in token["top_logprobs"]] == [0.0, -9999.0]


async def test_a_character_over_two_tokens_keeps_the_bytes_of_each() -> None:
    said: Script = [
        Say("", token_ids=(0xC4,), logprobs=(info(0xC4),)),
        Say("ď", token_ids=(0x8F,), logprobs=(info(0x8F),)),
        Say(finish="stop"),
    ]
    answer = await ask(FakeClient(script=lambda _: said), logprobs=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [token["bytes"] for token in content] == [[0xC4], [0x8F]]
    assert answer["choices"][0]["message"]["content"] == "ď"


async def test_the_stop_string_that_ended_a_choice_is_named() -> None:
    said: Script = [Say("a"), Say(finish="stop", stop_reason="END")]
    assert (await ask(FakeClient(script=lambda _: said)))["choices"][0]["stop_reason"] == "END"


async def test_a_template_that_refuses_is_a_400_naming_messages() -> None:
    class Bare(ByteTokenizer):
        def render_chat(self, messages: list[dict[str, Any]], **_: Any) -> str:
            raise UnusableText("messages", len(messages), "this model has no chat template")

    async with http(build_app(FakeClient(tokenizer=Bare()))) as api:
        assert error_of(await api.post(CHAT, json=chat_body()))["param"] == "messages"
