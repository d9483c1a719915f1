"""The reader finds the ids that the engine submits, or says why it does not; it never raises."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_api import CHAT, TEXT, chat_body, http, text_body
from support_fake_client import FakeClient
from support_service import byte_backend, byte_tokenizer

from sapwood_engine.api.app import build_app
from sapwood_text.bundle import TokenizerBundle, write_bundle
from sapwood_text.chat_template import JinjaTemplate
from sapwood_text.errors import UnusableTokenizer
from sapwood_text.prompt_reader import PromptReader, Unreadable, UnreadableReason
from sapwood_text.schemas import MAX_TOKENIZED_CHARACTERS
from sapwood_text.tokenizer import Tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' and not m.tool_call_id %}{{ raise_exception('a tool without a call') }}{% endif %}"
    "[{{ m.role }}{{ m.name }}] {{ m.content }}{{ (m.tool_calls or '') | tojson }}{{ flavour }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, null]}'}}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def templated() -> Tokenizer:
    return byte_tokenizer(JinjaTemplate(TEMPLATE, {"bos_token": "<|begin|>"}))


def reader() -> PromptReader:
    return PromptReader.from_bundle(templated().bundle("revision"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body()),
        (
            CHAT,
            chat_body(messages=[{"role": "developer", "content": "be\x00brief"}, USER], temperature=0, n=2, stop="x"),
        ),
        (CHAT, chat_body(messages=[{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}])),
        (CHAT, chat_body(messages=[USER, {"role": "assistant", "content": "so"}], continue_final_message=True)),
        (CHAT, chat_body(add_generation_prompt=False, stream=True, stream_options={"include_usage": True})),
        (CHAT, chat_body(chat_template_kwargs={"flavour": "sour", "bos_token": "<|end|>"}, tools=[])),
        (
            CHAT,
            chat_body(
                messages=[
                    {"role": "user", "content": "é 😀 <|end|>", "name": "ada"},
                    {"role": "assistant", "tool_calls": [CALL]},
                    {"role": "tool", "content": "3", "tool_call_id": "c"},
                ]
            ),
        ),
        (TEXT, text_body(cache_salt="salt", extra_key="key", prompt_cache_key="session")),
        (TEXT, text_body(prompt="<|end|>é", echo=True, logprobs=1)),
        (TEXT, text_body(prompt=["first", "second"])),
        (TEXT, text_body(prompt=[5, 6, 256])),
        (TEXT, text_body(prompt=[[7, 8], [9]])),
    ],
)
async def test_the_ids_are_those_that_the_engine_submits(path: str, body: dict[str, Any]) -> None:
    client = FakeClient(tokenizer=templated())
    async with http(build_app(client)) as api:
        answer = await api.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert reader().read(path, json.loads(json.dumps(body))) == client.asked[0].prompt_ids


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/models", chat_body(), "path"),
        ("/tokenize", {"prompt": "hi"}, "path"),
        (CHAT, chat_body(of_next_year=1), "body"),
        (CHAT, chat_body(tools=[{"type": "function", "function": {"name": "f"}}]), "body"),
        (CHAT, chat_body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]), "body"),
        (CHAT, chat_body(messages=[]), "body"),
        (CHAT, None, "body"),
        (TEXT, [], "body"),
        (TEXT, text_body(prompt=["a", 1]), "body"),
        (TEXT, text_body(prompt=[-1]), "body"),
        (TEXT, text_body(prompt=[2**31]), "body"),
        (CHAT, chat_body(messages=[{"role": "tool", "content": "3"}]), "text"),
        (TEXT, text_body(prompt="\ud800"), "text"),
        (TEXT, text_body(prompt=""), "empty"),
        (TEXT, text_body(prompt=[[]]), "empty"),
        (TEXT, text_body(prompt="x" * (MAX_TOKENIZED_CHARACTERS + 1)), "too_long"),
        (CHAT, chat_body(messages=[{"role": "user", "content": "x" * MAX_TOKENIZED_CHARACTERS}]), "too_long"),
    ],
)
def test_what_cannot_be_read_is_told_with_a_reason(path: str, body: Any, reason: str) -> None:
    assert reader().read(path, body) == Unreadable(reason)  # type: ignore[arg-type]  # the table's reasons are texts


def test_a_model_without_a_chat_template_has_unreadable_chats_and_readable_texts() -> None:
    bare = PromptReader.from_bundle(byte_tokenizer().bundle("revision"))
    assert bare.read(CHAT, chat_body()) == Unreadable("text")
    assert bare.read(TEXT, text_body()) == tuple(b"hi")


READER = reader()


@given(st.sampled_from([CHAT, TEXT]), json_values, st.sampled_from(["messages", "prompt", "chat_template_kwargs", "n"]))
def test_no_body_makes_the_reader_raise(path: str, value: Any, field: str) -> None:
    for body in (value, chat_body(**{field: value}), text_body(**{field: value})):
        found = READER.read(path, body)
        assert found != Unreadable("fault")


@pytest.mark.parametrize(("error", "reason"), [(RuntimeError, "fault"), (MemoryError, "memory")])
def test_a_template_that_fails_in_a_way_nobody_thought_of_is_no_exception(
    error: type[Exception], reason: UnreadableReason
) -> None:
    class Broken(JinjaTemplate):
        def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
            raise error

    broken = PromptReader(byte_tokenizer(Broken("", {})), "revision")
    assert broken.read(CHAT, chat_body()) == Unreadable(reason)


def test_a_conversation_read_turn_by_turn_has_the_ids_of_one_read_at_once() -> None:
    by_turns = reader()
    messages: list[dict[str, str]] = []
    for number in range(6):
        messages.append({"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} <|end|> é"})
        body = chat_body(messages=messages)
        assert by_turns.read(CHAT, body, "tenant") == reader().read(CHAT, body)


@pytest.mark.parametrize(
    "other", [("b", {}), (None, {}), ("a", {"cache_salt": "s"}), ("a", {"extra_key": "s"})], ids=repr
)
def test_no_turn_is_kept_for_another_namespace_than_its_own(other: tuple[str | None, dict[str, str]]) -> None:
    asked: list[list[str]] = []

    class Told(Tokenizer):
        def encode_all(
            self, texts: Sequence[str], *, add_special_tokens: bool, field: str = "prompt"
        ) -> list[list[int]]:
            asked.append(list(texts))
            return super().encode_all(texts, add_special_tokens=add_special_tokens, field=field)

    made = PromptReader(Told(byte_backend(), chat_template=JinjaTemplate(TEMPLATE, {})), "revision")
    tenant, more = other
    for whose, fields in (("a", {}), ("a", {}), (tenant, more)):
        made.read(CHAT, chat_body(**fields), whose)
    first, again, others = asked
    assert first
    assert not again
    assert others == first


def test_the_reader_knows_which_revision_it_reads_for() -> None:
    assert PromptReader.from_bundle(templated().bundle("abc")).model_revision == "abc"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80",
        b'{"model_revision": "a"}',
        b"\x91" * 100_000,
        templated().bundle("revision")[:-1],
        write_bundle(TokenizerBundle("revision", "{}", None, {})),
        write_bundle(TokenizerBundle("revision", "no json", None, {})),
    ],
)
def test_what_is_no_bundle_is_refused(data: bytes) -> None:
    with pytest.raises(UnusableTokenizer):
        PromptReader.from_bundle(data)


def test_a_field_of_a_later_version_of_the_bundle_is_passed_over() -> None:
    class Later(TokenizerBundle, frozen=True):
        of_next_year: int = 1

    later = write_bundle(Later("revision", byte_backend().to_str(), None, {}))
    assert PromptReader.from_bundle(later).read(TEXT, text_body()) == tuple(b"hi")
