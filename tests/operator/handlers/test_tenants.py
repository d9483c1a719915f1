"""Turns of a namespace's Tenants against an API server on a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration
from support_gateway import serving
from support_operator import NOW

from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.handlers.store import Store, TenantsKey
from sapwood_operator.handlers.tenants import TenantStatuses
from sapwood_operator.handlers.workers import Converged, NothingThere, TryAgain

TEAM = TenantsKey("team")


def a_tenant(name: str, sha256: str, *, version: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"namespace": "team", "name": name, "uid": name, "generation": 1, "resourceVersion": str(version)},
        "spec": {"apiKeys": [{"name": "key", "sha256": sha256}]},
    }


@dataclass
class FakeServer:
    """Takes every status, but of the tenant that it fails for."""

    store: Store
    fails_for: str = ""
    reasons: list[tuple[str, str]] = field(default_factory=list)
    """Of the condition Ready, in the order of the writes."""
    generation: int = 1

    async def handle(self, request: web.Request) -> web.Response:
        *_, plural, name, _status = request.path.split("/")
        assert (request.method, plural) == ("PATCH", "tenants")
        body = json.loads(await request.read())
        if name == self.fails_for:
            return web.json_response({"kind": "Status", "reason": "InternalError", "message": "oops"}, status=500)
        self.reasons.append((name, body["status"]["conditions"][0]["reason"]))
        (known,) = (t for t in self.store.tenants(TEAM) if t["metadata"]["name"] == name)
        about = {"resourceVersion": str(100 + len(self.reasons)), "generation": self.generation}
        return web.json_response({**known, **body, "metadata": {**known["metadata"], **about}})


@asynccontextmanager
async def keeping(server: FakeServer) -> AsyncIterator[TenantStatuses]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with serving(app) as url:
        configuration = Configuration()
        configuration.host = url
        with ThreadPoolExecutor(1) as threads, Access(configuration).client(connections=1) as client:
            cluster = Cluster(client, request_timeout_seconds=10.0, on_write=lambda _kind, _verb: None)
            yield TenantStatuses(server.store, cluster, threads=threads, now=lambda: NOW)


def a_store(*tenants: dict[str, Any]) -> Store:
    store = Store()
    for tenant in tenants:
        assert store.put(tenant) == {TEAM}
    return store


async def test_a_status_is_written_once_and_an_answer_is_known_before_the_watch_tells_it() -> None:
    server = FakeServer(a_store(a_tenant("a", "1" * 64), a_tenant("b", "2" * 64)))
    async with keeping(server) as statuses:
        assert await statuses.reconcile(TEAM) == Converged()
        assert await statuses.reconcile(TEAM) == Converged()
    assert server.reasons == [("a", "Ready"), ("b", "Ready")]


async def test_a_key_that_a_second_tenant_brings_changes_what_is_said_of_the_first_and_heals() -> None:
    store = a_store(a_tenant("a", "1" * 64))
    server = FakeServer(store)
    async with keeping(server) as statuses:
        await statuses.reconcile(TEAM)
        store.put(a_tenant("b", "1" * 64, version=50))
        await statuses.reconcile(TEAM)
        assert server.reasons[1:] == [("a", "KeyConflict"), ("b", "KeyConflict")]
        store.remove(a_tenant("b", "1" * 64, version=200))
        await statuses.reconcile(TEAM)
    assert server.reasons[3:] == [("a", "Ready")]


async def test_a_failed_write_is_tried_again_and_holds_up_no_other_tenant() -> None:
    server = FakeServer(a_store(a_tenant("a", "1" * 64), a_tenant("b", "2" * 64)), fails_for="a")
    async with keeping(server) as statuses:
        assert await statuses.reconcile(TEAM) == TryAgain("InternalError", "oops")
        assert server.reasons == [("b", "Ready")]
        server.fails_for = ""
        assert await statuses.reconcile(TEAM) == Converged()
    assert server.reasons == [("b", "Ready"), ("a", "Ready")]


async def test_a_tenant_that_was_edited_meanwhile_is_looked_at_again() -> None:
    server = FakeServer(a_store(a_tenant("a", "1" * 64)), generation=2)
    async with keeping(server) as statuses:
        assert await statuses.reconcile(TEAM) == Converged(again_after_seconds=0.0)


async def test_a_namespace_without_tenants_has_no_more_turns() -> None:
    async with keeping(FakeServer(Store())) as statuses:
        assert await statuses.reconcile(TEAM) == NothingThere()
