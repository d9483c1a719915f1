"""Callers with quotas: what is counted, when they are refused, and what happens where nobody can count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from support_gateway import CHAT, MODEL, Answer, Break, Gateway, Steps, Upstream, drop, echo, gateway, status, upstream
from support_redis import false_redis

from sapwood_gateway.core.quotas import Add
from sapwood_gateway.core.routes import Routes, Service
from sapwood_gateway.core.tenants import Quotas, Tenant, Tenants, key_digest
from sapwood_gateway.shell.quota_store import LocalQuotaStore, QuotaStore, SharedQuotaStore, StoreFailed

PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [], "max_tokens": 10}
PROMPT = -(-len(json.dumps(BODY)) // 4)
"""Tokens that the body is taken to have."""
PRICE = PROMPT + 10
KEY = {"Authorization": "Bearer sk-acme"}


def used(prompt: int, completion: int) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return json.dumps({"choices": [], "usage": usage}).encode()


@dataclass
class Counted(LocalQuotaStore):
    """A store whose counts can be looked at, and which can be put out of order."""

    counts: dict[str, int] = field(default_factory=dict)
    is_broken: bool = False
    num_asked: int = 0
    renewed: asyncio.Future[int] = field(init=False)
    """How many seats were renewed."""

    def __post_init__(self) -> None:
        super().__init__()

    async def take(self, change: Add, *, limit: int) -> int:
        self._break()
        return await super().take(change, limit=limit)

    async def add(self, change: Add) -> None:
        self._break()
        _, kind, period, _ = change.key.split(":")
        name = f"{kind} a {period}"
        self.counts[name] = self.counts.get(name, 0) + change.amount
        await super().add(change)

    async def enter(self, key: str, *, limit: int, seat: str) -> bool:
        self._break()
        return await super().enter(key, limit=limit, seat=seat)

    async def leave(self, key: str, *, seat: str) -> None:
        self._break()
        await super().leave(key, seat=seat)

    async def renew(self, seats: Mapping[str, Collection[str]]) -> None:
        self._break()
        self.renewed.set_result(sum(map(len, seats.values())))

    async def wait_for_renewal(self, running: Gateway, *, seats: int) -> None:
        """Let the gateway renew once, and look at what it does."""
        self.renewed = asyncio.get_running_loop().create_future()
        keeping = asyncio.create_task(running.limiter.run())
        assert await self.renewed == seats
        keeping.cancel()

    def _break(self) -> None:
        self.num_asked += 1
        if self.is_broken:
            raise StoreFailed("ConnectionError")


@dataclass
class Clock:
    now: float = 30.0
    """Half a minute past midnight of a day."""

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Counted:
    return Counted()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def limited(
    quotas: Quotas, store: QuotaStore, *, answer: Answer = echo, **settings: Any
) -> AsyncIterator[tuple[Gateway, Upstream]]:
    """A gateway before one engine, and one tenant with ``quotas``."""
    tenants = Tenants(
        [
            Tenant(namespace="team", name=name, key_digests=frozenset({key_digest(f"sk-{name}")}), quotas=quotas)
            for name in ("acme", "other")
        ]
    )
    async with upstream(answer) as engine:
        routes = Routes({CHAT: Service(CHAT, (MODEL,), authentication="ApiKey")}, {CHAT: (engine.replica("pod"),)})
        settings = {"wall_clock": lambda: 30.0} | settings
        async with gateway(routes, tenants=tenants, secret=b"0" * 32, store=store, **settings) as running:
            yield running, engine


@asynccontextmanager
async def asked(
    running: Gateway, *, path: str = PATH, key: dict[str, str] = KEY
) -> AsyncIterator[aiohttp.ClientResponse]:
    async with running.client.post(path, data=json.dumps(BODY), headers=key) as response:
        yield response
        await response.read()
    await running.traffic.drained()
    await running.limiter.settled()


async def code_of(response: aiohttp.ClientResponse) -> tuple[int, str, str | None]:
    error = (await response.json())["error"]
    return response.status, error["code"], response.headers.get("Retry-After")


# --- requests


async def test_requests_beyond_those_of_a_minute_are_refused_until_the_next(store: Counted, clock: Clock) -> None:
    async with limited(Quotas(requests_per_minute=2), store, wall_clock=clock) as (running, engine):
        for left in ("1", "0"):
            async with asked(running) as response:
                assert response.status == 200
                assert response.headers["x-ratelimit-limit-requests"] == "2"
                assert response.headers["x-ratelimit-remaining-requests"] == left
                assert response.headers["x-ratelimit-reset-requests"] == "30s"
        async with asked(running) as response:
            assert await code_of(response) == (429, "rate_limited", "30")
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(engine.bodies) == 2
        assert running.series("sapwood_gateway_rejected_total")['{reason="rate"}'] == 1
        clock.now += 30.0
        async with asked(running) as response:
            assert response.status == 200


async def test_requests_beyond_those_of_a_day_are_refused_until_midnight(store: Counted, clock: Clock) -> None:
    async with limited(Quotas(requests_per_day=1), store, wall_clock=clock) as (running, _):
        async with asked(running) as response:
            assert response.status == 200
        async with asked(running) as response:
            assert await code_of(response) == (429, "quota_exceeded", str(86_400 - 30))
        assert running.series("sapwood_gateway_rejected_total")['{reason="quota"}'] == 1


async def test_a_refused_request_is_not_counted(store: Counted) -> None:
    async with limited(Quotas(requests_per_minute=5, requests_per_day=1), store) as (running, _):
        for _ in range(3):
            async with asked(running):
                pass
        assert store.counts == {"requests a minute": 1, "requests a day": 1}


async def test_one_tenants_requests_are_not_anothers(store: Counted) -> None:
    async with limited(Quotas(requests_per_minute=1), store) as (running, _):
        for name in ("acme", "other"):
            async with asked(running, key={"Authorization": f"Bearer sk-{name}"}) as response:
                assert response.status == 200


async def test_who_has_no_quotas_costs_the_store_no_question(store: Counted) -> None:
    async with limited(Quotas(), store) as (running, _), asked(running) as response:
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("x-ratelimit")]
    assert store.num_asked == 0


# --- tokens


async def test_what_an_answer_did_not_use_of_its_price_is_given_back(store: Counted) -> None:
    answer = status(200, used(7, 3))
    async with limited(Quotas(tokens_per_minute=PRICE), store, answer=answer) as (running, _):
        async with asked(running) as response:
            assert response.headers["x-ratelimit-limit-tokens"] == str(PRICE)
            assert response.headers["x-ratelimit-remaining-tokens"] == "0"
        assert store.counts == {"tokens a minute": 10}
        async with asked(running) as response:  # 10 are used, and this one's price does not fit
            assert await code_of(response) == (429, "rate_limited", "30")
        assert store.counts == {"tokens a minute": 10}


async def test_what_an_answer_used_beyond_its_price_counts_too(store: Counted) -> None:
    quotas = Quotas(tokens_per_minute=5_000, tokens_per_day=5_000)
    async with limited(quotas, store, answer=status(200, used(900, 100))) as (running, _):
        async with asked(running):
            pass
        assert store.counts == {"tokens a minute": 1_000, "tokens a day": 1_000}


async def test_a_request_that_no_window_has_room_for_is_told_to_ask_for_less(store: Counted) -> None:
    async with limited(Quotas(tokens_per_day=5), store) as (running, engine):
        async with asked(running) as response:
            assert (await code_of(response))[:2] == (429, "quota_exceeded")
            assert f"may use {PRICE} tokens" in (await response.json())["error"]["message"]
        assert engine.bodies == []


@pytest.mark.parametrize(
    ("prompt", "num"),
    [
        ("hi", 1),
        ([1, 2, 3], 1),
        (["hi"] * 100, 100),
        ([[1, 2], [3]], 2),
        ([], 1),
        (None, 1),
        (7, 1),
        (["\ud800", "hi"], 2),  # half a pair: only the standard library reads it
    ],
)
async def test_a_list_of_prompts_costs_an_answer_each(store: Counted, prompt: object, num: int) -> None:
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1_000})
    async with limited(Quotas(tokens_per_day=10**6), store, answer=Steps().answer) as (running, engine):
        asking = asyncio.create_task(running.client.post("/v1/completions", data=body, headers=KEY))
        await engine.busy.wait()
        assert store.counts == {"tokens a day": -(-len(body) // 4) + num * 1_000}
        asking.cancel()
        await running.traffic.drained()


async def stream(*events: bytes) -> Steps:
    steps = Steps()
    for event in events:
        steps.items.put_nowait(event)
    return steps


async def test_a_stream_that_says_what_it_used_costs_that(store: Counted) -> None:
    steps = await stream(b"data: 1\n\n", b"data: " + used(7, 3) + b"\n\n", b"data: [DONE]\n\n")
    steps.items.put_nowait(None)
    async with limited(Quotas(tokens_per_day=900), store, answer=steps.answer) as (running, _):
        async with asked(running):
            pass
        assert store.counts == {"tokens a day": 10}


@pytest.mark.parametrize("end", [None, Break])
@pytest.mark.parametrize(("num_events", "cost"), [(3, PRICE), (10, PRICE), (30, PROMPT + 30)])
async def test_a_stream_that_does_not_say_costs_its_price_and_a_token_for_each_event_beyond(
    store: Counted, end: type[Break] | None, num_events: int, cost: int
) -> None:
    steps = await stream(*[b"data: 1\n", b"\n"] * num_events)  # an event's end may come in two pieces
    steps.items.put_nowait(end)
    async with limited(Quotas(tokens_per_day=900), store, answer=steps.answer) as (running, _):
        async with asked(running):
            pass
        assert store.counts == {"tokens a day": cost}


async def test_a_stream_that_says_what_it_used_in_a_comment_costs_that(store: Counted) -> None:
    steps = await stream(b"data: 1\n\n", b": " + used(7, 200) + b"\n\ndata: [DONE]\n\n")
    steps.items.put_nowait(None)
    async with limited(Quotas(tokens_per_day=900), store, answer=steps.answer) as (running, _):
        async with asked(running):
            pass
        assert store.counts == {"tokens a day": 207}


async def test_a_client_that_leaves_in_the_middle_has_used_what_it_asked_for(store: Counted) -> None:
    steps = await stream(b"data: 1\n\n")
    async with limited(Quotas(tokens_per_day=900), store, answer=steps.answer) as (running, _):
        async with running.client.post(PATH, json=BODY, headers=KEY) as response:
            await response.content.readany()
            response.close()
        await running.traffic.drained()
        await running.limiter.settled()
        assert store.counts == {"tokens a day": PRICE}


@pytest.mark.parametrize("answer", [drop, status(503), status(429)])
async def test_a_request_that_no_engine_answers_costs_nothing(store: Counted, answer: Answer) -> None:
    quotas = Quotas(requests_per_day=10, tokens_per_day=900)
    async with limited(quotas, store, answer=answer) as (running, _):
        async with asked(running):
            pass
        assert store.counts == {"requests a day": 0, "tokens a day": 0}


async def test_a_client_that_leaves_while_it_waits_for_a_replica_has_cost_nothing(store: Counted) -> None:
    quotas = Quotas(requests_per_day=10, tokens_per_day=900, concurrent_requests=1)
    async with limited(quotas, store) as (running, engine):
        service = replace(running.fleet.routes.services[CHAT], queue_max_requests=5)
        running.fleet.update(Routes({CHAT: service}, {}))
        asking = asyncio.create_task(running.client.post(PATH, json=BODY, headers=KEY))
        async with asyncio.timeout(60):
            while running.proxy.waiting.census() != {"team/chat": 1}:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0)
        assert store.counts == {"requests a day": 1, "tokens a day": PRICE}
        asking.cancel()
        await running.traffic.drained()
        await running.limiter.settled()
        assert store.counts == {"requests a day": 0, "tokens a day": 0}
        assert engine.bodies == []


async def test_a_client_that_leaves_before_its_answer_begins_has_used_what_it_asked_for(store: Counted) -> None:
    quotas = Quotas(requests_per_day=10, tokens_per_day=900)
    async with limited(quotas, store, answer=Steps().answer) as (running, engine):
        asking = asyncio.create_task(running.client.post(PATH, json=BODY, headers=KEY))
        await engine.busy.wait()
        asking.cancel()
        await running.traffic.drained()
        await running.limiter.settled()
        assert store.counts == {"requests a day": 1, "tokens a day": PRICE}


async def test_an_answer_that_does_not_begin_in_time_has_used_what_was_asked_for(store: Counted) -> None:
    quotas = Quotas(requests_per_day=10, tokens_per_day=900)
    settings = {"first_byte_timeout_seconds": 0.05}
    async with limited(quotas, store, answer=Steps().answer, **settings) as (running, _):
        async with asked(running) as response:
            assert response.status == 504
        assert store.counts == {"requests a day": 1, "tokens a day": PRICE}


async def test_a_request_that_an_engine_refuses_is_a_request_without_tokens(store: Counted) -> None:
    quotas = Quotas(requests_per_day=10, tokens_per_day=900)
    async with limited(quotas, store, answer=status(400)) as (running, _):
        async with asked(running):
            pass
        assert store.counts == {"requests a day": 1, "tokens a day": 0}


async def test_counting_tokens_costs_no_tokens(store: Counted) -> None:
    async with limited(Quotas(tokens_per_day=0), store) as (running, _):
        async with asked(running, path="/tokenize") as response:
            assert response.status == 200
        async with asked(running) as response:
            assert response.status == 429


# --- at once


async def test_no_more_requests_run_at_once_than_may(store: Counted) -> None:
    steps = Steps()
    async with limited(Quotas(concurrent_requests=1), store, answer=steps.answer) as (running, engine):
        first = asyncio.create_task(running.client.post(PATH, json=BODY, headers=KEY))
        await engine.busy.wait()
        async with running.client.post(PATH, json=BODY, headers=KEY) as response:
            assert await code_of(response) == (429, "rate_limited", "1")
        assert running.series("sapwood_gateway_rejected_total")['{reason="rate"}'] == 1
        steps.items.put_nowait(None)
        async with await first as answered:
            await answered.read()
        steps.items.put_nowait(None)
        async with asked(running) as response:
            assert response.status == 200


async def test_a_client_that_leaves_gives_its_place_back(store: Counted) -> None:
    steps = Steps()
    async with limited(Quotas(concurrent_requests=1), store, answer=steps.answer) as (running, engine):
        first = asyncio.create_task(running.client.post(PATH, json=BODY, headers=KEY))
        await engine.busy.wait()
        first.cancel()
        await running.traffic.drained()
        await running.limiter.settled()
        steps.items.put_nowait(None)
        async with asked(running) as response:
            assert response.status == 200


async def test_a_request_that_ends_while_the_store_is_away_holds_its_place_no_longer(
    store: Counted, clock: Clock
) -> None:
    steps = Steps()
    quotas = Quotas(concurrent_requests=1)
    async with limited(quotas, store, answer=steps.answer, wall_clock=clock) as (running, engine):
        first = asyncio.create_task(running.client.post(PATH, json=BODY, headers=KEY))
        await engine.busy.wait()
        await store.wait_for_renewal(running, seats=1)
        store.is_broken = True
        steps.items.put_nowait(None)
        async with await first as answered:
            await answered.read()
        await running.traffic.drained()
        await running.limiter.settled()
        store.is_broken = False
        clock.now += 1.0
        await store.wait_for_renewal(running, seats=0)


# --- a store that does not answer


QUOTAS = Quotas(requests_per_minute=1, concurrent_requests=1)


async def test_while_the_store_is_away_requests_are_let_in_where_it_is_said_so(store: Counted) -> None:
    store.is_broken = True
    async with limited(QUOTAS, store, when_unknown="open") as (running, _):
        for _ in range(3):
            async with asked(running) as response:
                assert response.status == 200
        assert store.num_asked == 1  # the others do not wait for what is known to be away
        assert running.series("sapwood_gateway_quota_store_failures_total") == {"": 1}


async def test_while_the_store_is_away_requests_are_refused_where_it_is_said_so(store: Counted) -> None:
    store.is_broken = True
    async with limited(QUOTAS, store, when_unknown="closed") as (running, engine):
        for _ in range(3):
            async with asked(running) as response:
                assert await code_of(response) == (503, "quota_store_unavailable", "1")
        assert running.series("sapwood_gateway_rejected_total")['{reason="quota"}'] == 3
        assert engine.bodies == []


async def test_who_has_no_quotas_does_not_notice(store: Counted) -> None:
    store.is_broken = True
    async with limited(Quotas(), store, when_unknown="closed") as (running, _), asked(running) as response:
        assert response.status == 200


async def test_it_is_told_once_that_the_store_is_away_and_once_that_it_is_back(
    store: Counted, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sapwood_gateway.shell.limiter")

    def told() -> list[str]:
        return [each.message for each in caplog.records if "store" in each.message]

    async with limited(QUOTAS, store, wall_clock=clock) as (running, _):
        store.is_broken = True
        for _ in range(3):
            async with asked(running):
                pass
            clock.now += 1.0
        assert len(told()) == 1
        store.is_broken = False
        for code in (200, 429):
            async with asked(running) as response:
                assert response.status == code
        assert len(told()) == 2
        assert not [each for each in caplog.records if "acme" in each.getMessage()]


@pytest.mark.parametrize(("policy", "code"), [("open", 200), ("closed", 503)])
async def test_a_store_that_answers_rubbish_is_as_one_that_is_away(policy: str, code: int) -> None:
    async with false_redis(b":abc\r\n") as url:
        store = SharedQuotaStore(url)
        async with limited(QUOTAS, store, when_unknown=policy) as (running, _):
            keeping = asyncio.create_task(running.limiter.run())
            for _ in range(3):
                async with asked(running) as response:
                    assert response.status == code
            assert running.series("sapwood_gateway_quota_store_failures_total")[""] > 0
            assert not keeping.done()  # what renews seats is the whole gateway's
            keeping.cancel()
        await store.close()
