"""The load of replicas as the gateway asks for it, over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from support_gateway import nobody, serving

from sapwood_contract.http import EngineLoad, LoadSnapshot
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet, Lease
from sapwood_gateway.core.routes import Replica, ServiceKey
from sapwood_gateway.shell.credentials import Shown
from sapwood_gateway.shell.discovery.listed import ListedDiscovery
from sapwood_gateway.shell.load import Heard, LoadPoller, Silent, Unreachable
from sapwood_gateway.shell.serve import report_of
from sapwood_gateway.shell.upstream import new_session

READY = EngineLoad("m", "ready", LoadSnapshot(num_running=3, num_waiting=2, num_waiting_tokens=900))


def replica(url: str, id_: str = "a") -> Replica:
    return Replica(id=id_, name=id_, url=url, admin_url=url)


def admin(body: bytes) -> web.Application:
    async def load(_: web.Request) -> web.Response:
        return web.Response(body=body)

    return admin_app(load)


def admin_app(load: Handler) -> web.Application:
    app = web.Application()
    app.router.add_get("/admin/load", load)
    return app


def as_json(load: EngineLoad, **more: object) -> bytes:
    return json.dumps({**dataclasses.asdict(load), **more}).encode()


def nothing(_: str) -> dict[str, str]:
    return {}


async def polled(*replicas: Replica, shown: Shown = nothing) -> dict[str, Heard]:
    heard: dict[str, Heard] = {}
    async with new_session(1.0) as session:
        poller = LoadPoller(
            session,
            targets=lambda: replicas,
            heard=lambda replica, said: heard.update({replica.id: said}),
            shown=shown,
            interval_seconds=1.0,
        )
        await poller.poll()
    return heard


async def test_what_an_engine_says_is_heard() -> None:
    async with serving(admin(as_json(READY))) as url:
        assert await polled(replica(url)) == {"a": READY}


async def test_replicas_that_are_said_to_be_at_one_address_are_each_asked_with_what_they_are_to_be_shown() -> None:
    async def load(request: web.Request) -> web.Response:
        is_known = request.headers.get("X-Who") == "gateway of chat/u"
        return web.Response(body=as_json(READY)) if is_known else web.Response(status=401)

    async with serving(admin_app(load)) as url:
        asked = [replica(url, "chat/u"), replica(url, "evil/u")]
        heard = await polled(*asked, shown=lambda id_: {"X-Who": f"gateway of {id_}"})
    assert heard == {"chat/u": READY, "evil/u": Silent()}


async def test_a_newer_engine_may_say_more() -> None:
    async with serving(admin(as_json(READY, adapters=["x"]))) as url:
        assert await polled(replica(url)) == {"a": READY}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b'{"model":"m"}', b'{"model":"m","state":"asleep","load":{}}', b'{"model":"\xff"}'),
        b'{"x":' + b"[" * 100_000,
        as_json(READY) + b" " * 2**20,
    ],
    ids=["empty", "html", "cut", "state", "bytes", "deep", "large"],
)
async def test_what_no_engine_would_say_changes_nothing_for_it_and_the_others(body: bytes) -> None:
    async with serving(admin(body)) as url, serving(admin(as_json(READY))) as other:
        assert await polled(replica(url), replica(other, "b")) == {"a": Silent(), "b": READY}


async def test_an_answer_without_an_end_is_not_read_to_its_end() -> None:
    ended = asyncio.Event()

    async def load(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 2**16)
        finally:
            ended.set()

    async with serving(admin_app(load)) as url:
        assert await polled(replica(url)) == {"a": Silent()}
        await ended.wait()


async def test_an_engine_cannot_send_the_gateway_elsewhere() -> None:
    async with serving(admin(as_json(READY))) as elsewhere:

        async def load(_: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(elsewhere + "/admin/load")

        async with serving(admin_app(load)) as url:
            assert await polled(replica(url)) == {"a": Silent()}


async def test_one_that_is_away_does_not_keep_the_others_from_being_heard() -> None:
    async with serving(admin(as_json(READY))) as url:
        assert await polled(nobody(), replica(url)) == {"nobody": Unreachable(), "a": READY}


async def test_polling_goes_on_until_it_is_cancelled() -> None:
    rounds: asyncio.Queue[Heard] = asyncio.Queue()
    async with serving(admin(as_json(READY))) as url, new_session(1.0) as session:
        poller = LoadPoller(
            session,
            targets=lambda: [replica(url)],
            heard=lambda _, said: rounds.put_nowait(said),
            shown=nothing,
            interval_seconds=0.0,
        )
        polling = asyncio.create_task(poller.run())
        assert [await rounds.get() for _ in range(3)] == [READY] * 3
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling


def test_a_report_counts_running_and_waiting_and_remembers_our_own() -> None:
    report = report_of(READY, num_own=4)
    assert (report.state, report.num_requests, report.num_waiting_tokens, report.num_own) == ("ready", 5, 900, 4)


# --- engines that are listed by address

A, B = replica("http://a", "a"), replica("http://b", "b")
M = ServiceKey("static", "m")


def listed() -> tuple[ListedDiscovery, Fleet]:
    fleet = Fleet(circuit=CircuitSettings())
    return ListedDiscovery(fleet, [A, B], policy="LeastLoad"), fleet


def ready_ones(fleet: Fleet) -> list[str]:
    return [each.id for each in fleet.routes.of(M) if each.is_ready]


def test_discovery_is_ready_once_every_engine_was_asked() -> None:
    discovery, _ = listed()
    discovery.heard(A, READY)
    assert not discovery.is_ready
    discovery.heard(B, Unreachable())
    assert discovery.is_ready


def test_an_engine_is_used_while_it_says_that_it_is_ready() -> None:
    discovery, fleet = listed()
    discovery.heard(A, dataclasses.replace(READY, state="loading"))
    discovery.heard(B, READY)
    assert ready_ones(fleet) == ["b"]
    discovery.heard(A, READY)
    assert ready_ones(fleet) == ["a", "b"]
    discovery.heard(A, dataclasses.replace(READY, state="draining"))
    assert ready_ones(fleet) == ["b"]


@pytest.mark.parametrize(("first", "starts_slowly"), [(READY, False), (Unreachable(), True)])
def test_an_engine_starts_slowly_that_gets_ready_after_all_have_been_asked(first: Heard, starts_slowly: bool) -> None:
    discovery, fleet = listed()
    discovery.heard(A, READY)
    discovery.heard(B, first)
    discovery.heard(B, READY)
    leases = [fleet.begin(M, "m", tried=(), now=0.0) for _ in range(40)]
    num_on_b = sum(isinstance(lease, Lease) and lease.replica.id == "b" for lease in leases)
    assert (num_on_b < 10) == starts_slowly


def test_an_engine_that_went_away_is_not_used_and_its_model_stays_known() -> None:
    discovery, fleet = listed()
    discovery.heard(A, READY)
    discovery.heard(A, Unreachable())
    assert ready_ones(fleet) == []
    assert M in fleet.routes.services


def test_an_engine_that_is_slow_to_answer_stays_in_use() -> None:
    discovery, fleet = listed()
    discovery.heard(A, READY)
    discovery.heard(A, Silent())
    assert ready_ones(fleet) == ["a"]


def test_an_engine_that_comes_back_with_another_model_changes_service() -> None:
    discovery, fleet = listed()
    discovery.heard(A, READY)
    discovery.heard(A, dataclasses.replace(READY, model="n"))
    assert set(fleet.routes.services) == {ServiceKey("static", "n")}
