"""The chart's pods pass the restricted Pod Security profile and are reached by those alone who should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support_chart import of_kind, pods, render

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
INTERNAL = {"ipBlock": {"cidr": "10.0.0.0/8"}}


def rules(values: Mapping[str, Any], program: str) -> dict[str, list[Any] | str]:
    """Port -> who may reach it, of the ports that anybody may reach."""
    policy = of_kind(render(values), "NetworkPolicy")[f"sapwood-{program}"]
    return {rule["ports"][0]["port"]: rule.get("from", "everyone") for rule in policy["spec"].get("ingress", [])}


def component(name: str) -> dict[str, Any]:
    labels = {"name": "sapwood", "instance": "sapwood", "component": name}
    return {"podSelector": {"matchLabels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()}}}


@pytest.mark.parametrize("name", ["sapwood-operator", "sapwood-gateway", "sapwood-test"])
def test_a_pod_passes_the_restricted_profile(name: str) -> None:
    pod = pods(render())[name]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(volume) <= {"name", "emptyDir", "secret"} for volume in pod.get("volumes", []))
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", ["sapwood-operator", "sapwood-gateway", "sapwood-test"])
def test_a_container_asks_for_what_it_needs_and_is_limited_in_memory(name: str) -> None:
    (container,) = pods(render())[name]["containers"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert set(container["resources"]["limits"]) == {"memory"}


@pytest.mark.parametrize("name", ["sapwood-operator", "sapwood-gateway"])
def test_probes_ask_ports_that_the_container_has(name: str) -> None:
    (container,) = pods(render())[name]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports


def test_a_gateway_has_time_to_drain_before_it_is_killed() -> None:
    pod = pods(render({"gateway": {"drainSeconds": 1200}}))["sapwood-gateway"]
    (container,) = pod["containers"]
    assert "--drain-seconds=1200" in container["args"]
    assert pod["terminationGracePeriodSeconds"] > 1200 + container["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_everybody_reaches_the_gateway_and_the_runbooks_by_default() -> None:
    assert rules({}, "operator") == {"metrics": "everyone"}
    assert rules({}, "gateway") == {"http": "everyone", "admin": [component("operator")]}


def test_metrics_are_read_by_the_peers_that_are_named() -> None:
    values = {"metrics": {"peers": [PROMETHEUS]}}
    elsewhere = {"rules": {"runbookUrl": "https://example.com/runbooks"}}
    assert rules({"metrics": {"peers": [PROMETHEUS], **elsewhere}}, "operator") == {"metrics": [PROMETHEUS]}
    assert rules({"metrics": elsewhere}, "operator") == {}
    console = {"metrics": elsewhere, "gateway": {"console": True}}
    assert rules(console, "operator") == {"metrics": [component("gateway")]}
    assert rules(values, "gateway")["admin"] == [component("operator"), PROMETHEUS]


def test_where_requests_come_from_can_be_restricted_and_helm_test_still_passes() -> None:
    assert rules({"gateway": {"ingressFrom": [INTERNAL]}}, "gateway")["http"] == [INTERNAL, component("test")]


def test_policies_can_be_left_out() -> None:
    assert not of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")
