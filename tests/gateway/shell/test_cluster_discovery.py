"""Routes from a cluster's API through the official client, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes import client
from support_cluster_api import DEEP, FakeClusterApi, Json, cluster_api, started

from sapwood_contract.routing import ServiceRoute, to_json
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.routes import Routes, ServiceKey
from sapwood_gateway.core.tenant_secrets import KnownSecrets
from sapwood_gateway.shell.discovery.cluster import ClusterDiscovery
from sapwood_gateway.shell.discovery.cluster_api import ClusterApi
from sapwood_gateway.shell.tenant_sources import TakeTenants

CHAT = ServiceKey("team", "chat")


class WatchedFleet(Fleet):
    """A fleet whose changes can be waited for."""

    def __init__(self) -> None:
        super().__init__(circuit=CircuitSettings())
        self._updated = asyncio.Condition()

    def update(self, routes: Routes, *, are_all_old: bool = False) -> None:
        super().update(routes, are_all_old=are_all_old)
        self._waking = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._updated:
            self._updated.notify_all()

    async def until(self, holds: Callable[[Routes], bool]) -> None:
        async with asyncio.timeout(60), self._updated:
            await self._updated.wait_for(lambda: holds(self.routes))


def config_map(namespace: str = "team", *, model: str = "m", label: str = "true") -> Json:
    route = ServiceRoute(namespace=namespace, service="chat", models=(model,), engine_service="chat-engine")
    labels = {"serving.sapwood.dev/routing": label}
    return {
        "metadata": {"namespace": namespace, "name": "chat-routing", "labels": labels},
        "data": {"service.json": to_json(route)},
    }


def endpoint_slice(*pods: str, namespace: str = "team", ready: bool = True, terminating: bool = False) -> Json:
    labels = {"kubernetes.io/service-name": "chat-engine", "app.kubernetes.io/component": "engine"}
    return {
        "metadata": {"namespace": namespace, "name": "chat-engine-x", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [f"10.0.0.{number}"],
                "conditions": {"ready": ready, "terminating": terminating},
                "targetRef": {"name": pod, "uid": f"uid-{pod}"},
            }
            for number, pod in enumerate(pods, start=1)
        ],
    }


@asynccontextmanager
async def discovering(
    api: FakeClusterApi, namespaces: Sequence[str] = (), *, take_tenants: TakeTenants = lambda *_: None
) -> AsyncIterator[tuple[WatchedFleet, ClusterDiscovery, list[None]]]:
    fleet = WatchedFleet()
    failures: list[None] = []
    with client.ApiClient(client.Configuration(host=api.url)) as api_client:
        discovery = ClusterDiscovery(
            fleet,
            ClusterApi(api_client),
            namespaces=namespaces,
            take_tenants=take_tenants,
            failed=lambda: failures.append(None),
            died=lambda name, error: pytest.fail(f"{name}: {error!r}"),
            draw=lambda: 0.01,
        )
        async with started(discovery):
            yield fleet, discovery, failures


@pytest.fixture
async def api() -> AsyncIterator[FakeClusterApi]:
    async with cluster_api() as fake:
        await fake.put("configmaps", config_map())
        await fake.put("endpointslices", endpoint_slice("p1"))
        yield fake


def tenant(name: str, namespace: str = "team") -> Json:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {}}


def names(routes: Routes) -> list[str]:
    return [replica.name for replica in routes.of(CHAT) if replica.is_ready and not replica.is_terminating]


async def test_what_there_is_is_found_and_what_changes_is_followed(api: FakeClusterApi) -> None:
    async with discovering(api) as (fleet, discovery, failures):
        await fleet.until(lambda routes: names(routes) == ["p1"])
        assert discovery.is_ready
        await api.put("endpointslices", endpoint_slice("p1", "p2"))
        await fleet.until(lambda routes: names(routes) == ["p1", "p2"])
        await api.put("endpointslices", endpoint_slice("p1", "p2", ready=False, terminating=True))
        await fleet.until(lambda routes: names(routes) == [])
        await api.put("configmaps", config_map(model="n"))
        await fleet.until(lambda routes: routes.services[CHAT].models == ("n",))
        await api.delete("configmaps", config_map())
        await fleet.until(lambda routes: not routes.services)
        assert failures == []


async def test_nothing_is_ready_before_everything_is_listed(api: FakeClusterApi) -> None:
    api.refusals += [403, 500, 429]
    async with discovering(api) as (fleet, discovery, failures):
        assert not discovery.is_ready
        await fleet.until(lambda routes: names(routes) == ["p1"])
        assert discovery.is_ready
        assert len(failures) == 3


async def test_what_happens_while_a_watch_is_broken_is_caught_up_with(api: FakeClusterApi) -> None:
    async with discovering(api) as (fleet, _, _failures):
        await fleet.until(lambda routes: names(routes) == ["p1"])
        await api.watching.wait()
        lists = len(api.requests)
        await api.break_watches()
        await api.put("endpointslices", endpoint_slice("p9"))
        await fleet.until(lambda routes: names(routes) == ["p9"])
        assert len(api.requests) - lists <= 4  # watches alone


async def test_a_forgotten_version_makes_it_list_again_and_drop_what_went_meanwhile(api: FakeClusterApi) -> None:
    async with discovering(api) as (fleet, _, _failures):
        await fleet.until(lambda routes: names(routes) == ["p1"])
        await api.watching.wait()
        await api.break_watches(forget=True)
        api.objects.pop(("endpointslices", "team", "chat-engine-x"))
        await fleet.until(lambda routes: names(routes) == [])
        await api.put("endpointslices", endpoint_slice("p3"))
        await fleet.until(lambda routes: names(routes) == ["p3"])


async def test_only_the_named_namespaces_are_asked_for(api: FakeClusterApi) -> None:
    await api.put("configmaps", config_map("lab"))
    await api.put("configmaps", config_map("other"))
    async with discovering(api, ["team", "lab"]) as (fleet, _, _failures):
        await fleet.until(lambda routes: len(routes.services) == 2)
        assert {key.namespace for key in fleet.routes.services} == {"team", "lab"}
        assert {path.split("/namespaces/")[1].split("/")[0] for path in api.requests} == {"team", "lab"}


async def test_objects_without_the_labels_are_not_asked_for(api: FakeClusterApi) -> None:
    await api.put("configmaps", config_map("lab", label="false"))
    async with discovering(api) as (fleet, _, _failures):
        await fleet.until(lambda routes: bool(routes.services))
        assert set(fleet.routes.services) == {CHAT}


@pytest.mark.parametrize("is_there_first", [True, False], ids=["listed", "watched"])
async def test_an_object_of_thousands_of_levels_does_not_keep_the_others_from_changing(
    api: FakeClusterApi, is_there_first: bool
) -> None:
    deep = config_map("intruder")
    deep["metadata"]["managedFields"] = [{"fieldsV1": DEEP}]
    if is_there_first:
        await api.put("configmaps", deep)
    async with discovering(api) as (fleet, _, failures):
        await fleet.until(lambda routes: names(routes) == ["p1"])
        await api.put("configmaps", deep)
        await api.put("endpointslices", endpoint_slice("p1", "p2"))
        await fleet.until(lambda routes: names(routes) == ["p1", "p2"])
        await api.put("configmaps", config_map(model="n"))
        await fleet.until(lambda routes: routes.services[CHAT].models == ("n",))
    assert failures == []


async def test_one_config_map_that_cannot_be_read_does_not_keep_the_others_from_changing(api: FakeClusterApi) -> None:
    async with discovering(api) as (fleet, _, _):
        await fleet.until(lambda routes: names(routes) == ["p1"])
        deep = config_map("intruder")
        deep["data"]["service.json"] = "[" * 100_000
        await api.put("configmaps", deep)
        await api.put("endpointslices", endpoint_slice("p1", "p2"))
        await fleet.until(lambda routes: names(routes) == ["p1", "p2"])


@dataclass
class Tenants:
    """The names of the tenants that were told last; they can be waited for."""

    names: list[str] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, documents: Sequence[Mapping[str, Any]], _: KnownSecrets) -> None:
        self.names = [each["metadata"]["name"] for each in documents]
        self.told.set()

    async def until(self, names: list[str]) -> None:
        async with asyncio.timeout(60):
            while self.names != names:
                self.told.clear()
                await self.told.wait()


async def test_tenants_of_the_namespaces_that_are_looked_at_are_told_whenever_they_change(api: FakeClusterApi) -> None:
    api.missing_kinds.clear()
    await api.put("tenants", tenant("alpha"))
    await api.put("tenants", tenant("far", namespace="other"))
    told = Tenants()
    async with discovering(api, ["team"], take_tenants=told.take) as (_, _discovery, failures):
        await told.until(["alpha"])
        await api.put("tenants", tenant("beta"))
        await told.until(["alpha", "beta"])
        await api.delete("tenants", tenant("alpha"))
        await told.until(["beta"])
        assert failures == []


async def test_a_cluster_without_the_kind_of_tenants_has_none_and_is_as_ready_as_another(api: FakeClusterApi) -> None:
    told = Tenants(["to be replaced"])
    async with discovering(api, take_tenants=told.take) as (fleet, discovery, failures):
        await fleet.until(lambda routes: names(routes) == ["p1"])
        await told.until([])
        assert discovery.is_ready
        assert failures == []


async def test_a_gateway_that_may_not_list_tenants_is_not_ready_until_it_may(api: FakeClusterApi) -> None:
    api.forbidden_kinds.add("tenants")
    told = Tenants(["to be replaced"])
    async with discovering(api, take_tenants=told.take) as (fleet, discovery, failures):
        async with asyncio.timeout(60):
            await api.forbade.wait()
        assert not discovery.is_ready
        api.forbidden_kinds.clear()
        await told.until([])
        await fleet.until(lambda routes: names(routes) == ["p1"])
        assert discovery.is_ready
        assert failures
