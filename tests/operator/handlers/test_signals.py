"""What the leader learns of a service, from stand-ins for API server, gateway, engine and Prometheus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from support_answers import StandIn
from support_engine_page import engine_page
from support_operator import SETTINGS, a_replica_set, a_service

from sapwood_contract.http import GatewayDemand, ServiceDemand
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.values import Demand, NoReading
from sapwood_operator.handlers.signals import Signals
from sapwood_operator.handlers.store import ServiceKey, Store
from sapwood_operator.settings import EngineSource, PrometheusSource

CHAT = ServiceKey("team", "chat")
DEMAND = GatewayDemand("e1", (ServiceDemand("team", "chat", 1, 2, 9, 0.0, {"chat-a": 2}),))


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def a_store(engine_port: int) -> Store:
    """A service that scales, with one pod that is ready on this machine."""
    service = a_service(autoscaling={"maxReplicas": 4})
    service["metadata"]["resourceVersion"] = "1"
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "chat-a",
            "namespace": "team",
            "uid": "uid-a",
            "resourceVersion": "2",
            "labels": {"serving.sapwood.dev/service": "chat"},
            "ownerReferences": [{"uid": "uid-of-ReplicaSet", "controller": True}],
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "engine", "ports": [{"name": "admin", "containerPort": engine_port}]}],
        },
        "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", **a_replica_set()}
    labels = pod["metadata"]["labels"]
    replica_set["metadata"] |= {
        "uid": "uid-of-ReplicaSet",
        "namespace": "team",
        "resourceVersion": "3",
        "labels": labels,
    }
    store = Store()
    for live in (service, pod, replica_set):
        store.put(live)
    return store


def slices() -> bytes:
    endpoint = {"addresses": ["127.0.0.1"], "targetRef": {"name": "gateway-a"}}
    listed = {"metadata": {"resourceVersion": "7"}, "items": [{"addressType": "IPv4", "endpoints": [endpoint]}]}
    return json.dumps(listed).encode()


@asynccontextmanager
async def learning(source: EngineSource | None, engine: StandIn) -> AsyncIterator[tuple[Signals, asyncio.Event]]:
    """The leader's part, running; the event is set once the service was woken. ``source`` None: Prometheus is asked."""
    woken = asyncio.Event()
    api, gateway, prometheus = StandIn(slices()), StandIn(json.dumps(asdict(DEMAND)).encode()), StandIn(status=503)
    async with AsyncExitStack() as stack:
        api_url, gateway_url, engine_url, prometheus_url = [
            await stack.enter_async_context(each.serving()) for each in (api, gateway, engine, prometheus)
        ]
        client = ApiClient(Configuration(host=api_url))
        asked = source or PrometheusSource(prometheus_url)
        signals = Signals(
            a_store(port_of(engine_url)),
            Cluster(client, request_timeout_seconds=5.0, on_write=lambda _kind, _verb: None),
            replace(SETTINGS, gateway_admin_port=port_of(gateway_url), signals=asked),
            wake=lambda key: woken.set() if key == CHAT else None,
        )
        running = asyncio.create_task(signals.run())
        try:
            yield signals, woken
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.to_thread(client.close)


async def test_before_anybody_was_asked_nothing_is_known_and_then_each_answer_is() -> None:
    async with learning(EngineSource(), StandIn(engine_page())) as (signals, woken):
        assert signals.of(CHAT) == ServiceSignals()
        async with asyncio.timeout(60):
            await woken.wait()
        known = signals.of(CHAT)
    assert known.states == {"uid-a": "ready"}
    assert known.reading_of("uid-a") == NoReading("it was heard once, and rates need a second time")
    assert known.demand == Demand(num_waiting=1, num_running=2, idle_seconds=0.0, running={"chat-a": 2})


async def test_a_prometheus_that_is_named_is_asked_and_engines_are_not() -> None:
    engine = StandIn(engine_page())
    async with learning(None, engine) as (signals, woken):
        async with asyncio.timeout(60):
            await woken.wait()
        known = signals.of(CHAT)
    assert known.reading_of("uid-a") == NoReading("Prometheus answers 503 Service Unavailable")
    assert isinstance(known.demand, Demand)
    assert engine.asked == []


@pytest.mark.parametrize("source", [EngineSource(), None])
async def test_a_service_that_is_not_there_has_no_signals(source: EngineSource | None) -> None:
    async with learning(source, StandIn(engine_page())) as (signals, woken):
        async with asyncio.timeout(60):
            await woken.wait()
        assert signals.of(ServiceKey("team", "another")).readings == {}
