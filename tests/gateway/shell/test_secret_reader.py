"""Hashes of keys from Secrets of a cluster, through the official client, over real sockets."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kubernetes import client
from support_cluster_api import DEEP, FakeClusterApi, Json, cluster_api, started

from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.tenant_secrets import KnownSecrets
from sapwood_gateway.core.tenants import Tenant, key_digest
from sapwood_gateway.shell.discovery.cluster import ClusterDiscovery
from sapwood_gateway.shell.discovery.cluster_api import ClusterApi
from sapwood_gateway.shell.tenant_sources import TenantDirectory

SOON = 0.02
NEVER = 3600.0
"""Seconds between two looks at a Secret."""


class Watched:
    """A directory of tenants; its changes, and failures to ask the API, can be waited for."""

    def __init__(self) -> None:
        self.directory = TenantDirectory()
        self.num_failures = 0
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def failed(self) -> None:
        self._loop.call_soon_threadsafe(self._count_failure)

    def _count_failure(self) -> None:
        self.num_failures += 1
        self._told.set()

    def take(self, documents: Sequence[Mapping[str, Any]], secrets: KnownSecrets) -> None:
        self.directory.take_cluster(documents, secrets)
        self._told.set()

    def knows(self, key: str, namespace: str = "team") -> bool:
        return isinstance(self.directory.tenants.find(namespace, key), Tenant)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._told.clear()
                await self._told.wait()

    async def until_known(self, key: str, *, known: bool = True, namespace: str = "team") -> None:
        await self.until(lambda: self.knows(key, namespace) == known)


@asynccontextmanager
async def discovering(api: FakeClusterApi, *, secret_seconds: float) -> AsyncIterator[tuple[Watched, ClusterDiscovery]]:
    watched = Watched()
    with client.ApiClient(client.Configuration(host=api.url, retries=False)) as api_client:
        discovery = ClusterDiscovery(
            Fleet(circuit=CircuitSettings()),
            ClusterApi(api_client),
            namespaces=(),
            take_tenants=watched.take,
            failed=watched.failed,
            died=lambda name, error: pytest.fail(f"{name}: {error!r}"),
            draw=lambda: 0.01,
            secret_seconds=secret_seconds,
        )
        async with started(discovery):
            yield watched, discovery


@pytest.fixture
async def api() -> AsyncIterator[FakeClusterApi]:
    async with cluster_api() as fake:
        fake.missing_kinds.clear()
        yield fake


def tenant(name: str, *keys: str, secret: str = "tenant-keys", namespace: str = "team") -> Json:
    written = [{"name": key, "sha256SecretRef": {"name": secret, "key": key}} for key in keys]
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{len(name)}"},
        "spec": {"apiKeys": written},
    }


def secret(name: str = "tenant-keys", namespace: str = "team", **keys: str) -> Json:
    """Hold the hash of each of ``keys``; one that begins with "=" is what stands behind that."""
    texts = {name: key[1:] if key.startswith("=") else key_digest(key).hex() for name, key in keys.items()}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    return {"kind": "Secret", "metadata": {"namespace": namespace, "name": name}, "data": data}


def asked(api: FakeClusterApi) -> list[str]:
    return [path for path in api.requests if "/secrets" in path]


async def test_a_gateway_is_ready_when_it_knows_the_keys_of_the_tenants_that_there_are(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a"))
    await api.put("secrets", secret(a="sk-acme"))
    async with discovering(api, secret_seconds=NEVER) as (watched, discovery):
        await watched.until(lambda: discovery.is_ready or watched.knows("sk-acme"))
        assert watched.knows("sk-acme")
        assert asked(api) == ["/api/v1/namespaces/team/secrets/tenant-keys"]
        assert watched.num_failures == 0


async def test_a_tenant_that_comes_or_names_another_key_has_it_without_waiting_for_the_next_look(
    api: FakeClusterApi,
) -> None:
    await api.put("secrets", secret(a="sk-a"))
    async with discovering(api, secret_seconds=NEVER) as (watched, _):
        await api.put("tenants", tenant("acme", "a"))
        await watched.until_known("sk-a")
        await api.put("secrets", secret(a="sk-a", b="sk-b"))
        await api.put("tenants", tenant("acme", "a", "b"))
        await watched.until_known("sk-b")


async def test_a_secret_that_changes_is_followed_and_one_that_goes_takes_its_keys_with_it(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a"))
    await api.put("secrets", secret(a="sk-old"))
    async with discovering(api, secret_seconds=SOON) as (watched, _):
        await watched.until_known("sk-old")
        await api.put("secrets", secret(a="sk-new"))
        await watched.until_known("sk-new")
        assert not watched.knows("sk-old")
        await api.delete("secrets", secret())
        await watched.until_known("sk-new", known=False)
        await api.put("secrets", secret(a="sk-new"))
        await watched.until_known("sk-new")
        assert watched.num_failures == 0


@pytest.mark.parametrize("status", [403, 404])
async def test_a_secret_that_may_not_be_read_makes_its_keys_alone_unknown(
    status: int, api: FakeClusterApi, caplog: pytest.LogCaptureFixture
) -> None:
    await api.put("tenants", tenant("acme", "a"))
    await api.put("tenants", tenant("zeta", "z", secret="others"))
    await api.put("secrets", secret(a="sk-acme"))
    await api.put("secrets", secret("others", z="sk-zeta"))
    async with discovering(api, secret_seconds=SOON) as (watched, discovery):
        await watched.until_known("sk-acme")
        api.secret_refusals["tenant-keys"] = status
        await watched.until_known("sk-acme", known=False)
        assert watched.knows("sk-zeta")
        assert discovery.is_ready
        assert watched.num_failures == 0
    (record,) = caplog.records
    assert "apiKeys[0].sha256SecretRef" in record.message
    assert not any(word in caplog.text for word in ("acme", "tenant-keys"))


@pytest.mark.parametrize("status", [0, 401, 500])
async def test_what_was_known_stays_while_the_api_gives_no_answer(status: int, api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a"))
    await api.put("secrets", secret(a="sk-acme"))
    async with discovering(api, secret_seconds=SOON) as (watched, _):
        await watched.until_known("sk-acme")
        api.secret_refusals["tenant-keys"] = status
        await api.put("secrets", secret(a="sk-new"))
        await watched.until(lambda: watched.num_failures >= 2)
        assert watched.knows("sk-acme")
        del api.secret_refusals["tenant-keys"]
        await watched.until_known("sk-new")


async def test_a_secret_that_the_server_cannot_read_keeps_no_other_one_and_no_gateway_back(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a", secret="broken"))
    await api.put("tenants", tenant("zeta", "z"))
    await api.put("secrets", secret(z="sk-zeta"))
    api.secret_refusals["broken"] = 500
    async with discovering(api, secret_seconds=NEVER) as (watched, discovery):
        await watched.until_known("sk-zeta")
        assert discovery.is_ready


async def test_a_secret_of_thousands_of_levels_is_read_all_the_same(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a"))
    deep = secret(a="sk-acme")
    deep["metadata"]["managedFields"] = [{"fieldsV1": DEEP}]
    await api.put("secrets", deep)
    async with discovering(api, secret_seconds=NEVER) as (watched, _):
        await watched.until_known("sk-acme")


async def test_a_hash_of_two_tenants_is_nobodys_until_one_of_them_lets_it_go(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a"))
    await api.put("secrets", secret(a="sk-acme", z="sk-zeta"))
    async with discovering(api, secret_seconds=SOON) as (watched, _):
        await watched.until_known("sk-acme")
        await api.put("tenants", tenant("thief", "a", "z"))
        await watched.until_known("sk-zeta")
        assert not watched.knows("sk-acme")
        await api.delete("tenants", tenant("thief"))
        await watched.until_known("sk-acme")


async def test_a_secret_that_nobody_names_any_more_is_not_read_any_more(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a"))
    await api.put("tenants", tenant("zeta", "z", secret="others"))
    await api.put("secrets", secret("others", z="sk-zeta"))
    await api.put("secrets", secret(a="sk-acme"))
    async with discovering(api, secret_seconds=SOON) as (watched, _):
        await watched.until(lambda: watched.knows("sk-acme") and watched.knows("sk-zeta"))
        await api.delete("tenants", tenant("acme"))
        await watched.until_known("sk-acme", known=False)
        await api.put("secrets", secret("others", z="sk-1"))
        await watched.until_known("sk-1")  # a whole look has been taken since
        num_before = asked(api).count("/api/v1/namespaces/team/secrets/tenant-keys")
        await api.put("secrets", secret("others", z="sk-2"))
        await watched.until_known("sk-2")
        assert asked(api).count("/api/v1/namespaces/team/secrets/tenant-keys") == num_before


async def test_a_name_that_is_a_path_is_asked_for_nowhere(api: FakeClusterApi) -> None:
    await api.put("tenants", tenant("acme", "a", secret="../../other/secrets/tenant-keys"))
    await api.put("tenants", tenant("zeta", "z"))
    await api.put("secrets", secret(z="sk-zeta"))
    async with discovering(api, secret_seconds=SOON) as (watched, _):
        await watched.until_known("sk-zeta")
        assert set(asked(api)) == {"/api/v1/namespaces/team/secrets/tenant-keys"}
