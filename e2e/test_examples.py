"""Every manifest in ``examples/`` is applied as a reader would, and the operator makes all of it that it can.

What this cluster lacks for them (claims, a Secret, zones, an NFS server) is told. That chat.yaml gets Ready and answers
is shown by ``test_chat.py``, what keys do by ``test_tenants.py``: no engine starts here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support_crds import EXAMPLES

from operator_process import operator
from operator_setup import prepare
from world import World, condition, eventually

NAMESPACE = f"examples-{os.getpid()}"
VOLUMES = "/api/v1/persistentvolumes"
TENANTS = "tenants.yaml"
SCALED = "autoscaling.yaml"
SETTLE_SECONDS = 60
ENGINE_CHILDREN = ("ServiceAccount", "NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment")


@dataclass(frozen=True, slots=True)
class Expected:
    """What becomes of an example's service here."""

    file: str
    service: str
    arguments: frozenset[str]
    """Of the engine, some of those that the manifest asks for."""
    reason: str
    """Of the condition Ready, which is False."""
    lack: str
    """What the cluster lacks: in that condition's message or in an Event of a pod, which alone tells of volumes that
    cannot be mounted."""

    def __str__(self) -> str:
        return self.file


TABLE = (
    Expected(
        "complete.yaml",
        "complete",
        frozenset({"--model=/models/complete-7b", "--quantization=int8", "--context-length=32768"}),
        "Unschedulable",
        "persistentvolumeclaim",
    ),
    Expected(
        "huggingface.yaml",
        "qwen",
        frozenset({"--model=Qwen/Qwen3-0.6B@main", "--served-model-name=qwen"}),
        "ContainerConfigInvalid",
        'secret "hugging-face" not found',
    ),
    Expected("pod-template.yaml", "archive", frozenset({"--model=/weights/archive-7b"}), "ReplicasStarting", "nfs"),
    Expected(
        "replicas.yaml",
        "assistant",
        frozenset({"--model=Qwen/Qwen3-0.6B", "--drain-seconds=900.0"}),
        "Unschedulable",
        "topology spread constraints",
    ),
)


def kubectl(*args: str) -> str:
    done = subprocess.run(["kubectl", *args], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster with an operator, a volume for the claim ``models``, and the examples of the table."""
    site = prepare(tmp_path_factory.mktemp("examples"))
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/var/examples", "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": NAMESPACE, "name": "models"},
        },
    }
    secret = site.folder / "secret"
    secret.write_bytes(os.urandom(32).hex().encode())
    options = {
        "secret-file": secret,  # complete.yaml asks for keys
        "engine-image": "e2e/shell:1",  # ends at once: engines would compile for half a minute that nobody waits for
    }
    with operator(site.kubeconfig(), site.folder / "log", identity="examples", options=options) as process:
        process.wait_until_leading()
        site.world.make_namespace(NAMESPACE)
        site.world.apply(VOLUMES, volume)
        for file in (TENANTS, SCALED, *(expected.file for expected in TABLE)):
            kubectl("apply", "--namespace", NAMESPACE, "--filename", f"examples/{file}")
        yield site.world
        for file in (TENANTS, SCALED, *(expected.file for expected in TABLE)):
            kubectl("delete", "--wait=false", "--namespace", NAMESPACE, "--filename", f"examples/{file}")
        site.world.delete(f"{VOLUMES}/{NAMESPACE}")
        site.world.delete(f"/api/v1/namespaces/{NAMESPACE}")


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES} == {"chat.yaml", TENANTS, SCALED, *(expected.file for expected in TABLE)}


def test_the_tenants_of_an_example_are_known_by_their_keys(world: World) -> None:
    path = f"/apis/serving.sapwood.dev/v1alpha1/namespaces/{NAMESPACE}/tenants"

    def reasons() -> set[str]:
        return {condition(tenant, "Ready").get("reason", "") for tenant in world.items(path)}

    eventually(lambda: reasons() == {"Ready"}, "tenants that are ready")
    assert all(tenant["status"]["keys"] > 0 for tenant in world.items(path))
    service = eventually(lambda: world.service(NAMESPACE, "tenants"), "their service")
    assert service["spec"]["tenancy"]["authentication"] == "ApiKey"
    eventually(lambda: ("Service", "tenants") in world.children(NAMESPACE), "its address")


def test_the_policy_of_an_example_can_be_followed_and_counts_who_follows_it(world: World) -> None:
    path = f"/apis/serving.sapwood.dev/v1alpha1/namespaces/{NAMESPACE}/autoscalingpolicies/day"

    def is_told() -> bool:
        policy = world.get(path)
        return condition(policy, "Ready").get("status") == "True" and (policy or {})["status"]["services"] == 1

    eventually(is_told, "a policy that is ready and followed by one service")
    eventually(
        lambda: condition(world.service(NAMESPACE, "elastic"), "AutoscalingActive").get("status") == "True",
        "a service that is scaled",
    )


@pytest.mark.parametrize("expected", TABLE, ids=str)
def test_an_example_becomes_all_that_it_asks_for(world: World, expected: Expected) -> None:
    wanted = {(kind, f"{expected.service}-engine") for kind in ENGINE_CHILDREN}
    wanted |= {("Service", expected.service), ("ConfigMap", f"{expected.service}-routing")}
    eventually(lambda: wanted <= world.children(NAMESPACE).keys(), "the children")
    pod = world.children(NAMESPACE)["Deployment", f"{expected.service}-engine"]["spec"]["template"]["spec"]
    assert expected.arguments <= set(pod["containers"][0]["args"])


def test_the_ingress_that_an_example_asks_for_is_made(world: World) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/ingresses/complete"
    ingress = eventually(lambda: world.get(path), "the Ingress")
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["complete.example.com"], "secretName": "complete-tls"}]


@pytest.mark.usefixtures("harness")  # another cluster lacks other things
@pytest.mark.parametrize("expected", TABLE, ids=str)
def test_an_example_says_what_the_cluster_lacks(world: World, expected: Expected) -> None:
    def is_told() -> bool:
        verdict = condition(world.service(NAMESPACE, expected.service), "Ready")
        told = (verdict.get("message", ""), *pod_events(world, expected.service))
        return verdict.get("reason") == expected.reason and any(expected.lack in text for text in told)

    eventually(is_told, f"{expected.reason} with {expected.lack!r}", within_seconds=SETTLE_SECONDS)
    service = world.service(NAMESPACE, expected.service)
    assert condition(service, "Serving")["reason"] == "NoReplicaReady"
    assert condition(service, "Unsupported")["reason"] == "AllSupported"


def pod_events(world: World, service: str) -> list[str]:
    """What was told of the pods of a service."""
    events = world.items(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")
    return [event.get("note", "") for event in events if event["regarding"]["name"].startswith(f"{service}-engine-")]
