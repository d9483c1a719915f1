"""The operator against a real API server: what it makes, keeps, gives up, and leaves alone.

No pod runs here: every service asks for a node that does not exist, so its pods wait. What pods do is told elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import count
from operator import ge
from typing import Any

import pytest

from cluster.audit import AuditLog, Call
from operator_process import OperatorProcess, operator
from operator_setup import USER, Site, prepare
from sapwood_operator.handlers.leader import WorkSettings
from sapwood_operator.settings import OperatorSettings
from waiting_services import CHILDREN, NOWHERE, make, says, wait_until_settled
from world import World, child_path, condition, eventually, service_path

every_child = pytest.mark.parametrize(("kind", "name"), CHILDREN, ids=[f"{kind} {name}" for kind, name in CHILDREN])
_numbers = count(1)
pytestmark = pytest.mark.usefixtures("running")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return prepare(tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="module")
def world(site: Site) -> World:
    return site.world


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[OperatorProcess]:
    """An operator that looks at every service each second, whether or not anything happened."""
    options = {"resync-seconds": 1, "discovery-seconds": 0.25}
    with operator(site.kubeconfig(), site.folder / "log", identity="first", options=options) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def namespace(world: World) -> Iterator[str]:
    name = world.make_namespace(f"operator-{os.getpid()}-{next(_numbers)}")
    yield name
    world.delete(f"/api/v1/namespaces/{name}")


def turns(process: OperatorProcess) -> float:
    return process.metric('sapwood_operator_reconcile_seconds_count{kind="InferenceService"}')


def after_some_turns(process: OperatorProcess, num_turns: int) -> None:
    """Return when the operator has looked at services ``num_turns`` more times."""
    end = turns(process) + num_turns
    eventually(lambda: turns(process) >= end, f"{num_turns} turns")


def writes(audit: AuditLog, since: int) -> list[Call]:
    """Writes of the operator but for its Lease."""
    return [call for call in audit.writes(USER, since) if call.resource != "coordination.k8s.io/leases"]


def test_a_service_gets_its_children_owned_and_labelled(world: World, namespace: str) -> None:
    make(world, namespace)
    service = world.service(namespace)
    children = world.children(namespace)
    assert service is not None
    assert set(children) == set(CHILDREN)
    for child in children.values():
        assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "sapwood-operator"
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (service["metadata"]["uid"], True)


def test_the_status_tells_where_the_service_is_and_why_it_does_not_serve(world: World, namespace: str) -> None:
    make(world, namespace)
    service = world.service(namespace)
    assert service is not None
    assert service["status"]["observedGeneration"] == service["metadata"]["generation"]
    assert service["status"]["url"] == f"http://chat.{namespace}.svc.cluster.local"
    assert condition(service, "Serving")["status"] == "False"
    assert "finds no node" in condition(service, "Ready")["message"]


def test_events_tell_the_story_in_order(world: World, namespace: str) -> None:
    make(world, namespace)
    told = [(event["type"], event["reason"]) for event in world.events(namespace)]
    assert told == [("Normal", "Created"), ("Warning", "Unschedulable")]


def test_the_service_itself_gets_nothing_but_a_status(world: World, namespace: str) -> None:
    make(world, namespace)
    service = world.service(namespace)
    assert service is not None
    assert "finalizers" not in service["metadata"]
    assert "annotations" not in service["metadata"]
    written = {
        entry.get("subresource") for entry in service["metadata"]["managedFields"] if entry["manager"] != "somebody"
    }
    assert written == {"status"}


TEN_MINUTES = 600.0


def default_periods() -> tuple[float, float]:
    """Seconds between two lists of all services, and between two looks at which optional APIs there are."""
    defaults: dict[str, Any] = {f.name: f.default for kind in (OperatorSettings, WorkSettings) for f in fields(kind)}
    return defaults["resync_seconds"], defaults["discovery_seconds"]


def timers(audit: AuditLog, since: int) -> tuple[int, int]:
    """How often the operator listed all services, after which it looks at each, and asked for an optional API."""
    own = [call for call in audit.calls(since) if call.user == USER and "kopf" not in call.user_agent]
    return (
        sum((call.verb, call.resource) == ("list", "serving.sapwood.dev/inferenceservices") for call in own),
        sum(call.resource == "/apis/monitoring.coreos.com/v1" for call in own),
    )


def test_looking_at_what_has_converged_for_ten_minutes_writes_nothing(
    world: World, running: OperatorProcess, namespace: str, audit: AuditLog
) -> None:
    """Ten minutes of timers, whose periods are shorter here than by default."""
    due = tuple(TEN_MINUTES / period for period in default_periods())
    make(world, namespace)
    after_some_turns(running, 3)
    since = audit.position()
    eventually(lambda: all(map(ge, timers(audit, since), due)), f"{due} turns of the timers", within_seconds=60)
    after_some_turns(running, 12)
    assert [call for call in writes(audit, since) if call.namespace == namespace] == []


def test_kopf_only_reads(world: World, namespace: str, audit: AuditLog) -> None:
    make(world, namespace)
    by_kopf = [call for call in audit.calls() if call.user == USER and "kopf" in call.user_agent]
    assert by_kopf
    assert {call.verb for call in by_kopf} <= {"get", "list", "watch"}


@every_child
def test_a_child_that_was_deleted_comes_back(world: World, namespace: str, kind: str, name: str) -> None:
    make(world, namespace)
    before = world.children(namespace)[kind, name]["metadata"]["uid"]
    world.delete(child_path(namespace, kind, name))

    def came_back() -> bool:
        child = world.children(namespace).get((kind, name))
        return child is not None and child["metadata"]["uid"] != before

    eventually(came_back, f"another {kind} {name}")
    wait_until_settled(world, namespace)


EDITS: list[tuple[str, str, dict[str, Any], Callable[[dict[str, Any]], object]]] = [
    (
        "Deployment",
        "chat-engine",
        {"spec": {"template": {"spec": {"automountServiceAccountToken": True}}}},
        lambda live: live["spec"]["template"]["spec"]["automountServiceAccountToken"],
    ),
    ("Deployment", "chat-engine", {"spec": {"replicas": 5}}, lambda live: live["spec"]["replicas"]),
    ("ConfigMap", "chat-routing", {"data": {"service.json": "{}"}}, lambda live: live["data"]["service.json"]),
    ("NetworkPolicy", "chat-engine", {"spec": {"ingress": [{}]}}, lambda live: live["spec"]["ingress"]),
    (
        "PodDisruptionBudget",
        "chat-engine",
        {"spec": {"maxUnavailable": 9}},
        lambda live: live["spec"]["maxUnavailable"],
    ),
    (
        "ServiceAccount",
        "chat-engine",
        {"automountServiceAccountToken": True},
        lambda live: live["automountServiceAccountToken"],
    ),
    (
        "Service",
        "chat",
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        lambda live: live["metadata"]["labels"]["app.kubernetes.io/managed-by"],
    ),
    (
        "Service",
        "chat-engine",
        {"metadata": {"labels": {"serving.sapwood.dev/service": None}}},
        lambda live: live["metadata"]["labels"].get("serving.sapwood.dev/service"),
    ),
]


@pytest.mark.parametrize(
    ("kind", "name", "change", "look"), EDITS, ids=[f"{kind} {json.dumps(change)}" for kind, _, change, _ in EDITS]
)
def test_an_edit_by_hand_is_undone(
    world: World,
    namespace: str,
    kind: str,
    name: str,
    change: dict[str, Any],
    look: Callable[[dict[str, Any]], object],
) -> None:
    make(world, namespace)
    path = child_path(namespace, kind, name)
    before = look(world.call("GET", path))
    assert look(world.edit(path, change)) != before
    eventually(lambda: look(world.call("GET", path)) == before, f"{kind} {name} as before")


def test_what_others_add_to_a_child_stays(world: World, namespace: str) -> None:
    make(world, namespace)
    path = child_path(namespace, "Deployment", "chat-engine")
    world.edit(path, {"metadata": {"annotations": {"team.example/note": "ours"}}})
    world.make_service(namespace, placement=NOWHERE, replicas=3)
    eventually(lambda: world.call("GET", path)["spec"]["replicas"] == 3, "three replicas")
    assert world.call("GET", path)["metadata"]["annotations"]["team.example/note"] == "ours"


def test_a_child_that_is_no_longer_wanted_goes(world: World, namespace: str) -> None:
    make(world, namespace)
    world.make_service(namespace, placement=NOWHERE, tenancy={"authentication": "ApiKey"})
    eventually(lambda: ("Service", "chat") not in world.children(namespace), "no address without keys being checked")
    eventually(lambda: ("ConfigMap", "chat-routing") not in world.children(namespace), "no route")


def test_an_object_of_somebody_else_is_left_alone_until_it_is_out_of_the_way(
    world: World, running: OperatorProcess, namespace: str
) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-routing"}, "data": {"mine": "yes"}}
    world.apply(f"/api/v1/namespaces/{namespace}/configmaps", theirs)
    world.make_service(namespace, placement=NOWHERE)
    eventually(lambda: says(world, namespace, "Degraded", "NameTaken"), "a word about the name")
    after_some_turns(running, 3)
    assert world.call("GET", child_path(namespace, "ConfigMap", "chat-routing"))["data"] == {"mine": "yes"}
    world.delete(child_path(namespace, "ConfigMap", "chat-routing"))
    wait_until_settled(world, namespace)


def test_a_refusal_of_the_api_server_is_told_and_heals(world: World, namespace: str) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    world.apply(quotas, {**quota, "spec": {"hard": {"count/poddisruptionbudgets.policy": "0"}}})
    eventually(lambda: "status" in world.call("GET", f"{quotas}/none"), "a quota that counts")
    world.make_service(namespace, placement=NOWHERE)
    eventually(lambda: says(world, namespace, "Degraded", "ApplyRefused"), "a word about the quota")
    assert "exceeded quota" in condition(world.service(namespace), "Degraded")["message"]
    assert ("Deployment", "chat-engine") in world.children(namespace), "the rest is made"
    world.delete(f"{quotas}/none")
    wait_until_settled(world, namespace)


def test_a_service_that_was_deleted_takes_everything_with_it(world: World, namespace: str, audit: AuditLog) -> None:
    make(world, namespace)
    world.delete(service_path(namespace))
    eventually(lambda: not world.children(namespace), "no children")
    since = audit.position()
    make(world, world.make_namespace(f"{namespace}-other"))
    assert not [call for call in writes(audit, since) if call.namespace == namespace]
    assert not world.children(namespace)
    world.delete(f"/api/v1/namespaces/{namespace}-other")


def test_a_restored_backup_is_made_anew(world: World, namespace: str) -> None:
    make(world, namespace)
    backup = world.service(namespace)
    assert backup is not None
    world.delete(service_path(namespace))
    eventually(lambda: not world.children(namespace), "no children")
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        del backup["metadata"][field]
    world.call("POST", service_path(namespace).rpartition("/")[0], backup)
    wait_until_settled(world, namespace)


def plugin(*arguments: str) -> str:
    argv = [sys.executable, "-m", "sapwood_operator.kubectl.cli", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_plugin_tells_what_the_cluster_shows(world: World, namespace: str) -> None:
    make(world, namespace)
    status = plugin("status", "chat", "-n", namespace)
    assert "Unschedulable" in status
    assert f"http://chat.{namespace}.svc.cluster.local" in status
    explained = plugin("explain", "chat", "-n", namespace)
    assert "chat is not ready and answers no requests." in explained
    assert "Created" in explained
    tree = plugin("tree", "chat", "-n", namespace)
    for line in (
        "InferenceService/chat",
        "── Deployment/chat-engine",
        "── ReplicaSet/chat-engine-",
        "── Pod/chat-engine-",
    ):
        assert line in tree
