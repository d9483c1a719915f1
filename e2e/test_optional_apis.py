"""APIs that a cluster may lack, as their own projects define them: they come and go while the operator runs.

PodMonitor, PrometheusRule (Prometheus Operator) and HTTPRoute, ReferenceGrant (Gateway API) are applied against their
real schemas; a field that these do not have would be refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cluster.audit import AuditLog
from cluster.layout import Layout
from operator_process import OperatorProcess, operator
from operator_setup import NAMESPACE as SYSTEM
from operator_setup import USER, Site, prepare
from optional_apis import GATEWAY, HTTP_ROUTES, MONITORING, POD_MONITORS, PROMETHEUS_RULES, installed, remove
from waiting_services import NOWHERE, make, says, wait_until_settled
from world import JsonObject, World, child_path, condition, eventually, service_path

DISCOVERY_SECONDS = 1
ASKS: dict[str, Any] = {
    "observability": {"podMonitor": "Enabled", "alerts": True},
    "exposure": {
        "gateway": {
            "parentRefs": [{"name": "edge", "namespace": "ingress", "sectionName": "https"}],
            "hostnames": ["chat.example.com"],
        }
    },
}
_numbers = count(1)


@pytest.fixture(scope="module")
def site(harness: Layout, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The harness's own cluster: in another one these APIs would be removed from under their users."""
    site = prepare(tmp_path_factory.mktemp("optional"))
    remove(site.world, (POD_MONITORS, PROMETHEUS_RULES, HTTP_ROUTES))
    return site


@pytest.fixture(scope="module")
def world(site: Site) -> World:
    return site.world


@pytest.fixture
def running(site: Site, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that no timer helps but that of the discovery."""
    options = {"resync-seconds": 3600, "discovery-seconds": DISCOVERY_SECONDS}
    with operator(site.kubeconfig(), tmp_path / "log", identity="optional", options=options) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def namespace(world: World) -> Iterator[str]:
    name = world.make_namespace(f"optional-{os.getpid()}-{next(_numbers)}")
    yield name
    world.delete(f"/api/v1/namespaces/{name}")


def monitor_path(namespace: str) -> str:
    return f"{MONITORING}/namespaces/{namespace}/podmonitors/chat-engine"


def rule_path(namespace: str) -> str:
    return f"{MONITORING}/namespaces/{namespace}/prometheusrules/chat-engine"


def route_path(namespace: str) -> str:
    return f"{GATEWAY}/v1/namespaces/{namespace}/httproutes/chat"


def wait_for(world: World, path: str) -> JsonObject:
    """Return the object at ``path`` once it is there."""
    return eventually(lambda: world.get(path), path)


def wait_for_another(world: World, path: str, first: JsonObject) -> None:
    """Return once another object than ``first`` is at ``path``."""

    def is_another() -> bool:
        found = world.get(path)
        return found is not None and found["metadata"]["uid"] != first["metadata"]["uid"]

    eventually(is_another, f"another {path}")


def log(process: OperatorProcess) -> str:
    return process.log.read_text(encoding="utf-8")


def test_an_api_that_is_installed_later_is_made_use_of_without_a_restart(
    world: World, running: OperatorProcess, namespace: str
) -> None:
    make(world, namespace, **ASKS)
    with installed(world, POD_MONITORS, PROMETHEUS_RULES, HTTP_ROUTES):
        for path in (monitor_path(namespace), rule_path(namespace), route_path(namespace)):
            first = wait_for(world, path)
            world.delete(path)
            wait_for_another(world, path, first)
    assert running.process.poll() is None


def test_what_is_asked_for_by_name_and_cannot_be_had_is_told_until_it_can(
    world: World, running: OperatorProcess, namespace: str
) -> None:
    world.make_service(namespace, replicas=0, **ASKS)
    eventually(lambda: says(world, namespace, "Degraded", "ApiMissing"), "a word about the APIs")
    message = condition(world.service(namespace), "Degraded")["message"]
    assert "spec.exposure.gateway needs HTTPRoute" in message
    assert "spec.observability.podMonitor needs PodMonitor" in message
    assert "spec.observability.alerts needs PrometheusRule" in message
    with installed(world, POD_MONITORS, PROMETHEUS_RULES, HTTP_ROUTES):
        eventually(lambda: says(world, namespace, "Degraded", "AsExpected"), "nothing to complain about")


def test_the_pod_monitor_names_the_engines_pods_and_their_port(
    world: World, running: OperatorProcess, namespace: str
) -> None:
    with installed(world, POD_MONITORS):
        make(world, namespace)
        monitor = wait_for(world, monitor_path(namespace))
        template = world.call("GET", child_path(namespace, "Deployment", "chat-engine"))["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        assert (ports[endpoint["port"]], endpoint["path"]) == (8001, "/metrics")
        assert "namespaceSelector" not in monitor["spec"], "of its own namespace alone"


def backend(route: JsonObject) -> dict[str, Any]:
    """Return the only backend of a route whose one rule takes every path."""
    [rule] = route["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    [found] = rule["backendRefs"]
    assert isinstance(found, dict)
    return found


def test_the_route_attaches_where_it_was_told_and_leads_to_the_gateway(
    world: World, running: OperatorProcess, namespace: str
) -> None:
    with installed(world, HTTP_ROUTES):
        make(world, namespace, **ASKS)
        route = wait_for(world, route_path(namespace))
        [parent] = route["spec"]["parentRefs"]
        assert parent == {
            "group": "gateway.networking.k8s.io",
            "kind": "Gateway",
            "name": "edge",
            "namespace": "ingress",
            "sectionName": "https",
        }
        assert route["spec"]["hostnames"] == ["chat.example.com"]
        expected = {
            "group": "",
            "kind": "Service",
            "name": "sapwood-gateway",
            "namespace": SYSTEM,
            "port": 80,
            "weight": 1,
        }
        assert backend(route) == expected


def test_beside_the_gateway_the_route_leads_to_the_services_own_address(world: World, running: OperatorProcess) -> None:
    with installed(world, HTTP_ROUTES):
        make(world, SYSTEM, **ASKS)
        try:
            found = backend(wait_for(world, route_path(SYSTEM)))
            address = world.call("GET", child_path(SYSTEM, "Service", found["name"]))
            assert found == {"group": "", "kind": "Service", "name": "chat", "port": 80, "weight": 1}
            assert [port["port"] for port in address["spec"]["ports"]] == [80]
        finally:
            world.delete(service_path(SYSTEM))
            eventually(lambda: not world.children(SYSTEM), "nothing left")


def test_a_new_operator_finds_what_the_former_one_made_as_it_should_be(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    """Defaults that the real schemas fill in are no difference."""
    options = {"resync-seconds": 1, "discovery-seconds": DISCOVERY_SECONDS}
    paths = (monitor_path, rule_path, route_path)
    with installed(world, POD_MONITORS, PROMETHEUS_RULES, HTTP_ROUTES):
        with operator(site.kubeconfig(), tmp_path / "log", identity="former", options=options) as former:
            former.wait_until_leading()
            make(world, namespace, **ASKS)
            versions = [wait_for(world, path(namespace))["metadata"]["resourceVersion"] for path in paths]
        with operator(site.kubeconfig(), tmp_path / "log", identity="next", options=options) as process:
            process.wait_until_leading()
            eventually(
                lambda: process.metric('sapwood_operator_reconcile_seconds_count{kind="InferenceService"}') > 5, "turns"
            )
        assert versions == [world.call("GET", path(namespace))["metadata"]["resourceVersion"] for path in paths]


def words(process: OperatorProcess, namespace: str) -> list[str]:
    """What the operator has logged, but of services in other namespaces."""
    return [
        line for line in log(process).splitlines() if namespace in line or not ('"service"' in line or '"key"' in line)
    ]


def looks(audit: AuditLog, since: int) -> int:
    """How often the operator asked whether there are PodMonitors."""
    return sum(call.user == USER and call.resource == MONITORING for call in audit.calls(since))


def test_an_api_that_is_removed_is_given_up_without_an_alarm(
    world: World, running: OperatorProcess, namespace: str, audit: AuditLog
) -> None:
    """The PodMonitor was nobody's wish but the operator's own: that there can be none is no news."""
    with installed(world, POD_MONITORS):
        make(world, namespace)
        wait_for(world, monitor_path(namespace))
        version = world.call("GET", service_path(namespace))["metadata"]["resourceVersion"]
        remove(world, [POD_MONITORS])
        eventually(lambda: log(running).count("optional APIs changed") == 2, "the operator noticed")
        since = audit.position()
        world.make_service(namespace, placement=NOWHERE, replicas=2)
        deployment = child_path(namespace, "Deployment", "chat-engine")
        eventually(lambda: world.call("GET", deployment)["spec"]["replicas"] == 2, "work without that API")
        told = {condition(each, "Degraded")["reason"] for each in world.history(service_path(namespace), version)}
        assert not told & {"ApplyRefused", "ApiMissing"}
        assert "ApplyRefused" not in {event["reason"] for event in world.events(namespace)}
        eventually(lambda: looks(audit, since) > 3, "the last that was under way")
        since, said = audit.position(), words(running, namespace)
        eventually(lambda: looks(audit, since) > 3, "further looks at what there is")
        assert words(running, namespace) == said, "nothing fails over and over"
        assert not [call for call in audit.calls(since) if call.user == USER and "podmonitors" in call.resource]


def test_an_api_that_is_replaced_between_two_looks_is_made_use_of_again(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    options = {"resync-seconds": 3600, "discovery-seconds": 20}
    with (
        installed(world, POD_MONITORS),
        operator(site.kubeconfig(), tmp_path / "log", identity="looks", options=options) as process,
    ):
        process.wait_until_leading()
        make(world, namespace)
        wait_for(world, monitor_path(namespace))
        remove(world, [POD_MONITORS])
        with installed(world, POD_MONITORS):
            eventually(lambda: world.get(monitor_path(namespace)), "another PodMonitor", within_seconds=60)
            wait_until_settled(world, namespace)
