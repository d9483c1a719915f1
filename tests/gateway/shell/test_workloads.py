"""A gateway's last hour of a service, as its admin port tells it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import aiohttp
import msgspec
import pytest
from support_gateway import (
    CHAT,
    MODEL,
    Answer,
    Gateway,
    Steps,
    admin_app,
    behind,
    drop,
    gateway,
    routes,
    serving,
    status,
    upstream,
)

from sapwood_contract.http import GATEWAY_TRACE, ServiceTrace, TracedRequest
from sapwood_gateway.core.balance import Report
from sapwood_gateway.core.block_names import CacheFacts, Naming

MARK = "nobody-may-read-this"
FACTS = CacheFacts(Naming("revision", 16), 10_000, None)
ADMIN_KEYS = frozenset({"right"})
SECRET = b"0123456789abcdef"
USAGE = json.dumps({"usage": {"prompt_tokens": 70, "completion_tokens": 7}}).encode()


@dataclass
class Served:
    running: Gateway
    admin: aiohttp.ClientSession

    async def ask(self, prompt: object, path: str = "/v1/completions") -> None:
        async with self.running.client.post(path, json={"model": MODEL, "prompt": prompt}) as answer:
            await answer.read()

    async def get(self, key: str = "", **query: str) -> tuple[int, bytes]:
        asked: Mapping[str, str] = {"namespace": CHAT.namespace, "service": CHAT.name, **query}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.admin.get(GATEWAY_TRACE, params=asked, headers=headers) as answer:
            return answer.status, await answer.read()

    async def trace(self, **query: str) -> ServiceTrace:
        code, body = await self.get(**query)
        assert code == 200
        return msgspec.json.decode(body, type=ServiceTrace)

    async def error(self, **given: str) -> tuple[int, str]:
        code, body = await self.get(**given)
        return code, str(json.loads(body)["error"]["code"])


@asynccontextmanager
async def served(answer: Answer, *, facts: CacheFacts | None = FACTS, **settings: Any) -> AsyncIterator[Served]:
    """Run a gateway before one engine; ``settings``: of its admin port."""
    async with upstream(answer) as server:
        replica = server.replica("pod-0")
        async with gateway(routes(replica, policy="PrefixAffinity")) as running:
            running.fleet.reported(replica.id, Report("ready", 0, 0, 0, cache=facts))
            async with (
                serving(admin_app(running, **settings)) as url,
                aiohttp.ClientSession(url) as admin,
            ):
                yield Served(running, admin)


def shared(a: TracedRequest, b: TracedRequest) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.hash_ids, b.hash_ids, strict=False)))


async def test_requests_are_told_with_their_lengths_and_with_what_their_prompts_share() -> None:
    async with served(status(200, USAGE)) as here:
        for prompt in (range(1_100), [*range(600), *[5] * 100], [7] * 100, range(1_100)):
            await here.ask(list(prompt))
        told = (await here.trace()).requests
        assert [(each.input_length, each.output_length, len(each.hash_ids)) for each in told] == [
            (1_100, 7, 3),
            (700, 7, 2),
            (100, 7, 1),
            (1_100, 7, 3),
        ]
        assert [shared(told[0], each) for each in told] == [3, 1, 0, 3]


async def test_nothing_of_a_prompt_or_an_answer_is_in_it_and_a_second_reading_has_other_names() -> None:
    async with served(status(200, USAGE + MARK.encode()), secret=SECRET) as here:
        await here.ask(list(range(512)))
        await here.ask(MARK)
        _, body = await here.get(reading="0" * 16)
        assert MARK.encode() not in body
        one, same, other = [await here.trace(reading=each * 16) for each in "001"]
        assert one.block_names == same.block_names != other.block_names
        assert (await here.trace()).block_names == ""


async def test_without_a_secret_of_the_installation_blocks_have_no_names_beyond_the_answer() -> None:
    async with served(status(200, USAGE)) as here:
        await here.ask(list(range(512)))
        assert (await here.trace(reading="0" * 16)).block_names == ""


async def test_a_prompt_that_was_not_read_is_as_long_as_its_usage_says_and_like_no_other() -> None:
    async with served(status(200, USAGE)) as here:
        await here.ask("a text")
        await here.ask("a text")
        told = (await here.trace()).requests
        assert [(each.input_length, each.hash_ids) for each in told] == [(70, (0,)), (70, (1,))]


async def test_of_a_stream_without_usage_events_are_counted() -> None:
    steps = Steps()
    for number in range(5):
        steps.items.put_nowait(b"data: {%d}\n\n" % number)
    steps.items.put_nowait(None)
    async with served(steps.answer) as here:
        await here.ask(list(range(40)))
        assert [each.output_length for each in (await here.trace()).requests] == [5]


@pytest.mark.parametrize("answer", [status(400), status(429), status(503), drop], ids=["400", "429", "503", "dropped"])
async def test_what_no_engine_has_answered_is_not_in_it(answer: Answer) -> None:
    async with served(answer) as here:
        await here.ask(list(range(40)))
        assert (await here.trace()).requests == ()


async def test_what_makes_no_tokens_is_not_in_it() -> None:
    async with served(status(200, USAGE)) as here:
        await here.ask("a text", "/tokenize")
        assert (await here.trace()).requests == ()


async def test_a_service_that_is_not_known_or_not_routed_by_prefix_is_told() -> None:
    async with served(status(200)) as here:
        assert await here.error(service="other") == (404, "unknown_service")
        assert await here.error(namespace="other") == (404, "unknown_service")
        known = here.running.fleet.routes
        by_load = {key: replace(service, policy="LeastLoad") for key, service in known.services.items()}
        here.running.fleet.update(replace(known, services=by_load))
        assert await here.error() == (409, "not_by_prefix")


async def test_a_service_routed_by_load_leaves_nothing() -> None:
    async with behind(status(200, USAGE)) as (running, _):
        async with running.client.post("/v1/completions", json={"model": MODEL, "prompt": [1]}) as answer:
            assert answer.status == 200
        assert running.proxy.workloads.kept(CHAT).entries == ()


async def test_an_admin_key_is_asked_for_where_the_gateway_has_one() -> None:
    async with served(status(200), admin_keys=ADMIN_KEYS) as here:
        assert (await here.get(key="right"))[0] == 200
        assert await here.error() == await here.error(key="wrong") == (401, "invalid_api_key")
    async with served(status(200)) as here:
        assert (await here.get())[0] == 200


@pytest.mark.parametrize("reading", ["short", "x" * 16, "0" * 65])
async def test_a_reading_that_is_no_random_number_is_refused(reading: str) -> None:
    async with served(status(200), secret=SECRET) as here:
        assert await here.error(reading=reading) == (400, "invalid_value")
