"""What hangs outside the operator: a node that answers no more, a child that somebody holds back.

The engines are stand-ins: what counts is where they run and whether they are reached.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import count

import pytest

from cluster import processes
from cluster.layout import Layout
from operator_process import operator
from operator_setup import prepare
from stand_ins import STAND_IN
from waiting_services import CHILDREN, NOWHERE, make, wait_until_settled
from world import OWNED, JsonObject, World, child_path, condition, eventually, service_path

HOLD = "e2e.example/held"
"""A finalizer that nobody takes away."""
ONE_A_NODE = {"topologySpread": [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 1}]}
ON_FIRST = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
PATIENCE_SECONDS = 60
"""With a node that comes or goes; the control plane notices a silent one after 12 s."""
_numbers = count(1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with an operator."""
    site = prepare(tmp_path_factory.mktemp("stuck"))
    with operator(site.kubeconfig(), site.folder / "log", identity="stuck") as process:
        process.wait_until_leading()
        yield site.world


@pytest.fixture
def namespace(world: World) -> Iterator[str]:
    name = world.make_namespace(f"stuck-{os.getpid()}-{next(_numbers)}")
    yield name
    world.delete(f"/api/v1/namespaces/{name}")


# A node that is lost


def replicas_by_node(world: World, namespace: str) -> dict[str, JsonObject]:
    """The pods of chat."""
    pods = world.items(f"/api/v1/namespaces/{namespace}/pods?{OWNED}%3Dchat")
    return {pod["spec"].get("nodeName", ""): pod for pod in pods}


def ready_nodes(world: World, namespace: str) -> set[str]:
    """The nodes of the replicas of chat that the gateway is told to send requests to."""
    selector = "labelSelector=kubernetes.io%2Fservice-name%3Dchat-engine"
    slices = world.items(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{selector}")
    endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
    return {endpoint["nodeName"] for endpoint in endpoints if endpoint["conditions"]["ready"]}


def reason(world: World, namespace: str, type_: str, name: str = "chat") -> str:
    """Of a condition of a service; empty where it has none."""
    return str(condition(world.service(namespace, name), type_).get("reason", ""))


def is_ready(world: World, namespace: str, name: str) -> bool:
    return reason(world, namespace, "Ready", name) == "AllReplicasReady"


def wait_ready(world: World, namespace: str, *names: str) -> None:
    for name in names:
        eventually(partial(is_ready, world, namespace, name), f"{name} ready", within_seconds=PATIENCE_SECONDS)


def test_a_node_that_is_lost_takes_its_replicas_out_of_service_and_brings_them_back(
    world: World, namespace: str, harness: Layout
) -> None:
    world.make_service(namespace, "chat", replicas=2, placement=ONE_A_NODE, **STAND_IN)
    world.make_service(namespace, "other", placement=ON_FIRST, **STAND_IN)
    wait_ready(world, namespace, "chat", "other")
    pods = replicas_by_node(world, namespace)
    assert pods.keys() == {"node-1", "node-2"}
    before = {name: world.call("GET", service_path(namespace, name)) for name in ("chat", "other")}
    processes.send(harness, "node-2", signal.SIGSTOP)
    try:
        lost = eventually(lambda: _with_one_replica(world, namespace), "the loss", within_seconds=PATIENCE_SECONDS)
        assert condition(lost, "Serving")["message"] == "1 of 2 replicas take requests"
        assert condition(lost, "Ready")["status"] == "False"
        eventually(lambda: ready_nodes(world, namespace) == {"node-1"}, "only the other replica to be sent requests")
        eventually(lambda: reason(world, namespace, "Degraded") == "NodeLost", "the loss told")
        assert "node-2" in condition(world.service(namespace), "Degraded")["message"]
    finally:
        processes.send(harness, "node-2", signal.SIGCONT)
    wait_ready(world, namespace, "chat")
    eventually(lambda: ready_nodes(world, namespace) == pods.keys(), "both replicas to be sent requests")
    after = replicas_by_node(world, namespace)
    assert {node: identity(pod) for node, pod in after.items()} == {node: identity(pod) for node, pod in pods.items()}
    for name, type_ in (("chat", "Serving"), ("other", "Serving"), ("other", "Ready")):
        version = before[name]["metadata"]["resourceVersion"]
        history = world.history(service_path(namespace, name), version)
        assert {condition(each, type_)["status"] for each in history} <= {"True"}, (name, type_)


def _with_one_replica(world: World, namespace: str) -> JsonObject | None:
    service = world.service(namespace)
    return service if service and service["status"].get("readyReplicas") == 1 else None


def identity(pod: JsonObject) -> tuple[str, int]:
    """Which pod it is, and how often its engine was started again."""
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


# A finalizer that is left


def hold(world: World, path: str) -> None:
    world.edit(path, {"metadata": {"finalizers": [HOLD]}})


def release(world: World, path: str) -> None:
    world.edit(path, {"metadata": {"finalizers": None}})


def left(world: World, namespace: str) -> list[str]:
    """KIND/NAME of everything that belongs to a service, of every kind that the cluster has."""
    return [
        f"{kind}/{item['metadata']['name']}"
        for kind, path in world.collections(namespace)
        for item in world.items(f"{path}?{OWNED}")
    ]


@pytest.mark.parametrize(("kind", "name"), CHILDREN, ids=[f"{kind} {name}" for kind, name in CHILDREN])
def test_a_child_that_somebody_holds_keeps_neither_its_service_nor_the_other_children(
    world: World, namespace: str, kind: str, name: str
) -> None:
    make(world, namespace)
    held = child_path(namespace, kind, name)
    hold(world, held)
    world.delete(service_path(namespace))
    assert world.service(namespace) is None, "no finalizer of the operator's"
    eventually(lambda: world.children(namespace).keys() == {(kind, name)}, "the others' end")
    assert world.call("GET", held)["metadata"]["deletionTimestamp"]
    release(world, held)
    eventually(lambda: not left(world, namespace), "the end of everything")


def test_a_namesake_waits_for_a_child_that_somebody_holds(world: World, namespace: str) -> None:
    make(world, namespace)
    held = child_path(namespace, "ConfigMap", "chat-routing")
    hold(world, held)
    world.delete(service_path(namespace))
    eventually(lambda: world.children(namespace).keys() == {("ConfigMap", "chat-routing")}, "the others' end")
    made = world.make_service(namespace, placement=NOWHERE)
    eventually(lambda: ("Service", "chat") in world.children(namespace), "the new address")
    assert world.call("GET", held)["metadata"]["deletionTimestamp"], "it is left alone"
    eventually(lambda: reason(world, namespace, "Degraded") == "DeletionHeld", "what is waited for told")
    assert HOLD in condition(world.service(namespace), "Degraded")["message"]
    release(world, held)
    wait_until_settled(world, namespace)
    (owner,) = world.call("GET", held)["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]


def test_a_service_that_somebody_holds_leaves_nothing_once_it_is_let_go(world: World, namespace: str) -> None:
    make(world, namespace)
    path = service_path(namespace)
    hold(world, path)
    world.delete(path)
    assert world.call("GET", path)["metadata"]["finalizers"] == [HOLD]
    release(world, path)
    eventually(lambda: world.get(path) is None, "the service's end")
    eventually(lambda: not left(world, namespace), "the end of everything")
