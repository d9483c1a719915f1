"""The endurance run sends what it says, counts what is not as asked and sees memory that grows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import endurance

NUM_REQUESTS = 300


@asynccontextmanager
async def server(*, extra_tokens: int = 0) -> AsyncIterator[tuple[str, list[Any]]]:
    """Answers every completion, with more tokens than were asked for where told; and what it was asked."""
    asked: list[Any] = []

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked.append(body)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"] + extra_tokens}
        if not body["stream"]:
            return web.json_response({"choices": [{"text": "a"}], "usage": usage})
        response = web.StreamResponse()
        await response.prepare(request)
        for event in ({"choices": [{"text": "a"}]}, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    async with TestServer(app) as running:
        yield str(running.make_url("")), asked


async def asked_of(*, extra_tokens: int = 0) -> tuple[endurance.Run, list[Any]]:
    async with server(extra_tokens=extra_tokens) as (url, asked):
        run = await endurance.ask_all(url, "m", endurance.requests(NUM_REQUESTS), lambda: (1000, 2000))
    return run, asked


async def test_every_kind_of_request_is_sent_and_ends() -> None:
    run, asked = await asked_of()
    assert run.kinds.total() == len(asked) == NUM_REQUESTS
    assert set(run.kinds) == set(endurance.KINDS)
    assert not run.failures
    assert {body["temperature"] for body in asked} == {0.0, 1.0}


async def test_memory_is_looked_at_every_hundred_requests() -> None:
    run, _ = await asked_of()
    assert [(sample.num_ended, sample.resident_bytes) for sample in run.samples] == [
        (100, (1000, 2000)), (200, (1000, 2000)), (300, (1000, 2000)),
    ]  # fmt: skip


async def test_an_answer_of_another_length_is_a_failure_unless_nobody_waits_for_it() -> None:
    run, _ = await asked_of(extra_tokens=1)
    assert run.failures == {"another number of tokens": run.kinds["whole"] + run.kinds["streamed"]}


def test_the_same_requests_come_every_time() -> None:
    assert list(endurance.requests(50)) == list(endurance.requests(50))


def test_requests_share_beginnings_and_some_are_long() -> None:
    requests = list(endurance.requests(2000))
    beginnings = [request.prompt[:24] for request in requests]
    assert max(beginnings.count(beginning) for beginning in set(beginnings)) > 50
    assert sum(len(request.prompt) >= 400 for request in requests) == 10


@pytest.mark.parametrize(("bytes_a_request", "flat"), [(0, True), (400, True), (600, False)])
def test_a_process_that_grows_by_more_than_the_bar_is_not_flat(bytes_a_request: int, flat: bool) -> None:
    noise = (0, 40_000, -40_000)
    points = [(n, 10**9 + bytes_a_request * n + noise[n % 3]) for n in range(2000, 20_001, 100)]
    assert endurance.judge_growth("worker", points) is flat
