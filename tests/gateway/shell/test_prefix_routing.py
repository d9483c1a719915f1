"""Requests to a service that is routed by prefix, through a running gateway to real upstream servers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from support_gateway import CHAT, MODEL, Answer, Gateway, Upstream, drop, gateway, routes, status, upstream

from sapwood_contract.trust import TENANT_HEADER
from sapwood_gateway.core.balance import Report
from sapwood_gateway.core.block_names import CacheFacts, Naming, PromptSpace, prompt_of
from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.routes import Routes, Service
from sapwood_gateway.core.tenants import Tenant, Tenants, key_digest
from sapwood_gateway.shell.prompts import Unread
from sapwood_gateway.shell.usage import TAIL_BYTES, Usage, usage_of

PATH = "/v1/completions"
NAMING = Naming("revision", 4)
FACTS = CacheFacts(NAMING, 1_000, None)
IDS = list(range(20))
USAGE: Mapping[str, Any] = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 16},
}


@asynccontextmanager
async def by_prefix(
    *answers: Answer, facts: CacheFacts | None = FACTS, **settings: Any
) -> AsyncIterator[tuple[Gateway, list[Upstream]]]:
    """Run a gateway whose only service is routed by prefix, over an upstream for each of ``answers``."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(answer)) for answer in answers]
        replicas = [server.replica(f"pod-{number}") for number, server in enumerate(servers)]
        made = await stack.enter_async_context(gateway(routes(*replicas, policy="PrefixAffinity"), **settings))
        for replica in replicas:
            made.fleet.reported(replica.id, Report("ready", 0, 0, 0, cache=facts))
        yield made, servers


async def ask(running: Gateway, body: object, path: str = PATH, **headers: str) -> bytes:
    async with running.client.post(path, json=body, headers=headers) as response:
        assert response.status == 200
        return await response.read()


def body(prompt: object = IDS, **more: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, **more}


def reasons(running: Gateway) -> dict[str, float]:
    """Return how often each reason, of routes and of prompts that were not weighed, was counted."""
    both = running.series("sapwood_gateway_route_total") | running.series("sapwood_gateway_unread_prompts_total")
    return {labels.split('"')[1]: num for labels, num in both.items() if num}


@pytest.mark.parametrize("prompt", [IDS, [IDS, [1, 2]], list(range(3_000))], ids=["one", "several", "long"])
async def test_a_prompt_of_token_ids_goes_where_it_went_before(prompt: object) -> None:
    async with by_prefix(*[status(200)] * 3) as (running, servers):
        for _ in range(6):
            await ask(running, body(prompt))
        assert sorted(len(server.bodies) for server in servers) == [0, 0, 6]
        assert reasons(running) == {"least_load": 1, "prefix": 5}
        assert running.series("sapwood_gateway_index_blocks")[""] in (5, 750)


async def test_requests_of_different_namespaces_have_no_prefix_in_common() -> None:
    async with by_prefix(status(200)) as (running, _):
        for more in ({}, {"extra_key": "a"}, {"cache_salt": "a"}, {"cache_salt": None, "extra_key": "b"}):
            await ask(running, body(**more))
        assert reasons(running) == {"least_load": 4}
        await ask(running, body(extra_key=None))
        assert reasons(running)["prefix"] == 1


async def test_a_tenants_prompt_is_foreseen_under_the_name_that_its_engine_is_told_and_no_other_tenants() -> None:
    names = ("acme", "globex")
    digests = {name: frozenset({key_digest(f"sk-{name}")}) for name in names}
    tenants = Tenants([Tenant(namespace=CHAT.namespace, name=name, key_digests=digests[name]) for name in names])
    async with upstream(status(200)) as server:
        replica = server.replica("pod")
        service = Service(CHAT, (MODEL,), policy="PrefixAffinity", authentication="ApiKey", cache_sharing="Tenant")
        over = Routes({CHAT: service}, {CHAT: (replica,)})
        async with gateway(over, tenants=tenants, secret=b"s" * 32) as running:
            running.fleet.reported(replica.id, Report("ready", 0, 0, 0, cache=FACTS, knows_gateway=True))
            for name in ("acme", "globex", "acme"):
                await ask(running, body(), Authorization=f"Bearer sk-{name}")
            assert reasons(running) == {"least_load": 2, "prefix": 1}
            told = [PromptSpace(tenant=each.headers[TENANT_HEADER]) for each in server.requests]
            blocks = {block for space in told for block in prompt_of(IDS, NAMING, space, None).chain}
            assert running.series("sapwood_gateway_index_blocks")[""] == len(blocks) == 10


@pytest.mark.parametrize(
    "given",
    [
        *("text", ["text"], [], [[]], [1.5], [-1], [2**31], {"a": 1}, None, [1, "a"], [None]),
    ],
    ids=repr,
)
async def test_what_is_no_list_of_token_ids_is_routed_by_load_and_counted(given: object) -> None:
    async with by_prefix(status(200), status(200)) as (running, servers):
        for _ in range(4):
            await ask(running, body(given))
        assert [len(server.bodies) for server in servers] == [2, 2]
        assert reasons(running) == {"least_load": 4, "unreadable": 4}


@pytest.mark.parametrize("more", [{"cache_salt": 5}, {"extra_key": ["a"]}], ids=repr)
async def test_a_namespace_that_an_engine_would_refuse_is_not_guessed(more: dict[str, object]) -> None:
    async with by_prefix(status(200)) as (running, _):
        await ask(running, body(**more))
        assert reasons(running) == {"least_load": 1, "unreadable": 1}


async def test_a_body_that_only_a_lenient_reader_takes_is_routed_by_load() -> None:
    async with by_prefix(status(200)) as (running, _):
        lenient = json.dumps(body()).replace("[", "[NaN, ").encode()
        async with running.client.post(PATH, data=lenient) as response:
            assert response.status == 200
        assert reasons(running) == {"least_load": 1, "unreadable": 1}


async def test_a_very_large_body_is_not_looked_at() -> None:
    async with by_prefix(status(200), max_body_bytes=2**23) as (running, _):
        large = io.BytesIO(json.dumps(body(x="y" * (4 * 2**20))).encode())
        async with running.client.post(PATH, data=large) as response:
            assert response.status == 200
        assert reasons(running) == {"least_load": 1, "large": 1}


async def test_replicas_that_have_not_said_how_they_name_blocks_are_chosen_by_load() -> None:
    async with by_prefix(status(200), status(200), facts=None) as (running, servers):
        for _ in range(4):
            await ask(running, body())
        assert [len(server.bodies) for server in servers] == [2, 2]
        assert reasons(running) == {"least_load": 4, "unnamed": 4}


class Stuck:
    """A reader that does not come back."""

    async def read(self, *_: object) -> Sequence[int] | Unread:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_request_does_not_wait_long_for_its_prompt_to_be_read() -> None:
    async with by_prefix(status(200), reader=Stuck(), patience_seconds=0.01) as (running, _):
        for _ in range(4):
            await ask(running, body("x" * 5_000))
        assert reasons(running) == {"least_load": 4, "late": 4}


@dataclass
class Asked:
    """A reader of texts that has one answer, and keeps what it was asked."""

    answer: Sequence[int] | Unread
    asked: list[tuple[ServedModel, str, bytes, str | None]] = field(default_factory=list)

    async def read(self, *asked: Any) -> Sequence[int] | Unread:
        self.asked.append(asked)
        return self.answer


@pytest.mark.parametrize("prompt", ["text", ["text"], "text" * 2_000], ids=["one", "several", "long"])
async def test_a_text_is_read_by_its_service_and_model_and_goes_where_it_went_before(prompt: object) -> None:
    reader = Asked(IDS)
    async with by_prefix(*[status(200)] * 3, reader=reader) as (running, servers):
        for _ in range(6):
            await ask(running, body(prompt))
        assert sorted(len(server.bodies) for server in servers) == [0, 0, 6]
        assert reasons(running) == {"least_load": 1, "prefix": 5}
        sent = next(server.bodies[0] for server in servers if server.bodies)
        assert set(reader.asked) == {(ServedModel(CHAT, "revision"), PATH, sent, None)}


@pytest.mark.parametrize("why", ["late", "unreadable"])
async def test_a_text_that_cannot_be_read_is_counted_by_why(why: Unread) -> None:
    async with by_prefix(status(200), reader=Asked(why)) as (running, _):
        await ask(running, body("text"))
        assert reasons(running) == {"least_load": 1, why: 1}


@pytest.mark.parametrize(
    ("field", "header", "is_sticky"),
    [
        ({"prompt_cache_key": "s"}, {}, True),
        ({}, {"X-Session-Id": "s"}, True),
        ({"prompt_cache_key": None}, {"X-Session-Id": "s"}, True),
        ({"prompt_cache_key": " "}, {"X-Session-Id": ""}, False),
        ({"prompt_cache_key": 5}, {}, False),
        ({}, {}, False),
    ],
    ids=repr,
)
async def test_a_session_comes_back_to_its_replica(
    field: dict[str, object], header: dict[str, str], is_sticky: bool
) -> None:
    async with by_prefix(*[status(200)] * 2) as (running, _):
        for number in range(4):
            await ask(running, body([number] * 8, **field), **header)
        assert reasons(running).get("sticky", 0) == (3 if is_sticky else 0)


async def test_a_prompt_whose_replica_gives_no_answer_goes_to_another() -> None:
    async with by_prefix(drop, status(200)) as (running, [broken, well]):
        for number in range(8):
            await ask(running, body([number] * 12))
        assert len(well.bodies) == 8
        assert len(broken.bodies) <= 3  # then it rests
        assert running.fleet.check_invariants() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_expected_to_be_cached_and_what_was_are_counted(stream: bool) -> None:
    written = json.dumps({"choices": [{"text": 'x "cached_tokens": 99'}], "usage": USAGE}).encode()

    async def answer(_: web.Request) -> web.StreamResponse:
        if not stream:
            return web.Response(body=written, content_type="application/json")
        events = b"data: " + written + b"\n\ndata: [DONE]\n\n"
        return web.Response(body=events, content_type="text/event-stream")

    async with by_prefix(answer) as (running, _):
        for _ in range(2):
            await ask(running, body())
        labels = f'{{model="{MODEL}"}}'
        assert running.series("sapwood_gateway_predicted_match_tokens_total") == {labels: 19}
        assert running.series("sapwood_gateway_actual_match_tokens_total") == {labels: 32}
        # Of 20 tokens none were expected at first, and then all but the last; 16 were found; a page is 4.
        results = {'{result="within_page"}': 1, '{result="less"}': 0, '{result="more"}': 1}
        assert running.series("sapwood_gateway_match_predictions_total") == results


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (json.dumps(USAGE).encode(), Usage(7, 16)),
        (json.dumps(USAGE, separators=(",", ":")).encode(), Usage(7, 16)),
        (b"data: [DONE]\n\n", None),
        (b'"completion_tokens": 1, "prompt_tokens_details": null', Usage(1, None)),
        (b'"cached_tokens": 1', None),
        (json.dumps({"text": json.dumps(USAGE)}).encode(), None),
        (b'"completion_tokens": 12345678901, "cached_tokens": 1', None),
        (b"", None),
    ],
    ids=["spaced", "compact", "none", "hidden", "half", "in a text", "no number of tokens", "empty"],
)
def test_usage_is_read_from_the_end_of_an_answer(tail: bytes, usage: Usage | None) -> None:
    assert len(tail) < TAIL_BYTES
    assert usage_of(tail) == usage


async def test_a_service_routed_by_load_reads_no_prompt() -> None:
    reader = Asked(IDS)
    async with upstream(status(200)) as server, gateway(routes(server.replica("a")), reader=reader) as running:
        running.fleet.reported("a", Report("ready", 0, 0, 0, cache=FACTS))
        await ask(running, body("text"))
        assert reasons(running) == {"least_load": 1}
        assert reader.asked == []
        assert running.fleet.prefixes.namings(CHAT) == ()
