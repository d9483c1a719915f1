"""What is asked of engines beside the turns: what comes of it is known, and it ends whatever engines answer."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from support_gateway import serving

from sapwood_contract.http import (
    ADMIN_HOT_PREFIXES,
    ADMIN_LOAD,
    ADMIN_PREFIXES,
    ADMIN_WARM,
    CachedNode,
    CachedNodes,
    EngineLoad,
    HotPrefix,
    HotPrefixes,
    LoadSnapshot,
    WarmProgress,
)
from sapwood_operator.adapters.asking import client_session
from sapwood_operator.adapters.engine_admin import Address, EngineAdmin
from sapwood_operator.adapters.engine_calls import EngineCalls
from sapwood_operator.adapters.service_engines import ServiceEngines
from sapwood_operator.autoscaling.engines import (
    CacheSeen,
    Engine,
    EngineCall,
    EngineSeen,
    HandOver,
    LoadSeen,
    LookAtCaches,
    LookAtLoad,
    Unanswered,
    Warm,
)
from sapwood_operator.autoscaling.movement import Lost
from sapwood_operator.autoscaling.victims import Cache

A, B = Engine("chat-a", "ua"), Engine("chat-b", "ub")
NOW = 1_000.0
DEADLINE_SECONDS = 60.0
SNAPSHOT = LoadSnapshot(
    num_running=2,
    num_waiting=1,
    num_waiting_tokens=30,
    kv_page_tokens=4,
    kv_active_tokens=10,
    kv_protected_tokens=5,
    kv_evictable_tokens=80,
    kv_free_tokens=100,
)
LOAD = EngineLoad("m", "ready", SNAPSHOT, "r1")
CACHE = CachedNodes("r1", 4, (CachedNode(base64.b64encode(array("Q", [1, 2]).tobytes()).decode(), 8, 6.0),), True)
SECRET_TOKENS = (987_651, 987_652, 987_653, 987_654)
PREFIX = HotPrefix(SECRET_TOKENS, 50.0, ((4, 12.5),), tenant="tenant-of-nobody")
HOT = HotPrefixes("r1", (PREFIX,))
TAKEN = WarmProgress("ready", 1, 0, 0)
BROKEN = web.Response(status=500)
GARBAGE = web.Response(text='{"load": "no", "nodes": 3, "prefixes": [{"token_ids": [987651]}]}')


@dataclass
class StandIn:
    """An engine's admin API that answers what it is given: a payload of the contract, or any response."""

    load: object = LOAD
    cache: object = CACHE
    hot: object = HOT
    warm: object = TAKEN
    given: list[Any] = field(default_factory=list)
    """Bodies of calls of ``/admin/warm``."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers come once it is set."""

    def __post_init__(self) -> None:
        self.gate.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with serving(app) as url:
            yield url

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        self.headers.append(request.headers)
        await self.gate.wait()
        if request.path == ADMIN_WARM:
            self.given.append(await request.json())
        paths = {ADMIN_LOAD: self.load, ADMIN_PREFIXES: self.cache, ADMIN_HOT_PREFIXES: self.hot, ADMIN_WARM: self.warm}
        answer = paths[request.path]
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, body=answer.body)
        assert dataclasses.is_dataclass(answer)
        assert not isinstance(answer, type)
        return web.json_response(dataclasses.asdict(answer))


class Stand:
    """Engines, and who carries out what is asked of them."""

    def __init__(self, admin: EngineAdmin, addresses: Mapping[str, Address]) -> None:
        self.admin = admin
        self.addresses = addresses
        self.woken: asyncio.Queue[str] = asyncio.Queue()
        self.lost: list[tuple[str, str, float]] = []
        self.calls = EngineCalls(
            admin,
            wake=lambda namespace, name: self.woken.put_nowait(f"{namespace}/{name}"),
            lose=lambda *lost: self.lost.append(lost),
            clock=lambda: NOW,
        )

    def carry_out(self, *calls: EngineCall, lost: tuple[Lost, ...] = ()) -> None:
        self.calls.carry_out("team", "chat", calls, lost, self.addresses)

    async def until_woken(self) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await self.woken.get() == "team/chat"

    def known(self, engine: Engine) -> EngineSeen:
        return self.calls.known("team", "chat").get(engine.uid, EngineSeen())


@asynccontextmanager
async def stand(**engines: StandIn) -> AsyncIterator[Stand]:
    """Serve ``engines``, by the uids of their pods."""
    async with AsyncExitStack() as stack:
        addresses = {
            uid: Address(await stack.enter_async_context(engine.serving()), {"X-Some": "credential"})
            for uid, engine in engines.items()
        }
        world = Stand(EngineAdmin(await stack.enter_async_context(client_session())), addresses)
        stack.push_async_callback(world.calls.finish)
        yield world


SEEN = LoadSeen(at=NOW, state="ready", num_requests=3, work_tokens=45.0)


async def test_an_engine_says_what_it_has_to_do() -> None:
    engine = StandIn()
    async with stand(ua=engine) as world:
        world.carry_out(LookAtLoad((A,)))
        await world.until_woken()
        assert world.known(A) == EngineSeen(load=SEEN)
        assert engine.headers[0]["X-Some"] == "credential"


async def test_an_engine_says_what_it_holds() -> None:
    async with stand(ua=StandIn()) as world:
        world.carry_out(LookAtCaches((A,)))
        await world.until_woken()
        cache = Cache(("r1", 4), ((array("Q", [1, 2]), 6.0),))
        assert world.known(A) == EngineSeen(load=SEEN, cache=CacheSeen(NOW, cache))


async def test_nobody_is_woken_for_what_is_known_already() -> None:
    engine = StandIn()
    async with stand(ua=engine) as world:
        world.carry_out(LookAtLoad((A,)))
        await world.until_woken()
        world.carry_out(LookAtLoad((A,)))
        world.carry_out(LookAtCaches((A,)))
        await world.until_woken()
        assert world.woken.empty()


async def test_the_same_call_while_it_is_under_way_does_nothing() -> None:
    engine = StandIn()
    engine.gate.clear()
    async with stand(ua=engine) as world:
        for _ in range(3):
            world.carry_out(LookAtLoad((A,)))
            await asyncio.sleep(0)
        engine.gate.set()
        await world.until_woken()
        assert engine.asked == [ADMIN_LOAD]


NOT_UNDERSTOOD = "it answers with something that is not understood: is it a Sapwood engine of this version?"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(BROKEN, "it answers 500 Internal Server Error", id="an error"),
        pytest.param(GARBAGE, NOT_UNDERSTOOD, id="something else"),
        pytest.param(web.Response(text="[" * 100_000), NOT_UNDERSTOOD, id="depth"),
        pytest.param(web.Response(status=302), "it answers 302 Found", id="a way elsewhere"),
    ],
)
async def test_what_makes_no_sense_is_no_answer(answer: web.Response, why: str) -> None:
    async with stand(ua=StandIn(load=answer, cache=answer)) as world:
        world.carry_out(LookAtCaches((A,)))
        await world.until_woken()
        assert world.known(A) == EngineSeen(load=Unanswered(NOW, why), cache=Unanswered(NOW, why))


async def test_blocks_that_are_none_are_no_answer() -> None:
    strange = CachedNodes("r1", 4, (CachedNode("AAAA", 4, 1.0),), True)
    async with stand(ua=StandIn(cache=strange)) as world:
        world.carry_out(LookAtCaches((A,)))
        await world.until_woken()
        found = world.known(A).cache
        assert isinstance(found, Unanswered)
        assert "3 bytes" in found.why


async def test_a_pod_without_an_address_does_not_answer_and_one_that_is_gone_is_forgotten() -> None:
    async with stand(ua=StandIn()) as world:
        world.carry_out(LookAtLoad((A, B)))
        await world.until_woken()
        assert world.known(B) == EngineSeen()
        world.addresses = {}
        world.carry_out()
        assert world.calls.known("team", "chat") == {}


async def test_a_victims_prefixes_go_to_those_that_stay() -> None:
    taker = StandIn()
    async with stand(ua=StandIn(), ub=taker) as world:
        world.carry_out(HandOver(A, 5.0, (B,)))
        await world.until_woken()
        assert world.known(A).handed_over == 5.0
        (given,) = taker.given
        assert given == {
            "model_revision": "r1",
            "prefixes": [dataclasses.asdict(PREFIX) | {"token_ids": [*SECRET_TOKENS], "parts": [[4, 12.5]]}],
            "is_last": True,
        }


@pytest.mark.parametrize(
    ("giver", "taker"),
    [
        pytest.param(StandIn(hot=BROKEN), StandIn(), id="the victim fails"),
        pytest.param(StandIn(hot=GARBAGE), StandIn(), id="the victim says something else"),
        pytest.param(StandIn(hot=HotPrefixes("r1", (HotPrefix((-1,), 1.0),))), StandIn(), id="the victim's are none"),
        pytest.param(
            StandIn(hot=HotPrefixes("r1", (HotPrefix((1,), 1.0, ((0, 1.0),)),))), StandIn(), id="parts of it are none"
        ),
        pytest.param(StandIn(), StandIn(load=BROKEN), id="the survivor does not answer"),
        pytest.param(StandIn(), StandIn(warm=web.Response(status=409)), id="the survivor refuses them"),
        pytest.param(StandIn(hot=HotPrefixes("r2", (PREFIX,))), StandIn(), id="they are of another revision"),
        pytest.param(StandIn(), StandIn(load=EngineLoad("m", "loading", LoadSnapshot())), id="the survivor loads"),
    ],
)
async def test_a_hand_over_that_fails_is_over_too(giver: StandIn, taker: StandIn) -> None:
    async with stand(ua=giver, ub=taker) as world:
        world.carry_out(HandOver(A, 5.0, (B,)))
        await world.until_woken()
        assert world.known(A).handed_over == 5.0


async def test_a_new_engine_gets_the_prefixes_of_those_that_serve() -> None:
    newcomer = StandIn(load=dataclasses.replace(LOAD, state="warming"))
    async with stand(ua=newcomer, ub=StandIn()) as world:
        world.carry_out(Warm(A, (B,)))
        await world.until_woken()
        assert world.known(A).warmed
        assert [len(body["prefixes"]) for body in newcomer.given] == [1]


async def test_a_new_engine_is_told_that_there_is_nothing_where_nobody_says_anything() -> None:
    newcomer = StandIn(load=dataclasses.replace(LOAD, state="warming"))
    async with stand(ua=newcomer, ub=StandIn(hot=BROKEN)) as world:
        world.carry_out(Warm(A, (B,)))
        await world.until_woken()
        assert newcomer.given == [{"model_revision": "r1", "prefixes": [], "is_last": True}]


async def test_a_new_engine_that_refuses_is_not_taken_for_warm() -> None:
    newcomer = StandIn(load=dataclasses.replace(LOAD, state="warming"), warm=BROKEN)
    async with stand(ua=newcomer) as world:
        service = ServiceEngines("team", "chat", world.admin, asyncio.Semaphore(), lambda: NOW)
        service.know(world.addresses)
        assert not await service.warm(Warm(A, ()))
        assert len(newcomer.given) == 1
        assert not service.seen["ua"].warmed


async def test_what_left_with_a_replica_is_counted_once() -> None:
    async with stand(ua=StandIn()) as world:
        for tokens in (12.0, 12.0, 9.0):
            world.carry_out(lost=(Lost("ua", tokens),))
        assert world.lost == [("team", "chat", 12.0)]
        world.calls.forget("team", "chat")
        assert world.calls.known("team", "chat") == {}


async def test_no_token_and_no_tenant_gets_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusing = StandIn(warm=web.Response(status=400, text=str(SECRET_TOKENS)))
    async with stand(ua=StandIn(), ub=refusing) as world:
        world.carry_out(HandOver(A, 5.0, (B,)), Warm(B, (A,)))
        await world.until_woken()
    told = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "prefixes were not taken" in told
    assert "98765" not in told
    assert "tenant-of-nobody" not in told
