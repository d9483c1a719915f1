"""A HorizontalPodAutoscaler decides how many replicas there are, the operator who goes: Kubernetes' own controller, and
pods that say of themselves what the test has them say.

The tests of ``chat`` go through one rise and one fall of its load, each from where the one before it left it.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support_docs import blocks

from cluster.audit import AuditLog
from cluster.layout import Layout
from elastic import Elastic
from external_metrics import ExternalMetrics, external_metrics
from operator_process import operator
from operator_setup import NAMESPACE as SYSTEM
from operator_setup import USER, Site, prepare
from own_servers import publish, serving
from stand_ins import STAND_IN, OneGateway, say
from waiting_services import NOWHERE
from world import JsonObject, Refused, World, child_path, condition, eventually, service_path

NAMESPACE = f"hpa-{os.getpid()}"
CONTROLLER = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
GATEWAY = "hpa-gateway"
METRIC = "sapwood_requests_in_flight"
REQUESTS_PER_REPLICA = 8
"""As documented."""
PATIENCE_SECONDS = 60
_AUTOSCALERS = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"


@pytest.fixture(scope="module")
def site(harness: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = prepare(tmp_path_factory.mktemp("hpa"))
    found.world.make_namespace(NAMESPACE)
    yield found
    found.world.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture(scope="module")
def world(site: Site) -> World:
    return site.world


@pytest.fixture(scope="module")
def metrics(harness: Layout, world: World) -> Iterator[ExternalMetrics]:
    with external_metrics(harness, world, NAMESPACE) as found:
        found.values[METRIC] = REQUESTS_PER_REPLICA // 2
        yield found


@pytest.fixture(scope="module")
def gateway(site: Site) -> Iterator[OneGateway]:
    """The only gateway, and an operator that asks it."""
    found = OneGateway(NAMESPACE)
    with serving(found.answer) as port:
        publish(site.world, SYSTEM, GATEWAY, port)
        options = {"gateway-service": GATEWAY, "gateway-admin-port": port}
        with operator(site.kubeconfig(), site.folder / "log", identity="hpa", options=options) as process:
            process.wait_until_leading()
            yield found
        for collection in ("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", "/api/v1/namespaces/{}/services"):
            site.world.delete(f"{collection.format(SYSTEM)}/{GATEWAY}")


@pytest.fixture(scope="module")
def chat(world: World, metrics: ExternalMetrics, gateway: OneGateway) -> Iterator[Elastic]:
    """A service of one replica, and its HorizontalPodAutoscaler."""
    found = Elastic(world, "", NAMESPACE, "chat")
    found.apply(replicas=1, **STAND_IN)
    found.wait(lambda: found.says("Ready", "True"), "a ready service", within_seconds=PATIENCE_SECONDS)
    autoscale(world, "chat")
    yield found
    found.delete()


def autoscale(world: World, name: str) -> None:
    """Make a HorizontalPodAutoscaler for a service: the documented one, but that it does not wait before it falls."""
    spec = documented()["spec"]
    spec["scaleTargetRef"]["name"] = name
    spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    manifest = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}}
    world.apply(_AUTOSCALERS, {**manifest, "spec": spec})


def documented() -> JsonObject:
    """Return the HorizontalPodAutoscaler that our page on scaling shows."""
    manifests = [yaml.safe_load(block.code) for block in blocks(Path("docs/scaling.md"), "yaml")]
    (found,) = (each for each in manifests if each.get("kind") == "HorizontalPodAutoscaler")
    assert isinstance(found, dict)
    return found


def told(world: World, name: str, type_: str) -> JsonObject:
    """A condition of a HorizontalPodAutoscaler; empty where it has none yet."""
    return condition(world.get(f"{_AUTOSCALERS}/{name}"), type_)


@dataclass(frozen=True, slots=True)
class Began:
    """A moment."""

    version: str
    """Of all objects."""
    position: int
    """Of the audit log."""


def numbers(world: World, path: str, version: str) -> list[int]:
    """Return the replicas that an object asked for, one and whatever it was changed to after ``version``."""
    asked = [1]
    for each in world.history(path, version):
        if each["spec"]["replicas"] != asked[-1]:
            asked.append(each["spec"]["replicas"])
    return asked


@pytest.fixture(scope="module")
def began(chat: Elastic, audit: AuditLog) -> Began:
    """Before anything rose."""
    return Began(chat.service["metadata"]["resourceVersion"], audit.position())


def test_a_metric_that_rises_adds_replicas(chat: Elastic, began: Began, metrics: ExternalMetrics, world: World) -> None:
    metrics.values[METRIC] = 3 * REQUESTS_PER_REPLICA
    chat.wait(
        lambda: len(chat.ready()) == 3 and chat.says("Ready", "True"),
        "three replicas",
        within_seconds=PATIENCE_SECONDS,
    )
    scale = world.call("GET", f"{service_path(NAMESPACE)}/scale")
    assert scale["spec"]["replicas"] == scale["status"]["replicas"] == 3
    selector = urllib.parse.quote(scale["status"]["selector"])
    counted = world.items(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")
    assert {pod["metadata"]["name"] for pod in counted} == {pod["metadata"]["name"] for pod in chat.pods()}


def test_a_metric_that_falls_sends_away_the_replica_with_least_to_lose_once_it_is_empty(
    chat: Elastic, began: Began, metrics: ExternalMetrics, gateway: OneGateway
) -> None:
    # The oldest: by age it would be the last to go.
    victim, *others = chat.pods()
    name = victim["metadata"]["name"]
    say(victim, worth_tokens=50, num_requests=1)
    for number, pod in enumerate(others):
        say(pod, worth_tokens=400 + number)
    gateway.requests = {name: 1}
    metrics.values[METRIC] = 2 * REQUESTS_PER_REPLICA
    chat.wait(lambda: chat.says("Draining", "True"), "a replica that leaves", within_seconds=PATIENCE_SECONDS)
    assert [entry["pod"] for entry in chat.autoscaling["leaving"]] == [name]
    assert chat.service["spec"]["replicas"] == 2
    assert chat.asked == 3, "its request would be cut"

    gateway.requests = {name: 0}
    say(victim, worth_tokens=50)
    chat.wait(
        lambda: len(chat.pods()) == 2 and chat.says("Ready", "True"), "two replicas", within_seconds=PATIENCE_SECONDS
    )
    assert [pod["metadata"]["uid"] for pod in chat.pods()] == [pod["metadata"]["uid"] for pod in others]
    assert chat.asked == 2


def test_nobody_undoes_what_the_autoscaler_wrote_and_the_operator_writes_no_number_itself(
    chat: Elastic, began: Began, world: World, audit: AuditLog
) -> None:
    for path in (service_path(NAMESPACE), child_path(NAMESPACE, "Deployment", "chat-engine")):
        assert numbers(world, path, began.version) == [1, 3, 2]
    kind = "serving.sapwood.dev/inferenceservices"
    calls = [call for call in audit.calls(began.position) if call.is_write and call.namespace == NAMESPACE]
    writes = {(call.user, call.resource) for call in calls if call.resource.startswith(kind)}
    assert writes == {(USER, f"{kind}/status"), (CONTROLLER, f"{kind}/scale")}
    assert sum(call.resource == f"{kind}/scale" and call.code == 200 for call in calls) == 2


def test_a_manifest_that_leaves_the_number_out_leaves_it_to_the_autoscaler(chat: Elastic) -> None:
    chat.apply(**STAND_IN)
    assert chat.service["spec"]["replicas"] == 2


@pytest.fixture
def own(world: World, metrics: ExternalMetrics, gateway: OneGateway) -> Iterator[Elastic]:
    """A service that the operator scales, and an autoscaler that somebody made for it."""
    found = Elastic(world, "", NAMESPACE, "own")
    found.apply(placement=NOWHERE, autoscaling={"maxReplicas": 2})
    autoscale(world, "own")
    yield found
    found.delete()


def test_an_autoscaler_is_told_that_a_service_has_another_one_until_a_number_takes_its_place(
    own: Elastic, world: World
) -> None:
    def is_able(status: str) -> bool:
        return told(world, "own", "AbleToScale").get("status") == status

    eventually(lambda: is_able("False"), "a refusal", within_seconds=PATIENCE_SECONDS)
    refusal = told(world, "own", "AbleToScale")
    assert refusal["reason"] == "FailedGetScale"
    assert "spec.replicas" in refusal["message"]
    with pytest.raises(Refused, match="replicas and autoscaling both decide the number of replicas; remove one"):
        world.edit(f"{service_path(NAMESPACE, 'own')}/scale", {"spec": {"replicas": 2}})

    own.apply(placement=NOWHERE, replicas=1)
    eventually(lambda: own.service["spec"]["replicas"] == 2, "the autoscaler's number", within_seconds=PATIENCE_SECONDS)
    eventually(lambda: is_able("True"), "no refusal any more", within_seconds=PATIENCE_SECONDS)
