"""The gateway in front of two real engines with the builtin model: what users and operators do to them.

One pair of engines serves all tests of this file but the last, which ends one of them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import openai
import pytest

from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
_START_SECONDS = 240


@dataclass
class Engine:
    process: subprocess.Popen[bytes]
    url: str
    admin_url: str


@dataclass
class Gateway:
    url: str
    client: openai.AsyncOpenAI


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    started = [_start_engine() for _ in range(2)]
    yield started
    for engine in started:
        engine.process.kill()
        engine.process.wait()


def _start_engine() -> Engine:
    port, admin_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "sapwood", "serve", "--kv-tokens=8192", "--threads=1", "--thread-binding=off"),
        *(f"--port={port}", f"--admin-port={admin_port}"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Engine(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")


@pytest.fixture(scope="module")
def gateway_url(engines: list[Engine]) -> Iterator[str]:
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "sapwood", "gateway", f"--port={port}", f"--admin-port={admin_port}"]
    command += ["--load-interval-seconds=0.2"]
    command += [f"--engine={engine.url},{engine.admin_url}" for engine in engines]
    for engine in engines:  # one that gets ready under the gateway's eyes starts slowly
        _wait_until(f"{engine.admin_url}/readyz")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until(f"http://127.0.0.1:{admin_port}/metrics", says=b'sapwood_gateway_replicas{state="fit"} 2')
            yield f"http://127.0.0.1:{port}"
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def _wait_until(url: str, *, says: bytes = b"") -> None:
    """Ask again and again; nobody listens yet, the answer is 503, or it says something else."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if says in answer.read():
                return
        assert time.monotonic() < deadline, f"{url} is not ready in time"
        time.sleep(0.05)  # what is waited for needs the processor


@pytest.fixture
async def gateway(gateway_url: str) -> AsyncIterator[Gateway]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{gateway_url}/v1", max_retries=0) as client:
        yield Gateway(gateway_url, client)


async def num_running(engine: Engine) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{engine.admin_url}/admin/load") as response:
        running: int = (await response.json())["load"]["num_running"]
        return running


async def until_idle(engines: list[Engine]) -> None:
    async with asyncio.timeout(60):
        while any([await num_running(engine) for engine in engines]):
            pass


async def stream(gateway: Gateway, *, max_tokens: int, prompt: str = "Once") -> AsyncGenerator[str, None]:
    """Yield the pieces of a streamed completion as the official client gives them, to its proper end."""
    chunks = await gateway.client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True}
    )
    finish_reason = None
    async for chunk in chunks:
        finish_reason = chunk.choices[0].finish_reason
        yield chunk.choices[0].text
    assert finish_reason == "length"


async def num_pieces(pieces: AsyncIterator[str]) -> int:
    return len([piece async for piece in pieces])


async def test_the_official_client_streams_and_lists_models(gateway: Gateway) -> None:
    assert [model.id async for model in gateway.client.models.list()] == [MODEL]
    answer = await gateway.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=4, stream=True
    )
    chunks = [chunk async for chunk in answer]
    assert chunks[-1].choices[0].finish_reason == "length"
    with pytest.raises(openai.NotFoundError):
        await gateway.client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError):
        await gateway.client.completions.create(model=MODEL, prompt="x", temperature=9)


async def test_streams_spread_over_both_engines(gateway: Gateway, engines: list[Engine]) -> None:
    open_streams = [stream(gateway, max_tokens=400, prompt=f"Story {number}") for number in range(4)]
    for each in open_streams:
        await anext(each)
    assert [await num_running(engine) for engine in engines] == [2, 2]
    for each in open_streams:
        await each.aclose()
    await until_idle(engines)


async def test_a_client_that_leaves_is_no_longer_computed_for(gateway: Gateway, engines: list[Engine]) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{gateway.url}/v1/completions", json=body) as response:
            await response.content.readany()
            assert sum([await num_running(engine) for engine in engines]) == 1
            response.close()
        await until_idle(engines)


async def test_one_engine_drains_and_no_stream_is_cut_then_it_is_killed_and_no_request_is_lost(
    gateway: Gateway, engines: list[Engine]
) -> None:
    going, staying = engines
    streams = [stream(gateway, max_tokens=100, prompt=f"Tale {number}") for number in range(8)]
    await asyncio.gather(*(anext(each) for each in streams))
    assert await num_running(going) > 0
    async with aiohttp.ClientSession() as session, session.post(f"{going.admin_url}/admin/drain") as response:
        assert response.status == 200  # when nothing runs there any more
    assert min(await asyncio.gather(*(num_pieces(each) for each in streams))) > 1
    assert await num_pieces(stream(gateway, max_tokens=4, prompt="After")) > 1
    going.process.kill()
    for number in range(6):
        assert await num_pieces(stream(gateway, max_tokens=4, prompt=f"Later {number}")) > 1
    await until_idle([staying])
