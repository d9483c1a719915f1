"""A real engine behind a real gateway: what both count is what callers were told, at every scrape."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support_gateway import Upstream, status
from support_gateway_process import engine as fake_engine
from support_gateway_process import gateway_process
from support_series import Scrape, scrape_of

from sapwood_contract.metrics import KV_STATES
from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
PATH = "/v1/completions"
SHARED = "The quick brown fox jumps over the lazy dog, who had been asleep and is not amused. " * 4
START_SECONDS = 240.0


@dataclass
class Running:
    """The three programs; the second replica refuses everything, so that a part of the requests is sent twice."""

    engine: httpx.AsyncClient
    gateway: httpx.AsyncClient
    gateway_metrics: httpx.AsyncClient
    refusing: Upstream

    async def scrape(self) -> Scrape:
        return scrape_of((await self.engine.get("/metrics")).text)

    async def scrape_gateway(self) -> Scrape:
        return scrape_of((await self.gateway_metrics.get("/metrics")).text)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    port, admin_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "sapwood", "serve", "--kv-tokens=512", "--max-running=8", "--metrics-compat=vllm"),
        *("--threads=1", "--thread-binding=off", f"--port={port}", f"--admin-port={admin_port}"),
    ]
    async with AsyncExitStack() as stack:
        devnull = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdout=devnull, stderr=devnull)
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        api = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120))
        async with asyncio.timeout(START_SECONDS):
            while not await is_ready(api):
                assert process.returncode is None
                await asyncio.sleep(0.1)  # what is waited for needs the processor
        real = Upstream(status(500), url=f"http://127.0.0.1:{port}")
        refusing = await stack.enter_async_context(fake_engine(status(503), model=MODEL))
        listed = f"--engine={real.url},http://127.0.0.1:{admin_port}"
        gateway = await stack.enter_async_context(gateway_process(refusing, options=[listed]))
        before = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=120)
        )
        admin = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.admin_url))
        yield Running(api, before, admin, refusing)


async def is_ready(api: httpx.AsyncClient) -> bool:
    try:
        return (await api.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def usage_of_stream(running: Running, number: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": f"{SHARED}{number % 4}",
        "n": 1 + number % 2,
        "max_tokens": 60,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = await running.gateway.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    return usage


async def refuse(running: Running, number: int) -> None:
    body = {"model": MODEL if number % 2 else f"other-{number}", "prompt": SHARED, "temperature": 9}
    assert (await running.gateway.post(PATH, json=body)).status_code in (400, 404)


async def leave(running: Running) -> None:
    body = {"model": MODEL, "prompt": [7, 8, 9] * 20, "max_tokens": 300, "stream": True, "ignore_eos": True}
    async with running.gateway.stream("POST", PATH, json=body) as answer:
        await anext(answer.aiter_bytes())


async def test_conservation_over_streams_retries_preemptions_aborts_and_refusals(running: Running) -> None:
    calls = [asyncio.create_task(usage_of_stream(running, number)) for number in range(16)]
    others = [asyncio.create_task(refuse(running, number)) for number in range(10)] + [
        asyncio.create_task(leave(running))
    ]
    num_scrapes = 0
    while not all(task.done() for task in (*calls, *others)):
        scrape = await running.scrape()
        states = [scrape.value("sapwood_kv_tokens", model=MODEL, state=state) for state in KV_STATES]
        assert sum(states) == scrape.value("sapwood_kv_capacity_tokens", model=MODEL) == 512
        assert scrape.value("vllm:cache_config_info", block_size="16", num_gpu_blocks="32", engine="0") == 1
        num_scrapes += 1
    await asyncio.gather(*others)
    usages = [await call for call in calls]
    async with asyncio.timeout(60):
        while (scrape := await running.scrape()).total("sapwood_requests_running"):
            pass  # the abort is on its way
    counted = scrape.by("sapwood_prompt_tokens_total", "source")
    num_left = 60
    assert counted["device"] + counted["compute"] == sum(usage["prompt_tokens"] for usage in usages) + num_left
    assert scrape.total("sapwood_preemptions_total") > 0
    assert num_scrapes > 2
    assert running.refusing.bodies
    async with asyncio.timeout(60):
        while (told := await running.scrape_gateway()).total("sapwood_gateway_requests_total") < len(calls + others):
            pass  # it counts a request once its answer is written
    assert told.by("sapwood_gateway_requests_total", "code") == {"200": 16, "400": 5, "404": 5, "499": 1}
    assert told.value("sapwood_gateway_attempt_failures_total", reason="unavailable") == len(running.refusing.bodies)
    assert scrape.by("sapwood_http_requests_total", "code") == {"200": 16, "400": 5, "499": 1}
