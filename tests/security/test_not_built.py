"""What other servers were attacked through, and this one does not have: refused by name before anything is done.

Images by address (J05), expressions that a client writes (J09), calls of tools (J11). Whoever builds one of them
replaces its test here by those that its case in the list asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support_api import CHAT, TEXT, chat_body, error_of, http, text_body
from support_fake_client import FakeClient, Say

from sapwood_engine.api.app import build_app


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[object]]]:
    """A port of this machine, and who has connected to it."""
    connected: list[object] = []

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connected
    finally:
        server.close()
        await server.wait_closed()


HOSTS = [
    "127.0.0.1",
    "169.254.169.254",
    "[::1]",
    "[::ffff:10.0.0.1]",
    "[::ffff:7f00:1]",
    "2130706433",
    "0177.0.0.1",
    "0x7f.1",
    "127.1",
    "localhost",
    "localhost.",
    "private.example.com",
]
ADDRESSES = [f"http://{host}:{{port}}/latest/meta-data" for host in HOSTS] + [
    "file:///etc/passwd",
    "ftp://127.0.0.1:{port}/",
    "data:image/png;base64,AAAA",
    "//127.0.0.1:{port}/x",
]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_image_is_refused_by_name_and_its_address_is_neither_opened_nor_repeated(address: str) -> None:
    client = FakeClient()
    async with listening() as (port, connected), http(build_app(client)) as api:
        url = address.format(port=port)
        for part in (
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "image_url", "image_url": url},
            {"type": "input_image", "image_url": url},
            {"type": "video_url", "video_url": {"url": url}},
            {"type": "file", "file": {"file_data": url}},
        ):
            body = chat_body(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
            error = error_of(await api.post(CHAT, json=body))
            assert error["param"] == "messages.0.content.1.type"
            assert repr(part["type"]) in error["message"]
            assert url not in error["message"]
    assert connected == []
    assert client.asked == []


async def test_the_refusal_of_an_image_is_the_same_for_open_and_closed_ports() -> None:
    async with listening() as (port, _), http(build_app(FakeClient())) as api:
        texts = []
        for number in (port, 1):
            part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{number}/"}}
            answer = await api.post(CHAT, json=chat_body(messages=[{"role": "user", "content": [part]}]))
            texts.append(answer.text)
    assert texts[0] == texts[1]


EXPRESSIONS: list[tuple[str, Any]] = [
    ("stop_regex", "(a+)+b"),
    ("regex", "(a|aa)+$"),
    ("guided_regex", "(a|aa)+$"),
    ("guided_json", {"pattern": "(a|aa)+$"}),
    ("guided_grammar", "root ::= root"),
    ("guided_choice", ["a"]),
    ("structured_outputs", {"regex": "(a|aa)+$"}),
    ("ebnf", "root ::= root"),
    ("grammar", "root ::= root"),
    ("json_schema", {"pattern": "(a|aa)+$"}),
    ("logits_processors", ["os.system"]),
]


@pytest.mark.parametrize(("field", "value"), EXPRESSIONS)
async def test_an_expression_of_a_client_is_refused_by_name_and_never_compiled(field: str, value: Any) -> None:
    client = FakeClient()
    async with http(build_app(client)) as api:
        for path, body in ((CHAT, chat_body), (TEXT, text_body)):
            assert error_of(await api.post(path, json=body(**{field: value})))["param"] == field
    assert client.asked == []


@pytest.mark.parametrize(
    "format_",
    [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, {"type": "regex", "regex": "a{40}"}],
)
async def test_a_format_of_the_answer_other_than_text_is_refused_by_name(format_: dict[str, Any]) -> None:
    client = FakeClient()
    async with http(build_app(client)) as api:
        error = error_of(await api.post(CHAT, json=chat_body(response_format=format_)))
    assert (error["param"], error["code"]) == ("response_format", "unsupported_parameter")
    assert client.asked == []


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [TOOL]),
        ("tool_choice", "auto"),
        ("tool_choice", "required"),
        ("functions", [TOOL["function"]]),
        ("function_call", "auto"),
        ("parallel_tool_calls", True),
    ],
)
async def test_tools_are_refused_by_name(field: str, value: Any) -> None:
    client = FakeClient()
    async with http(build_app(client)) as api:
        error = error_of(await api.post(CHAT, json=chat_body(**{field: value})))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert client.asked == []


@pytest.mark.parametrize("separator", ["<tool_call>", '{"name": "f", ', "[TOOL_CALLS]", "```json\n", "<|python_tag|>"])
async def test_what_looks_like_calls_of_tools_without_an_end_is_content(separator: str) -> None:
    text = separator * 30_000
    client = FakeClient(script=lambda _: [Say(text), Say(finish="stop")])
    async with http(build_app(client)) as api:
        (choice,) = (await api.post(CHAT, json=chat_body())).json()["choices"]
        streamed = (await api.post(CHAT, json=chat_body(stream=True))).text
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    assert '"tool_calls":' not in streamed
