"""Who is asked, and how often, is read from the objects that live."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_operator.autoscaling.attention import watched
from sapwood_operator.autoscaling.signals import EnginePod

CREATED = "2026-11-30T12:00:00Z"
CREATED_SECONDS = 1_796_040_000.0
LEAVING = {"leaving": [{"pod": "chat-a", "uid": "uid-a", "since": CREATED}]}


def service(autoscaling: Any = None, status: Any = None) -> dict[str, Any]:
    spec = {} if autoscaling is None else {"autoscaling": autoscaling}
    return {"metadata": {"namespace": "team", "name": "chat"}, "spec": spec, "status": {"autoscaling": status}}


def pod(name: str = "a", *, ready: bool = True, phase: str = "Running", ip: str | None = "127.0.0.1") -> dict[str, Any]:
    address = {} if ip is None else {"podIP": ip}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": f"chat-{name}", "uid": f"uid-{name}", "creationTimestamp": CREATED},
        "spec": {"nodeName": "n", "containers": [{"name": "side"}, {"name": "engine", "ports": PORTS}]},
        "status": {"phase": phase, "conditions": conditions, **address},
    }


PORTS = [{"name": "http", "containerPort": 8000}, {"name": "admin", "containerPort": 8001}]
SCALED = {"maxReplicas": 4}


@pytest.mark.parametrize(
    ("live", "pods", "scales", "is_urgent"),
    [
        (service(), [pod()], False, False),
        (service(), [], False, False),
        (service(SCALED), [pod()], True, False),
        (service({"policyRef": {"name": "p"}}), [pod()], True, False),
        (service(SCALED), [], True, True),
        (service(SCALED), [pod(ready=False)], True, True),
        (service(SCALED), [pod(ready=False), pod("b")], True, False),
        (service(SCALED, LEAVING), [pod()], True, True),
        (service(None, LEAVING), [pod()], False, True),
        (service(None, {"leaving": []}), [pod()], False, False),
        (service(None, "nonsense"), [pod()], False, False),
    ],
)
def test_a_service_without_a_ready_replica_or_with_a_leaving_one_is_urgent(
    live: dict[str, Any], pods: list[dict[str, Any]], scales: bool, is_urgent: bool
) -> None:
    found = watched(live, pods)
    assert (found.namespace, found.name, found.scales, found.is_urgent) == ("team", "chat", scales, is_urgent)


def test_pods_are_asked_at_their_admin_port_for_what_came_after_their_creation() -> None:
    [found] = watched(service(), [pod()]).pods
    assert found == EnginePod(uid="uid-a", name="chat-a", url="http://127.0.0.1:8001", after=CREATED_SECONDS)


def test_a_pod_may_have_no_address_yet_or_one_of_ipv6_and_one_that_ended_is_not_asked() -> None:
    pods = [pod("a", ip=None), pod("b", ip="fd00::1"), pod("c", phase="Failed")]
    assert [each.url for each in watched(service(), pods).pods] == ["", "http://[fd00::1]:8001"]
