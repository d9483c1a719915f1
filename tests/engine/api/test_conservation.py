"""The metrics of an engine under load agree with what its callers were told (I01, I05), and at each scrape."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from support_api import CHAT, TEXT, events, http, served
from support_fake_executor import FakeExecutor
from support_series import Scrape, scrape_of
from support_service import ThreadEngine, options, settle, small_capacity, thread_engine

from sapwood_contract.metrics import KV_STATES
from sapwood_engine.api.app import build_app

MODEL = {"model": "fake"}
SHARED = "You are a helpful assistant who answers in one word. " * 3


@dataclass
class Told:
    """What callers were told of their prompts."""

    num_prompt: int = 0
    num_cached: int = 0
    codes: list[int] = field(default_factory=list)

    def usage(self, usage: dict[str, Any]) -> None:
        self.num_prompt += usage["prompt_tokens"]
        self.num_cached += usage["prompt_tokens_details"]["cached_tokens"]


@asynccontextmanager
async def running(num_pages: int, **launch: object) -> AsyncIterator[tuple[ThreadEngine, httpx.AsyncClient]]:
    async with (
        thread_engine(executor=FakeExecutor(small_capacity(num_pages=num_pages)), launch=options(**launch)) as engine,
        served(build_app(engine.client)) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as api,
    ):
        # Nothing is told of the cache before the worker has said something, which no event of the client's tells.
        while not engine.client.load.kv_capacity_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield engine, api


async def scraped(api: httpx.AsyncClient) -> Scrape:
    return scrape_of((await api.get("/metrics")).text)


def check_states(scrape: Scrape) -> None:
    states = [scrape.value("sapwood_kv_tokens", **MODEL, state=state) for state in KV_STATES]
    assert sum(states) == scrape.value("sapwood_kv_capacity_tokens", **MODEL) > 0
    assert min(states) >= 0


async def scraping(engine: ThreadEngine, *work: Coroutine[Any, Any, None]) -> int:
    """Do all of ``work`` at once, looking at the metrics whenever it pauses; returns how often."""
    tasks = [asyncio.create_task(each) for each in work]
    num = 0
    while not all(task.done() for task in tasks):
        check_states(scrape_of(engine.client.render_metrics().body.decode()))
        num += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return num


def body(prompt: str | list[str], **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


async def ask(api: httpx.AsyncClient, told: Told, asked: dict[str, Any]) -> None:
    """One call, whole or streamed; where the queue is full, again."""
    while True:
        streams = {"stream": True, "stream_options": {"include_usage": True}} if asked.get("stream") else {}
        response = await api.post(TEXT, json=asked | streams)
        told.codes.append(response.status_code)
        if response.status_code != 429:
            break
    assert response.status_code == 200, response.text
    told.usage(events(response.text)[-2]["usage"] if streams else response.json()["usage"])


async def leave(api: httpx.AsyncClient, told: Told, prompt: str) -> None:
    """Begin a long stream of a prompt that nobody else has, and go away once it has begun."""
    asked = body(prompt, max_tokens=300, stream=True)
    while True:
        async with api.stream("POST", TEXT, json=asked) as response:
            told.codes.append(response.status_code)
            if response.status_code == 200:
                await anext(response.aiter_bytes())
                told.num_prompt += len(prompt)
                return


async def refuse(api: httpx.AsyncClient, told: Told, number: int) -> None:
    """One call that cannot be answered."""
    asked: list[tuple[str, Any]] = [
        (TEXT, body(SHARED, temperature=9)),
        (TEXT, body(SHARED, max_tokens=2_000_000)),
        (TEXT, body(SHARED) | {"model": f"other-{number}"}),
        (CHAT, {"model": "fake", "messages": SHARED}),
    ]
    path, bad = asked[number % len(asked)]
    assert (await api.post(path, json=bad)).status_code in (400, 404)
    assert (await api.post(path, content=b'{"prompt":', headers={"content-type": "application/json"})).is_client_error


async def test_prompt_tokens_and_hits_are_those_of_the_answers_usage_whatever_the_calls_ask_for() -> None:
    told = Told()
    async with running(4096) as (engine, api):
        asked: list[dict[str, Any]] = []
        for number in range(24):
            prompt: str | list[str] = f"{SHARED}{number % 7}"
            if number % 5 == 0:
                prompt = [f"{SHARED}list {number}", f"another {number} " * 4]
            asked.append(body(prompt, n=1 + number % 3, stream=number % 2 == 0, temperature=number % 3))
        for each in asked[:6]:  # one after the other: the answers say what was there before
            await ask(api, told, each)
        await scraping(engine, *(ask(api, told, each) for each in asked[6:]))
        await settle(engine.client)
        scrape = await scraped(api)
    assert scrape.by("sapwood_prompt_tokens_total", "source") == {
        "device": told.num_cached,
        "compute": told.num_prompt - told.num_cached,
    }
    assert scrape.by("sapwood_http_requests_total", "code") == {"200": 24}


async def test_preemptions_aborts_refusals_and_full_queues_do_not_bend_the_hit_rate() -> None:
    told, left = Told(), Told()
    draw = random.Random(3)
    # Room for little more than one call's pages beside another's: they preempt each other.
    async with running(28, max_queued=3, max_running=4) as (engine, api):
        work = [ask(api, told, body(f"{SHARED}{number % 5}", max_tokens=120)) for number in range(30)]
        work += [leave(api, left, "".join(draw.choices("abcdefgh", k=90))) for _ in range(4)]
        work += [refuse(api, told, number) for number in range(20)]
        draw.shuffle(work)
        assert await scraping(engine, *work) > 10
        await settle(engine.client)
        scrape = await scraped(api)
    assert scrape.total("sapwood_preemptions_total") > 0
    assert scrape.total("sapwood_evicted_tokens_total") > 0
    assert scrape.by("sapwood_prompt_tokens_total", "source") | {"recompute": 0} == {
        "device": told.num_cached,
        "compute": told.num_prompt - told.num_cached + left.num_prompt,
        "recompute": 0,
    }
    num_full = (told.codes + left.codes).count(429)
    assert scrape.value("sapwood_http_requests_total", **MODEL, code="429") == num_full > 0
    assert scrape.total("sapwood_requests_total") == 34  # refusals are none


async def test_what_callers_make_up_makes_no_series() -> None:
    async with thread_engine() as engine, http(build_app(engine.client)) as api:
        await ask(api, Told(), body("x"))
        before = (await scraped(api)).num_series()
        for number in range(1000):
            odd = f"made-up-{number}"
            headers = {"x-session-id": odd, "x-request-id": odd, "user-agent": odd, "authorization": f"Bearer {odd}"}
            if number % 2:
                fields = {"user": odd, "cache_salt": odd, "extra_key": odd, "prompt_cache_key": odd}
                answer = await api.post(TEXT, json=body("x") | {"model": odd} | fields, headers=headers)
            else:
                answer = await api.get(f"/{odd}?{odd}={odd}", headers=headers)
            assert answer.status_code == 404
        after = await scraped(api)
    assert after.num_series() == before
    assert after.by("sapwood_http_requests_total", "code") == {"200": 1, "404": 1000}
