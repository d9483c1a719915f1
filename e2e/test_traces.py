"""Traces of gateway and engine pods in Jaeger: one client's request, found under the client's own trace id."""

from __future__ import annotations

import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from kubernetes import config

from chart_release import NAMESPACE, connect
from cluster import processes
from cluster.binaries import JAEGER, cached_path
from cluster.extras import Jaeger, start_jaeger
from cluster.layout import Layout
from small_engines import MODEL, READY_SECONDS, TWO_ENGINES
from world import World, condition, eventually, service_path

SERVICES = "traces"
CLIENTS_SPAN = "b7ad6b7169203331"
PHASES = {"tokenize", "queue", "kv.match", "prefill", "decode"}


@pytest.fixture(scope="module")
def jaeger(harness: Layout) -> Iterator[Jaeger]:
    if not cached_path(JAEGER, os.environ).exists():
        pytest.skip("needs Jaeger: python -m cluster up --with jaeger")
    yield start_jaeger(harness, os.environ)
    processes.stop(harness, "jaeger")


@pytest.fixture(scope="module")
def gateway(jaeger: Jaeger) -> Iterator[str]:
    """Install Sapwood with one engine, both sending their traces to Jaeger; return the gateway Service's address."""
    world = World(config.new_client_from_config())  # type: ignore[no-untyped-call]  # as the library is
    release = connect(world)
    release.uninstall()  # what an earlier module left
    release.install({"gateway": {"tracing": {"endpoint": jaeger.otlp_url, "samplingRatio": 0}}})
    namespace = world.make_namespace(SERVICES)
    tracing = {"endpoint": jaeger.otlp_url, "samplingRatio": "0"}
    world.make_service(namespace, **TWO_ENGINES | {"replicas": 1}, observability={"tracing": tracing})
    eventually(
        lambda: condition(world.service(namespace), "Ready").get("status") == "True",
        "an engine",
        within_seconds=READY_SECONDS,
    )
    service = world.get(f"/api/v1/namespaces/{NAMESPACE}/services/sapwood-gateway")
    assert service is not None
    yield service["spec"]["clusterIP"]
    world.delete(service_path(namespace))
    eventually(lambda: not world.items(f"/api/v1/namespaces/{namespace}/pods"), "the engine's end", within_seconds=120)
    world.delete(f"/api/v1/namespaces/{namespace}")
    release.uninstall()


def trace(jaeger: Jaeger, trace_id: str) -> dict[str, Any]:
    """Return a trace as Jaeger's query API has it; empty while it knows none."""
    try:
        with urllib.request.urlopen(f"{jaeger.query_url}/api/traces/{trace_id}", timeout=10) as answer:
            (found,) = json.load(answer)["data"]
            return dict(found)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return {}


def test_a_streamed_request_is_one_trace_under_the_clients_own_id(gateway: str, jaeger: Jaeger) -> None:
    trace_id = secrets.token_hex(16)
    with openai.OpenAI(base_url=f"http://{gateway}/v1", api_key="none") as client:
        chunks = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=16,
            stream=True,
            extra_headers={"traceparent": f"00-{trace_id}-{CLIENTS_SPAN}-01"},
        )
        assert len(list(chunks)) > 2
    route, call = "gateway.route", f"chat {MODEL}"
    wanted = {route, "POST /v1/chat/completions", call, *PHASES}

    def whole() -> dict[str, Any]:
        found = trace(jaeger, trace_id)
        names = {span["operationName"] for span in found.get("spans", ())}
        return found if names == wanted else {}

    found = eventually(whole, f"a trace of {wanted}")
    spans = {span["operationName"]: span for span in found["spans"]}
    parents = {name: span["references"][0]["spanID"] for name, span in spans.items()}
    services = {name: found["processes"][span["processID"]]["serviceName"] for name, span in spans.items()}
    assert parents[route] == CLIENTS_SPAN
    assert parents[call] == spans["POST /v1/chat/completions"]["spanID"]
    assert {parents[name] for name in PHASES} == {spans[call]["spanID"]}
    assert (services[route], services[call]) == ("sapwood-gateway", "sapwood-engine")
