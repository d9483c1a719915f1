"""How long a loaded engine puts off being ready, to compute what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support_service import DEADLINE_SECONDS, byte_tokenizer, collect, generation, small_capacity

from sapwood_contract.http import EngineState, LoadSnapshot
from sapwood_engine.core.warming import WarmCounts
from sapwood_engine.errors import Loading
from sapwood_engine.service.client import EngineClient
from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.messages import Ready, TokenBatch
from sapwood_engine.service.warm_up import WarmUp

BUSY, DONE = WarmCounts(num_waiting=2), WarmCounts(num_done=2)


def loaded(wait_seconds: float = 30.0) -> WarmUp:
    warm_up = WarmUp(wait_seconds)
    warm_up.loaded(100.0)
    return warm_up


def test_without_a_wait_it_is_ready_at_once() -> None:
    assert loaded(0.0).seconds_left(100.0) == 0.0


def test_without_a_call_it_waits_as_long_as_it_was_told() -> None:
    warm_up = loaded()
    assert warm_up.seconds_left(110.0) == 20.0
    assert warm_up.seconds_left(130.0) == 0.0


@pytest.mark.parametrize("counts", [BUSY, DONE])
def test_after_a_call_that_was_not_the_last_it_waits_four_times_as_long_at_most(counts: WarmCounts) -> None:
    warm_up = loaded()
    warm_up.counts = counts
    warm_up.called(is_last=False)
    assert warm_up.seconds_left(110.0) == 110.0
    assert warm_up.seconds_left(220.0) == 0.0


def test_the_last_call_ends_the_wait_once_it_is_worked_off() -> None:
    warm_up = loaded()
    warm_up.counts = BUSY
    warm_up.called(is_last=True)
    assert warm_up.seconds_left(110.0) == 110.0
    assert warm_up.seconds_left(220.0) == 0.0
    warm_up.counts = DONE
    assert warm_up.seconds_left(110.0) == 0.0


def test_a_call_behind_the_last_one_takes_nothing_back() -> None:
    warm_up = loaded()
    warm_up.called(is_last=True)
    warm_up.called(is_last=False)
    assert warm_up.seconds_left(100.0) == 0.0


def test_only_the_first_moment_at_which_it_was_loaded_counts() -> None:
    warm_up = loaded()
    warm_up.loaded(120.0)
    assert warm_up.seconds_left(120.0) == 10.0


# --- the client


@asynccontextmanager
async def loaded_client(wait_seconds: float) -> AsyncIterator[EngineClient]:
    """One whose worker has just said that it is ready."""
    channel = HttpChannel()
    client = EngineClient(channel, model_name="fake", max_queued=1, drain_seconds=1.0, warm_wait_seconds=wait_seconds)
    client.checkpoint_found("revision", byte_tokenizer())
    client.receive(Ready(small_capacity(), {}, {}))
    try:
        yield client
    finally:
        channel.close()


async def ready(client: EngineClient) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await client.wait_until_ready()


def state_of(client: EngineClient) -> EngineState:
    """Another each time: not what a checker of types remembers of the last time."""
    return client.state


def told(counts: WarmCounts) -> TokenBatch:
    return TokenBatch(deltas=[], load=LoadSnapshot(), warmed=counts)


async def test_an_engine_that_waits_for_nothing_is_ready_once_it_is_loaded() -> None:
    async with loaded_client(0.0) as client:
        assert client.state == "ready"


async def test_an_engine_that_nobody_tells_anything_is_warming_then_ready() -> None:
    async with loaded_client(0.05) as client:
        assert state_of(client) == client.prefixes.progress().state == "warming"
        await ready(client)
        assert state_of(client) == "ready"


async def test_an_engine_is_ready_as_soon_as_its_last_call_is_worked_off() -> None:
    async with loaded_client(3600.0) as client:
        client.receive(told(BUSY))
        client.warm_up.called(is_last=True)
        client.receive(told(WarmCounts(num_waiting=1, num_done=1)))
        assert state_of(client) == "warming"
        client.receive(told(DONE))
        assert state_of(client) == "ready"
        await ready(client)


async def test_an_engine_that_is_told_to_drain_meanwhile_never_gets_ready() -> None:
    async with loaded_client(3600.0) as client:
        await client.drain()
        client.warm_up.called(is_last=True)
        client.receive(told(DONE))
        assert client.state == "draining"


async def test_requests_are_refused_while_it_warms_as_while_it_loads() -> None:
    async with loaded_client(3600.0) as client:
        with pytest.raises(Loading):
            await collect(client, generation())
