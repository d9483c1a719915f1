"""What cannot be used is a 400 that names the field; nothing asked for is silently ignored."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support_api import CHAT, TEXT, chat_body, error_of, http, text_body
from support_fake_client import VOCAB_SIZE, ByteTokenizer, FakeClient

from sapwood_engine.api.app import build_app
from sapwood_engine.api.strict_body import LARGE_BODY_BYTES
from sapwood_text.schemas import MAX_MESSAGES

JSON = {"content-type": "application/json"}


async def refusal(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the error of ``body``, having checked that the same server answers the next request."""
    client = FakeClient()
    async with http(build_app(client)) as api:
        response = await api.post(path, content=json.dumps(body).encode(), headers=JSON)
        error = error_of(response)
        assert not client.asked
        assert (await api.post(path, json=chat_body() if path == CHAT else text_body())).status_code == 200
    return error


BOTH = pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (TEXT, text_body)])

NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
]


@BOTH
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), "NaN", "inf", "1", True, [], 1e308])
@pytest.mark.parametrize("field", NUMBERS)
async def test_a_number_that_is_none_is_refused_by_name(path: str, body: Any, field: str, value: Any) -> None:
    """D21: raw NaN and Infinity included; the refusal itself is JSON proper."""
    assert (await refusal(path, body(**{field: value})))["param"] == field


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0),
        ("top_p", 1.0001),
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("min_p", -0.01),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 5e-324),
        ("top_k", -2),
        ("top_k", 1.5),
        ("n", 0),
        ("n", 129),
        ("seed", 2**63),
        ("seed", 1.0),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("priority", 2**31),
        ("cache_pin_seconds", -1),
        ("cache_pin_seconds", 86_401),
        ("cache_pin_seconds", "60"),
        ("cache_salt", ""),
        ("extra_key", 5),
        ("stop_token_ids", 5),
        ("stream", "yes"),
        ("stop", 5),
        ("stop", [f"s{i}" for i in range(17)]),
        ("metadata", {"a": 1}),
        ("store", True),
        ("service_tier", "flex"),
        ("stream_options", {"include_usage": True}),
    ],
)
async def test_a_value_outside_its_range_is_refused_by_name(path: str, body: Any, field: str, value: Any) -> None:
    assert (await refusal(path, body(**{field: value})))["param"].split(".")[0] == field


@BOTH
@pytest.mark.parametrize("stop", ["", ["a", ""]])
async def test_an_empty_stop_string_is_refused(path: str, body: Any, stop: Any) -> None:
    """D07: it matches everywhere."""
    assert (await refusal(path, body(stop=stop)))["param"].startswith("stop")


@BOTH
@pytest.mark.parametrize(("stop", "param"), [("x" * 1025, "stop"), (["a", "x" * 1025], "stop.1")])
async def test_a_stop_string_of_boundless_length_is_refused(path: str, body: Any, stop: Any, param: str) -> None:
    error = await refusal(path, body(stop=stop))
    assert error["param"] == param
    assert "1024 characters" in error["message"]


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"191222": -100}),
        ("logit_bias", {str(VOCAB_SIZE): 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"²": 1}),
        ("logit_bias", {"1" * 5000: 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": float("nan")}),
        ("stop_token_ids", [151645]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", [-1]),
    ],
)
async def test_a_token_id_outside_the_vocabulary_is_refused(path: str, body: Any, field: str, value: Any) -> None:
    """D23: checked against the width of the logits."""
    assert (await refusal(path, body(**{field: value})))["param"].startswith(field)


@pytest.mark.parametrize(
    "prompt",
    [
        [VOCAB_SIZE],
        [-1],
        [[1], [VOCAB_SIZE]],
        [1, "a"],
        ["a", 1],
        [[1], "a"],
        [],
        [[]],
        "",
        5,
        {},
        [True],
        [1.0],
    ],
)
async def test_a_prompt_of_no_kind_is_refused(prompt: Any) -> None:
    assert (await refusal(TEXT, text_body(prompt=prompt)))["param"].startswith("prompt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("parallel_tool_calls", True),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("response_format", {"type": "json_object"}),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": {"properties": {"foo": "bar"}}}},
        ),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"pattern": "("}}}),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("reasoning_effort", "low"),
        ("verbosity", "low"),
        ("logits_processors", ["x"]),
        ("suffix", "end"),
    ],
)
async def test_what_is_not_built_is_refused_by_name_not_ignored(field: str, value: Any) -> None:
    """D13, D17 and D19 until tools and structured output are built."""
    error = await refusal(CHAT, chat_body(**{field: value}))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize(("field", "value"), [("suffix", "end"), ("best_of", 3), ("tools", []), ("messages", [])])
async def test_what_text_completions_do_not_do_is_refused_by_name(field: str, value: Any) -> None:
    assert (await refusal(TEXT, text_body(**{field: value})))["param"] == field


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"service_tier": "auto"},
        {"tools": None, "response_format": None, "audio": None},
    ],
)
async def test_a_field_not_built_may_ask_for_nothing(fields: dict[str, Any]) -> None:
    async with http(build_app(FakeClient())) as api:
        assert (await api.post(CHAT, json=chat_body(**fields))).status_code == 200


@BOTH
async def test_an_unknown_field_is_refused_with_the_name_it_resembles(path: str, body: Any) -> None:
    error = await refusal(path, body(temprature=1))
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    assert "'temperature'" in error["message"]


@pytest.mark.parametrize("name", ["x" * 100_000, "\ud800", "a\x00b", ""])
async def test_the_name_of_an_unknown_field_may_be_anything(name: str) -> None:
    error_of_name = await refusal(CHAT, chat_body(**{name: 1}))
    assert len(error_of_name["message"]) < 400


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "robot", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "content.0.type",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            "content.1.type",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "content.0.text"),
        ({"role": "user", "content": ["x"]}, "content.0"),
        ({"role": "assistant", "audio": {"id": "a"}}, "audio"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": ""}}, "function_call"),
        ({"role": "user", "content": "x", "weight": 1}, "weight"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "tool_calls.0.type"),
    ],
)
async def test_a_message_that_cannot_be_read_is_named_to_the_part(message: dict[str, Any], param: str) -> None:
    messages = [{"role": "user", "content": "fine"}, message]
    assert (await refusal(CHAT, chat_body(messages=messages)))["param"] == f"messages.1.{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"chat_template_kwargs": {"deep": {"a": 1}}}, "chat_template_kwargs.deep"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ],
)
async def test_fields_that_disagree_are_refused(fields: dict[str, Any], param: str) -> None:
    assert (await refusal(CHAT, chat_body(**fields)))["param"] == param


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_too_long_a_prompt_is_refused_with_all_three_numbers(path: str, body: Any, stream: bool) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 983}]} if path == CHAT else {"prompt": "x" * 999}
    error = await refusal(path, body(**long, max_tokens=26, stream=stream))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("messages" if path == CHAT else "prompt")
    assert all(number in error["message"] for number in ("1024", "999", "26"))


@BOTH
async def test_a_prompt_that_fills_the_context_is_refused_even_without_max_tokens(path: str, body: Any) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 1024}]} if path == CHAT else {"prompt": "x" * 1024}
    assert (await refusal(path, body(**long)))["code"] == "context_length_exceeded"


class Untouched(ByteTokenizer):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise AssertionError("this text need not be tokenized")


@BOTH
async def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenized(path: str, body: Any) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 1025}]} if path == CHAT else {"prompt": ["x", "x" * 1025]}
    async with http(build_app(FakeClient(tokenizer=Untouched()))) as api:
        error = error_of(await api.post(path, json=body(**long)))
    assert (error["code"], error["param"]) == (
        "context_length_exceeded",
        "messages" if path == CHAT else "prompt",
    )
    assert "more than 1024 tokens" in error["message"]


async def test_too_many_ids_are_refused_before_each_is_looked_at() -> None:
    error = await refusal(TEXT, text_body(prompt=[VOCAB_SIZE] * 1025, max_tokens=1))
    assert error["code"] == "context_length_exceeded"
    assert "1025" in error["message"]


async def test_others_get_their_turn_between_the_prompts_of_one_call() -> None:
    others_turns = 0
    seen = []

    class Watched(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            seen.append(others_turns)
            return super().encode(text, add_special_tokens=add_special_tokens)

    async def others() -> None:
        nonlocal others_turns
        while True:
            others_turns += 1
            await asyncio.sleep(0)

    async with http(build_app(FakeClient(tokenizer=Watched()))) as api:
        other = asyncio.create_task(others())
        assert (await api.post(TEXT, json=text_body(prompt=["hi"] * 20))).status_code == 200
        other.cancel()
    assert len(set(seen)) == 20


@BOTH
async def test_no_more_tokens_can_be_biased_than_a_step_has_time_for(path: str, body: Any) -> None:
    client = FakeClient().with_capacity(vocab_size=2000)
    bias = {str(token_id): 1 for token_id in range(1024)}
    async with http(build_app(client)) as api:
        assert (await api.post(path, json=body(logit_bias=bias))).status_code == 200
        error = error_of(await api.post(path, json=body(logit_bias=bias | {"1024": 1})))
    assert error["param"] == "logit_bias"
    assert "1024" in error["message"]


async def test_no_chat_has_more_messages_than_are_taken() -> None:
    error = await refusal(CHAT, chat_body(messages=[{"role": "user", "content": ""}] * (MAX_MESSAGES + 1)))
    assert error["param"] == "messages"
    assert str(MAX_MESSAGES) in error["message"]


async def test_a_prompt_and_answer_that_just_fit_are_taken() -> None:
    client = FakeClient()
    async with http(build_app(client)) as api:
        response = await api.post(TEXT, json=text_body(prompt="x" * 999, max_tokens=25))
    assert response.status_code == 200


@BOTH
@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"", JSON, 400),
        (b"[]", JSON, 400),
        (b"5", JSON, 400),
        (b"null", JSON, 400),
        (b"\xff\xfe", JSON, 400),
        (b'{"model": "\\ud800"}', JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b'{"a":' * 900 + b"1" + b"}" * 900, JSON, 400),
        (b'{"n": ' + b"9" * 10_000 + b"}", JSON, 400),
        (b"{}", JSON, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 415),
    ],
)
async def test_a_body_that_is_not_the_json_object_wanted_is_refused(
    path: str, body: Any, content: bytes, headers: dict[str, str], status: int
) -> None:
    async with http(build_app(FakeClient())) as api:
        for padding in (b"", b" " * LARGE_BODY_BYTES):
            error_of(await api.post(path, content=content + padding, headers=headers), status)


async def test_no_depth_of_nesting_makes_the_server_fail() -> None:
    """Parsing, quoting and comparing each have a limit of their own; between two of them lies a 500."""
    async with http(build_app(FakeClient())) as api:
        for field in ("tools", "prompt", "logit_bias", "messages"):
            for depth in range(800, 1000):
                raw = b'{"model": "m", "' + field.encode() + b'": ' + b"[" * depth + b"]" * depth + b"}"
                assert (await api.post(CHAT, content=raw, headers=JSON)).status_code == 400, (field, depth)


async def test_deeply_nested_arguments_of_an_old_tool_call_are_left_as_they_are() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":' * 100_000}}
    body = chat_body(messages=[{"role": "assistant", "tool_calls": [call]}])
    async with http(build_app(FakeClient())) as api:
        assert (await api.post(CHAT, json=body)).status_code == 200


@BOTH
async def test_half_a_surrogate_pair_in_a_text_is_refused(path: str, body: Any) -> None:
    raw = json.dumps(body(user="\ud83d")).encode()
    async with http(build_app(FakeClient())) as api:
        error_of(await api.post(path, content=raw, headers=JSON))
        assert (await api.post(path, content=json.dumps(body(user="😀")).encode(), headers=JSON)).status_code == 200


async def test_a_body_over_the_limit_is_a_413_whether_or_not_its_length_was_declared() -> None:
    app = build_app(FakeClient(), max_body_bytes=1000)
    raw = json.dumps(chat_body(user="x" * 1000)).encode()

    async def pieces() -> Any:
        for start in range(0, len(raw), 100):
            yield raw[start : start + 100]

    async with http(app) as api:
        for content in (raw, pieces()):
            error = error_of(await api.post(CHAT, content=content, headers=JSON), 413)
            assert error["code"] == "body_too_large"
            assert "1000 bytes" in error["message"]
        assert (await api.post(CHAT, json=chat_body())).status_code == 200


@pytest.mark.parametrize("body", [chat_body(model="other"), chat_body(model="")])
async def test_another_model_is_not_found(body: dict[str, Any]) -> None:
    async with http(build_app(FakeClient())) as api:
        error = error_of(await api.post(CHAT, json=body), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_a_request_without_a_model_is_told_so() -> None:
    error = await refusal(CHAT, {"messages": [{"role": "user", "content": "hi"}]})
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


@BOTH
@pytest.mark.parametrize("salt", ["hunter2" * 40, ["hunter2"], {"is": "hunter2"}])
async def test_a_salt_that_is_refused_is_not_told(path: str, body: Any, salt: Any) -> None:
    error = await refusal(path, body(cache_salt=salt))
    assert error["param"] == "cache_salt"
    assert "hunter2" not in json.dumps(error)
