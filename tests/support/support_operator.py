"""Worlds for the operator's domain: live objects as an API server gives them, and what a plan makes of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sapwood_operator.autoscaling.values import Reading, StepCost
from sapwood_operator.domain import names
from sapwood_operator.domain.observed import ObjectRef, Observed, ref_of
from sapwood_operator.domain.plan import Plan, StatusChange, plan
from sapwood_operator.settings import OperatorSettings

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 30, 13, 0, tzinfo=UTC)
UID = "uid-of-chat"
BUILTIN: Mapping[str, Any] = {"source": {"builtin": "smollm2-135m"}}
HASH = "7d9f8b6c5"
OLD_HASH = "55c4dfb96"
REVISION = "deployment.kubernetes.io/revision"
DEPLOYMENT = ObjectRef("apps/v1", "Deployment", "team", "chat-engine")
ALL_APIS = frozenset(
    {
        ("networking.k8s.io/v1", "Ingress"),
        ("gateway.networking.k8s.io/v1", "HTTPRoute"),
        ("monitoring.coreos.com/v1", "PodMonitor"),
        ("monitoring.coreos.com/v1", "PrometheusRule"),
    }
)

SETTINGS = OperatorSettings(
    operator_namespace="sapwood-system",
    gateway_service="sapwood-gateway",
    gateway_namespace="sapwood-system",
    gateway_instance="sapwood",
    engine_image="sapwood/engine:1",
    engine_cuda_image="sapwood/engine-cuda:1",
    runbook_url="http://sapwood-operator.sapwood-system.svc/runbooks",
)
WITH_SECRET = dataclasses.replace(SETTINGS, secret=b"0123456789abcdef")
"""Of an operator that can let engines know the gateway."""


def a_service(name: str = "chat", *, uid: str = UID, generation: int = 1, **spec: Any) -> dict[str, Any]:
    """A live InferenceService; ``spec``: its fields, the builtin model where none is given."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": "team", "uid": uid, "generation": generation},
        "spec": {"model": BUILTIN, **spec},
    }


def seen(service: Mapping[str, Any], **rest: Any) -> Observed:
    """A world with this service and nothing else, unless ``rest`` says."""
    nothing: dict[str, Any] = {"children": {}, "pods": (), "replica_sets": (), "apis": frozenset()}
    return Observed(service=service, **{**nothing, **rest})


def after(world: Observed, plan: Plan) -> Observed:
    """The world once the plan is carried out and its watches have told it."""
    children = {ref: dict(child) for ref, child in world.children.items()}
    for delete in plan.deletes:
        del children[delete.ref]
    for desired in plan.applies:
        children[ref_of(desired)] = stored(desired, children.get(ref_of(desired)))
    service = dict(world.service)
    if isinstance(plan.status, StatusChange):
        service["status"] = plan.status.status
    return dataclasses.replace(world, children=children, service=service)


def stored(desired: Mapping[str, Any], former: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An applied object as the API server keeps it: an identity, a generation, and defaults that nobody asked for."""
    live = copy.deepcopy(dict(desired))
    before: dict[str, Any] = {"uid": f"uid-of-{live['kind']}"} if former is None else former["metadata"]
    live["metadata"] |= {"uid": before["uid"], "generation": before.get("generation", 0) + 1, "resourceVersion": "7"}
    if former is not None:
        live["metadata"]["annotations"] = {**former["metadata"]["annotations"], **live["metadata"]["annotations"]}
        live["status"] = former.get("status", {})
    if live["kind"] == "Deployment":
        pod = live["spec"]["template"]["spec"]
        pod |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler"}
        pod["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    if live["kind"] == "Service":
        live["spec"] |= {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}
    return live


def with_deployment(world: Observed, *, revision: int = 1, **status: Any) -> Observed:
    """The world with this status of the Deployment, seen by its controller unless ``status`` says."""
    children = {ref: dict(child) for ref, child in world.children.items()}
    live = copy.deepcopy(children[DEPLOYMENT])
    live["metadata"]["annotations"][REVISION] = str(revision)
    children[DEPLOYMENT] = live
    live["status"] = {"observedGeneration": live["metadata"]["generation"], **status}
    return dataclasses.replace(world, children=children)


def rolled_out(world: Observed, replicas: int) -> Observed:
    """The world with a Deployment that is done, and its pods."""
    world = with_deployment(
        world, replicas=replicas, updatedReplicas=replicas, readyReplicas=replicas, availableReplicas=replicas
    )
    pods = tuple(a_pod(f"chat-engine-{HASH}-{index}", ready=True) for index in range(replicas))
    return dataclasses.replace(world, pods=pods, replica_sets=(a_replica_set(ready=replicas),))


def a_replica_set(template_hash: str = HASH, *, revision: int = 1, ready: int = 0) -> dict[str, Any]:
    """A ReplicaSet of the Deployment."""
    return {
        "metadata": {
            "name": f"chat-engine-{template_hash}",
            "labels": {"pod-template-hash": template_hash},
            "annotations": {REVISION: str(revision)},
            "ownerReferences": [{"uid": "uid-of-Deployment", "controller": True}],
        },
        "status": {"readyReplicas": ready} if ready else {},
    }


def a_pod(
    name: str = f"chat-engine-{HASH}-a",
    *,
    template_hash: str = HASH,
    ready: bool = False,
    phase: str = "Running",
    leaving: bool = False,
    containers: Sequence[Mapping[str, Any]] = (),
    conditions: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """An engine pod."""
    metadata: dict[str, Any] = {"namespace": "team", "name": name, "uid": f"uid-of-{name}"}
    metadata["labels"] = {"pod-template-hash": template_hash}
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    return {
        "metadata": metadata,
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}, *conditions],
            "containerStatuses": list(containers),
        },
    }


STARTED: Sequence[Mapping[str, Any]] = ({"name": "engine", "started": True, "state": {"running": {}}},)
"""Container statuses of an engine that has been ready."""


def waiting(reason: str, message: str = "", *, name: str = "engine", **rest: Any) -> dict[str, Any]:
    """The status of a container that does not run."""
    return {
        "name": name,
        "image": "sapwood/engine:bad",
        "state": {"waiting": {"reason": reason, "message": message}},
    } | rest


def ended(exit_code: int, message: str = "", *, reason: str = "Error") -> dict[str, Any]:
    """The ``lastState`` of a container that ended."""
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def conditions_of(plan: Plan) -> dict[str, tuple[str, str]]:
    """Condition type -> status and reason, of a plan that writes a status."""
    assert isinstance(plan.status, StatusChange)
    return {c["type"]: (c["status"], c["reason"]) for c in plan.status.status["conditions"]}


def message_of(plan: Plan, type_: str) -> str:
    """The message of one condition of a plan that writes a status."""
    assert isinstance(plan.status, StatusChange)
    return str(next(c["message"] for c in plan.status.status["conditions"] if c["type"] == type_))


def planned(world: Observed, now: datetime = NOW) -> Plan:
    """One reconcile."""
    return plan(world, SETTINGS, now)


def carried_out(world: Observed) -> Observed:
    """The world once nothing is left to write; it takes two reconciles at most."""
    for _ in range(2):
        world = after(world, planned(world))
    assert planned(world) == Plan(requeue_after_seconds=SETTINGS.resync_seconds)
    return world


def converged(replicas: int = 2, **spec: Any) -> Observed:
    """A world in which everything is as the spec says."""
    service = a_service(replicas=replicas, **spec)
    return carried_out(rolled_out(carried_out(seen(service, apis=ALL_APIS)), replicas))


def changed(world: Observed, **spec: Any) -> Observed:
    """The world after the user changed these fields."""
    service = copy.deepcopy(dict(world.service))
    service["metadata"]["generation"] += 1
    service["spec"] |= spec
    return dataclasses.replace(world, service=service)


def kinds(plan_: Plan) -> list[str]:
    """Kinds of what is applied, in order."""
    return [child["kind"] for child in plan_.applies]


def reasons(plan_: Plan) -> list[str]:
    """Reasons of the events, in order."""
    return [event.reason for event in plan_.events]


def a_reading(prompt_tokens: float) -> Reading:
    """Of a replica that can prefill 1,000 tokens a second and gets so many."""
    return Reading(
        window_seconds=60.0,
        arrivals=prompt_tokens / 100,
        prompt_tokens=prompt_tokens,
        cached_tokens=0.0,
        generation_tokens=1.0,
        running=1.0,
        waiting=0.0,
        waiting_tokens=0.0,
        capacity_tokens=100_000.0,
        pinned_tokens=1_000.0,
        cost=StepCost(prefill_token=0.001, prefill_key=0.0, decode=0.001, decode_key=0.0, base=0.001),
    )
