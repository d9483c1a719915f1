"""A minute of what users do to a gateway, and of what happens to its engines: what dashboards and alerts are for.

Conversations that share their beginnings, streams whose clients leave, long answers that push each other out, calls
that are refused, and engines that end and come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from sapwood_dashboards.stand.program import START_SECONDS
from sapwood_dashboards.stand.programs import KEYS, Stand

_RULE = "Answer with care, say what you know and what you do not, and keep to the matter at hand. "
_TOPICS = ("rivers", "bridges", "clocks", "maps", "kites", "bells")
_NUM_TURNS = 4
_LONG_ANSWER = 260
_MOST_ROUNDS = 20
_AFTERWARDS_SECONDS = 5.0
"""Of load at least, once the engines are there again."""
_RARE_SECONDS = 30.0
_RARE = (
    'sum(sapwood_preemptions_total{reason="kv_full"}) > 0 and sum(sapwood_evicted_tokens_total) > 0'
    " and count(sapwood_mrc_hit_ratio >= 0) > 0"
)
_FAILED = 'sum(increase(sapwood_gateway_requests_total{code="503"}[1h])) > 12'
"""Enough for an alert."""


async def minute_of_load(stand: Stand, seconds: float) -> None:
    """Load the gateway for ``seconds``, or longer where what is rare takes longer to happen.

    After three fifths of them the engines end, with streams under way, and are started anew.
    """
    clients = _Clients(stand, await _model(stand))
    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        works = [clients.converse(number) for number in range(3)]
        works += [clients.write_long(), clients.leave(), clients.are_refused()]
        busy = [group.create_task(work) for work in works]
        await asyncio.sleep(0.6 * seconds)
        await _until(stand, _RARE)
        for engine in stand.engines:
            await engine.end()
        for task in busy:
            task.cancel()
    await clients.find_nobody()
    for engine in stand.engines:
        await engine.start()
    for engine in stand.engines:
        await engine.until_ready(stand.http)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(begin + seconds - time.monotonic(), _AFTERWARDS_SECONDS)):
            await clients.converse(0)


async def _until(stand: Stand, condition: str) -> None:
    """Wait until Prometheus finds that ``condition`` gives something, for half a minute at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_RARE_SECONDS):
            while not await stand.holds(condition):  # noqa: ASYNC110  # Prometheus tells nobody
                await asyncio.sleep(0.5)


async def _model(stand: Stand) -> str:
    """Wait until the gateway knows the engines' model; return its name."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            async with stand.http.get(f"{stand.gateway.url}/v1/models", headers=_key("usual")) as response:
                cards = (await response.json())["data"]
            if cards:
                return str(cards[0]["id"])
            await asyncio.sleep(0.1)


def _key(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


class _Clients:
    """Clients of one gateway."""

    def __init__(self, stand: Stand, model: str) -> None:
        self._stand = stand
        self._url = f"{stand.gateway.url}/v1/chat/completions"
        self._model = model

    async def converse(self, number: int) -> None:
        """Hold one conversation after the other, for ever; those of one topic begin alike."""
        for turn in itertools.count(number):
            topic = _TOPICS[turn % len(_TOPICS)]
            messages = [{"role": "system", "content": f"You know all about {topic}. " + _RULE * 7}]
            for question in range(_NUM_TURNS):
                messages.append({"role": "user", "content": f"Tell me fact {question} of {turn} about {topic}."})
                text = "".join([piece async for piece in self._stream(messages, max_tokens=24)])
                messages.append({"role": "assistant", "content": text or "I do not know."})

    async def write_long(self) -> None:
        """Ask for so many long answers at once that there is no room for all of them to the end."""
        while True:
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(self._read([_user(f"Story {number}. {_RULE}")], max_tokens=_LONG_ANSWER))

    async def leave(self) -> None:
        """Open streams and leave after their first words."""
        while True:
            async with contextlib.aclosing(self._stream([_user("Count to a thousand.")], max_tokens=200)) as pieces:
                async for _ in pieces:
                    break
            await asyncio.sleep(1)

    async def are_refused(self) -> None:
        """Be wrong, be nobody, and be one who asks too often."""
        right = {"model": self._model, "messages": [_user("Hello")], "max_tokens": 2}
        while True:
            await self._status(right | {"temperature": "hot"}, _key("usual"))
            await self._status(right, {})
            await self._status(right, _key("narrow"))
            await asyncio.sleep(1)

    async def find_nobody(self) -> None:
        """Ask while there is no engine, until an alert should see it: some wait for one, others are told at once."""
        body = {"model": self._model, "messages": [_user("Is anybody there?")], "max_tokens": 2}
        for _ in range(_MOST_ROUNDS):
            await asyncio.gather(*(self._status(body, _key("usual")) for _ in range(20)))
            await asyncio.sleep(1)  # a scrape a second
            if await self._stand.holds(_FAILED):
                return

    async def _read(self, messages: list[dict[str, str]], *, max_tokens: int) -> None:
        async for _ in self._stream(messages, max_tokens=max_tokens):
            pass

    async def _stream(self, messages: list[dict[str, str]], *, max_tokens: int) -> AsyncGenerator[str, None]:
        """Yield a streamed answer piece by piece; nothing where it is refused."""
        body = {"model": self._model, "messages": messages, "max_tokens": max_tokens, "stream": True}
        body |= {"ignore_eos": True, "temperature": 0.8}
        with contextlib.suppress(aiohttp.ClientError):  # an engine that ends takes its streams with it
            async with self._post(body, _key("usual")) as response:
                async for line in response.content:
                    if response.status == 200 and line.startswith(b"data: {"):
                        for choice in json.loads(line.removeprefix(b"data: ")).get("choices", []):
                            yield choice["delta"].get("content") or ""

    async def _status(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        async with self._post(body, headers) as response:
            await response.read()
            return response.status

    @asynccontextmanager
    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._stand.http.post(self._url, json=body, headers=headers) as response:
            yield response


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
