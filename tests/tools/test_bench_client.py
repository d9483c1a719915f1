"""The benchmark's client reads a stream as it comes and tells why an answer does not count."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sapwood_tools.bench.client import Answer, Client, Failure, connect

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}


def chunk(text: str | None = None, **fields: Any) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text}]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
WHOLE = (chunk("a"), chunk("b"), chunk(usage=USAGE), DONE)


@asynccontextmanager
async def server(pieces: Sequence[bytes], *, status: int = 200) -> AsyncIterator[tuple[Client, list[Any]]]:
    """A client of a server that answers every completion with these pieces, and what it was asked."""
    asked: list[Any] = []

    async def completions(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        response = web.StreamResponse(status=status, headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as running, connect(str(running.make_url("/"))) as client:
        yield client, asked


async def test_an_answer_has_its_text_counts_and_times_in_order() -> None:
    async with server(WHOLE) as (client, _):
        answer = await client.complete("hello", 2)
    assert isinstance(answer, Answer)
    assert (answer.text, answer.num_prompt_tokens, answer.num_output_tokens) == ("ab", 5, 2)
    assert answer.num_cached_tokens == 3
    assert answer.sent_at < answer.first_at <= answer.last_at


async def test_what_is_asked_makes_every_server_compute_the_same_number_of_tokens() -> None:
    async with server(WHOLE) as (client, asked):
        await client.complete("hello", 2)
    assert asked == [
        {
            "model": "first",
            "prompt": "hello",
            "max_tokens": 2,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_a_prompt_may_be_token_ids() -> None:
    async with server(WHOLE) as (client, asked):
        await client.complete(range(3), 2)
    assert asked[0]["prompt"] == [0, 1, 2]


async def test_the_longest_gap_is_between_events_that_brought_tokens() -> None:
    async with server(WHOLE) as (client, _):
        two = await client.complete("hello", 2)
    async with server((chunk("ab"), chunk(usage=USAGE), DONE)) as (client, _):
        one = await client.complete("hello", 2)
    assert isinstance(two, Answer)
    assert isinstance(one, Answer)
    assert two.longest_gap_seconds == two.last_at - two.first_at
    assert one.longest_gap_seconds == 0


async def test_events_cut_anywhere_are_read_alike() -> None:
    data = b"".join(WHOLE)
    async with server([data[i : i + 1] for i in range(len(data))]) as (client, _):
        answer = await client.complete("hello", 2)
    assert isinstance(answer, Answer)
    assert answer.text == "ab"


async def test_a_server_that_says_nothing_of_its_cache_leaves_the_count_open() -> None:
    pieces = (chunk("a"), chunk(usage={"prompt_tokens": 5, "completion_tokens": 2}), DONE)
    async with server(pieces) as (client, _):
        answer = await client.complete("hello", 2)
    assert isinstance(answer, Answer)
    assert answer.num_cached_tokens is None


async def test_an_answer_of_special_tokens_alone_has_no_text_and_still_counts() -> None:
    async with server((chunk(""), chunk(usage=USAGE), DONE)) as (client, _):
        assert isinstance(await client.complete("hello", 2), Answer)


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ((chunk("a"), DONE), "no usage"),
        ((chunk(usage=USAGE), DONE), "no choice"),
        ((chunk("a"), chunk(usage={**USAGE, "completion_tokens": 1}), DONE), "1 tokens where 2"),
        ((chunk("a"), b'data: {"error": {"message": "gone"}}\n\n'), "error event.*gone"),
        ((b"data: {\n\n",), "JSON"),
    ],
    ids=["no usage", "no choice", "too short", "error event", "not JSON"],
)
async def test_a_stream_that_is_not_as_asked_is_a_failure_with_a_reason(pieces: Sequence[bytes], reason: str) -> None:
    async with server(pieces) as (client, _):
        result = await client.complete("hello", 2)
    assert isinstance(result, Failure)
    assert re.search(reason, result.reason)


async def test_a_refusal_is_a_failure_that_quotes_a_bounded_part_of_it() -> None:
    async with server([b"no " * 1000], status=429) as (client, _):
        result = await client.complete("hello", 2)
    assert isinstance(result, Failure)
    assert result.reason.startswith("status 429: no no")
    assert len(result.reason) < 300


async def test_nobody_at_the_address_is_an_error_at_once() -> None:
    with pytest.raises(aiohttp.ClientError):
        async with connect("http://127.0.0.1:9"):
            pass
