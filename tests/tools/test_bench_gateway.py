"""What is asked of a stand-in and counted of it, and which figures hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

import stream_client
from gateway import Side, judge_sides
from stand_in import Connection, Streams


@pytest.fixture
async def url() -> AsyncIterator[str]:
    streams = Streams()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(streams), "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await streams.stop()


async def test_the_first_token_comes_at_once_and_each_request_is_timed(url: str) -> None:
    seconds = await stream_client.first(url, 3, sentences=2)
    assert len(seconds) == 3
    assert min(seconds) > 0


async def test_tokens_of_all_streams_are_counted_with_the_cores_that_programs_used(url: str) -> None:
    found = await stream_client.rate(url, streams=4, rate=100.0, seconds=0.5, pids={"gateway": os.getpid()})
    assert found["tokens_per_second"] > 0
    assert found.keys() == {"tokens_per_second", "gateway", "client"}


async def test_the_stand_in_tells_when_a_client_has_left(url: str) -> None:
    seconds = await stream_client.leave(url, url, 2)
    assert len(seconds) == 2
    assert min(seconds) > 0


async def test_an_event_that_comes_in_pieces_is_counted_once() -> None:
    stream = stream_client.Stream(1.0)
    for piece in (b"data: {}", b"\n", b"\ndata: {}\n", b"\ndata: {}\n\ndata: {", b"}\n\n"):
        stream.data_received(piece)
    assert stream.num_events == 4


def side(first_seconds: float, tokens: float, left_seconds: float) -> Side:
    counted = {"tokens_per_second": tokens, "gateway": 0.5, "stand_in": 0.1, "client": 0.1}
    return Side([first_seconds] * 3, [first_seconds] * 3, [left_seconds] * 3, [counted] * 3, [counted] * 3)


@pytest.mark.parametrize(
    ("through", "holds"),
    [
        (side(0.003, 950, 0.1), True),
        (side(0.0031, 950, 0.1), False),
        (side(0.003, 949, 0.1), False),
        (side(0.003, 950, 0.11), False),
    ],
)
def test_two_milliseconds_a_twentieth_of_the_tokens_and_a_tenth_of_a_second_are_the_bars(
    through: Side, holds: bool
) -> None:
    assert judge_sides(side(0.001, 1_000, 0.001), through, 40.0) is holds
