"""The watches over a real socket: what a server says reaches the receiver, and what breaks them does not end them."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration
from support_gateway import serving

from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.kinds import PODS, SERVICES
from sapwood_operator.handlers.watches import Relisted, Seen, Watches, WatchEvent

PATIENCE_SECONDS = 30.0
TOO_OLD = b'{"type":"ERROR","object":{"code":410}}\n'
DEEP = '{"a":' * 5000 + "1" + "}" * 5000


def a_service(name: str, version: int, more: str = "0") -> str:
    about = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
    return f'{{"metadata":{json.dumps(about)},"spec":{more}}}'


def an_event(live: str) -> bytes:
    return f'{{"type":"ADDED","object":{live}}}\n'.encode()


@dataclass
class FakeServer:
    """Lists ``services`` and no pods; the n-th watch of services says the n-th of ``said``."""

    services: list[str] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)
    num_lists: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/api":
                return web.json_response({"versions": ["v1"]})
            case "/apis":
                version = {"version": "v1alpha1"}
                group = {"name": "serving.sapwood.dev", "preferredVersion": version, "versions": [version]}
                return web.json_response({"groups": [group]})
            case SERVICES.group_path:
                return served((SERVICES.plural, SERVICES.kind))
            case PODS.group_path:
                return served((PODS.plural, PODS.kind), ("namespaces", "Namespace"))
        is_of_services = request.path.endswith(SERVICES.plural)
        if "watch" in request.query:
            return await self._watch(request, self.said.pop(0) if is_of_services and self.said else b"")
        self.num_lists += is_of_services
        items = ",".join(self.services) if is_of_services else ""
        return json_text(f'{{"metadata":{{"resourceVersion":"1"}},"items":[{items}]}}')

    @staticmethod
    async def _watch(request: web.Request, said: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(said)
        await asyncio.Event().wait()
        return response


def json_text(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")


def served(*names: tuple[str, str]) -> web.Response:
    verbs = ["list", "watch"]
    about = [{"name": n, "kind": k, "singularName": "", "namespaced": True, "verbs": verbs} for n, k in names]
    return web.json_response({"resources": about})


@asynccontextmanager
async def watching(server: FakeServer, **options: Any) -> AsyncIterator[tuple[Watches, queue.Queue[WatchEvent]]]:
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    told: queue.Queue[WatchEvent] = queue.Queue()
    async with serving(app) as url:
        configuration = Configuration()
        configuration.host = url
        access = Access(configuration)
        watches = Watches(
            access, (SERVICES, PODS), namespaces=(), request_timeout_seconds=5.0, deliver=told.put, **options
        )
        watches.start()
        try:
            yield watches, told
        finally:
            await asyncio.to_thread(watches.stop)


async def next_of(told: queue.Queue[WatchEvent]) -> WatchEvent:
    return await asyncio.to_thread(told.get, timeout=PATIENCE_SECONDS)


async def next_seen(told: queue.Queue[WatchEvent]) -> str:
    """The name of the next object that is there."""
    while not isinstance(event := await next_of(told), Seen):
        pass
    return str(event.live["metadata"]["name"])


async def test_an_object_that_is_nested_too_deeply_hides_no_other_one_of_a_list_or_of_a_watch() -> None:
    server = FakeServer(
        services=[a_service("a", 1, DEEP), a_service("b", 1)],
        said=[an_event(a_service("c", 2, DEEP)) + an_event(a_service("d", 3))],
    )
    async with watching(server) as (_, told):
        seen = [await next_seen(told) for _ in range(4)]
    assert sorted(seen) == ["a", "b", "c", "d"]


async def test_every_list_is_told_also_one_that_finds_nothing_any_more() -> None:
    server = FakeServer(services=[a_service("a", 1)], said=[TOO_OLD])
    async with watching(server) as (_, told):
        while (event := await next_of(told)) != Relisted(SERVICES):
            assert event == Relisted(PODS)
        server.services = []
        while (event := await next_of(told)) != Relisted(SERVICES):
            assert event == Relisted(PODS) or isinstance(event, Seen)
        assert server.num_lists == 2


async def test_watches_that_broke_begin_anew_although_kopf_does_not_come_to_an_end() -> None:
    """kopf takes an error that a watch tells for fatal, and ends at the earliest after five seconds, if at all."""
    server = FakeServer(services=[a_service("a", 1)], said=[b'{"type":"ERROR","object":{"code":500}}\n'])
    async with watching(server, stop_seconds=0.1) as (watches, told):
        await next_seen(told)
        server.services = [a_service("b", 2)]
        assert await next_seen(told) == "b"
        assert server.num_lists == 2
        assert watches.is_watching()


async def test_watches_that_ended_are_not_watching() -> None:
    async with watching(FakeServer(services=[a_service("a", 1)])) as (watches, told):
        await next_of(told)
        await asyncio.to_thread(watches.stop)
        assert not watches.is_watching()
