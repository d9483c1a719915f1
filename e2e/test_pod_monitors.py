"""From PodMonitors to metrics: the Prometheus Operator makes a configuration of them, and Prometheus scrapes by it.

The chart finds the kind by itself and makes PodMonitors for operator and gateway, the operator one for each service.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from kubernetes import config

from chart_release import NAMESPACE as SYSTEM
from chart_release import Release, connect
from cluster import processes
from cluster.binaries import PROMETHEUS, PROMETHEUS_OPERATOR, cached_path
from cluster.definitions import PROMETHEUS_OPERATOR as MONITORING_APIS
from cluster.extras import start_prometheus, start_prometheus_operator
from cluster.layout import Layout
from optional_apis import GATEWAY, HTTP_ROUTES, MONITORING, REFERENCE_GRANTS, installed
from world import JsonObject, World, condition, eventually

WATCHING = "monitoring"
"""Where Prometheus is."""
TEAM = f"monitored-{os.getpid()}"
READY_SECONDS = 600.0
"""An engine's first start compiles its step."""
VALUES = {
    "metrics": {"podMonitor": {"interval": "1s", "labels": {"release": "e2e"}}},
    "gateway": {"routesFrom": [TEAM]},
}
PROMETHEUS_OBJECT: JsonObject = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "e2e", "namespace": WATCHING},
    "spec": {"scrapeInterval": "1s", "podMonitorSelector": {}, "podMonitorNamespaceSelector": {}},
}


@pytest.fixture(scope="module")
def world(harness: Layout) -> World:
    missing = [p.name for p in (PROMETHEUS, PROMETHEUS_OPERATOR) if not cached_path(p, os.environ).exists()]
    if missing:
        pytest.skip(f"needs {missing}: python -m cluster up --with prometheus --with optional-apis")
    return World(config.new_client_from_config(str(harness.kubeconfig)))  # type: ignore[no-untyped-call]  # as it is


@pytest.fixture(scope="module")
def release(world: World) -> Iterator[Release]:
    """The chart, installed where all the APIs are."""
    apis = [(MONITORING_APIS, name) for name in MONITORING_APIS.paths(os.environ)]
    found = connect(world)
    found.uninstall()
    with installed(world, *apis, HTTP_ROUTES, REFERENCE_GRANTS):
        found.install(VALUES)
        yield found
        found.uninstall()


@pytest.fixture(scope="module")
def service(world: World, release: Release) -> Iterator[JsonObject]:
    """A service that serves, with a route from another namespace."""
    world.make_namespace(TEAM)
    exposure = {"gateway": {"parentRefs": [{"name": "edge"}], "hostnames": ["chat.example.com"]}}
    world.make_service(TEAM, replicas=1, exposure=exposure)

    def serves() -> JsonObject | None:
        found = world.service(TEAM)
        return found if condition(found, "Ready").get("status") == "True" else None

    yield eventually(serves, "a service that serves", within_seconds=READY_SECONDS)
    world.delete(f"/api/v1/namespaces/{TEAM}")


@dataclass(frozen=True, slots=True)
class Target:
    """What Prometheus scrapes, and how that goes."""

    health: str
    labels: dict[str, str]


@pytest.fixture(scope="module")
def prometheus(harness: Layout, world: World, service: JsonObject) -> Iterator[str]:
    """A Prometheus with the configuration that its operator has written, PodMonitors of all namespaces in it."""
    world.make_namespace(WATCHING)
    start_prometheus_operator(harness, os.environ)
    world.apply(f"{MONITORING}/namespaces/{WATCHING}/prometheuses", PROMETHEUS_OBJECT)
    written = eventually(lambda: configuration(world), "a configuration with three jobs", within_seconds=60)
    for job in written["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(harness.kubeconfig)  # this Prometheus runs in no pod
    yield start_prometheus(
        harness, {"scrape_configs": written["scrape_configs"], "global": written["global"]}, os.environ
    )
    processes.stop(harness, "prometheus")
    processes.stop(harness, "prometheus-operator")
    world.delete(f"/api/v1/namespaces/{WATCHING}")


def configuration(world: World) -> JsonObject | None:
    """Return what the Prometheus Operator has made of the PodMonitors, once all three are in it."""
    secret = world.get(f"/api/v1/namespaces/{WATCHING}/secrets/prometheus-e2e")
    packed = ((secret or {}).get("data") or {}).get("prometheus.yaml.gz", "")
    if not packed:
        return None
    # The reloader beside each Prometheus fills in which one it is.
    text = gzip.decompress(base64.b64decode(packed)).decode().replace("$(SHARD)", "0")
    found: JsonObject = yaml.safe_load(text)
    return found if len(found.get("scrape_configs") or ()) == 3 else None


def targets(prometheus: str) -> list[Target]:
    with urllib.request.urlopen(f"{prometheus}/api/v1/targets?state=active", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["activeTargets"]
    return [Target(one["health"], one["labels"]) for one in found]


def test_the_chart_finds_the_kind_and_makes_its_own_pod_monitors(world: World, release: Release) -> None:
    monitors = {one["metadata"]["name"]: one for one in world.items(f"{MONITORING}/namespaces/{SYSTEM}/podmonitors")}
    assert set(monitors) == {"sapwood-operator", "sapwood-gateway"}
    assert {monitor["metadata"]["labels"]["release"] for monitor in monitors.values()} == {"e2e"}
    assert {monitor["spec"]["podMetricsEndpoints"][0]["interval"] for monitor in monitors.values()} == {"1s"}


def test_every_program_is_scraped_under_its_pods_name(world: World, prometheus: str) -> None:
    def all_up() -> list[Target]:
        found = targets(prometheus)
        return found if len(found) == 4 and {target.health for target in found} == {"up"} else []

    found = eventually(all_up, "an engine, an operator and two gateways scraped", within_seconds=60)
    seen = {(t.labels["job"], t.labels["namespace"], t.labels["pod"], t.labels["container"]) for t in found}
    expected = {
        (f"{namespace}/{name}", namespace, pod["metadata"]["name"], container)
        for namespace, name, container in (
            (TEAM, "chat-engine", "engine"),
            (SYSTEM, "sapwood-operator", "operator"),
            (SYSTEM, "sapwood-gateway", "gateway"),
        )
        for pod in world.items(f"/api/v1/namespaces/{namespace}/pods")
        if pod["metadata"]["name"].startswith(name)
    }
    assert seen == expected


@pytest.mark.parametrize(
    "series", ["sapwood_operator_leader", "sapwood_kv_capacity_tokens", "sapwood_gateway_replicas"]
)
def test_the_programs_own_series_arrive(prometheus: str, series: str) -> None:
    def value() -> list[Any]:
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?query={series}", timeout=10) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
        return found

    eventually(value, series)


def test_a_route_from_another_namespace_is_granted_the_gateways_service(world: World, service: JsonObject) -> None:
    """As an implementation of the Gateway API decides it."""
    route = eventually(lambda: world.get(f"{GATEWAY}/v1/namespaces/{TEAM}/httproutes/chat"), "the route")
    [backend] = route["spec"]["rules"][0]["backendRefs"]
    target = world.call("GET", f"/api/v1/namespaces/{backend['namespace']}/services/{backend['name']}")
    assert backend["port"] in {port["port"] for port in target["spec"]["ports"]}
    granted = [
        (source["group"], source["kind"], source["namespace"], to["group"], to["kind"], to.get("name", backend["name"]))
        for grant in world.items(f"{GATEWAY}/v1beta1/namespaces/{backend['namespace']}/referencegrants")
        for source in grant["spec"]["from"]
        for to in grant["spec"]["to"]
    ]
    assert granted == [("gateway.networking.k8s.io", "HTTPRoute", TEAM, "", "Service", backend["name"])]
