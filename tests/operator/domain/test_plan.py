"""One reconcile, decided: what is written and deleted, what is left alone, and that it comes to rest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support_operator import (
    ALL_APIS,
    DEPLOYMENT,
    LATER,
    NOW,
    SETTINGS,
    a_pod,
    a_replica_set,
    a_service,
    after,
    carried_out,
    changed,
    conditions_of,
    converged,
    kinds,
    message_of,
    planned,
    reasons,
    rolled_out,
    seen,
    stored,
    with_deployment,
)

from sapwood_operator.domain.observed import ApplyProblem, ObjectRef, Observed, ref_of
from sapwood_operator.domain.obstacles import VOLUME_PATIENCE
from sapwood_operator.domain.plan import Plan, StatusChange, Unchanged, plan

ROUTING = ObjectRef("v1", "ConfigMap", "team", "chat-routing")
EXPOSED = {"ingress": {"host": "chat.example.com"}, "gateway": {"parentRefs": [{"name": "edge"}]}}


# --- Convergence


def test_a_new_service_is_given_all_its_children_with_the_address_last() -> None:
    first = planned(seen(a_service()))
    assert kinds(first) == [
        "ServiceAccount",
        "NetworkPolicy",
        "Service",
        "PodDisruptionBudget",
        "Deployment",
        "ConfigMap",
        "Service",
    ]
    assert conditions_of(first)["Ready"] == ("False", "Creating")
    assert reasons(first) == ["Created"]


@pytest.mark.parametrize(
    "spec", [{}, {"exposure": EXPOSED}, {"engine": {"device": "CUDA"}}], ids=["plain", "exposed", "GPU"]
)
def test_a_converged_service_needs_no_write_however_often_it_is_looked_at(spec: dict[str, Any]) -> None:
    world = converged(**spec)
    for _ in range(5):
        assert planned(world, now=LATER) == Plan(requeue_after_seconds=SETTINGS.resync_seconds)


def test_a_new_service_takes_few_writes_until_it_is_ready() -> None:
    world = seen(a_service())
    stages: list[Callable[[Observed], Observed]] = [
        lambda w: w,
        lambda w: with_deployment(w, replicas=1, updatedReplicas=1, unavailableReplicas=1),
        lambda w: replace(w, pods=(a_pod(),), replica_sets=(a_replica_set(),)),
        lambda w: rolled_out(w, 1),
    ]
    num_writes = 0
    for stage in stages:
        world = stage(world)
        step = planned(world)
        num_writes += len(step.applies) + len(step.events) + isinstance(step.status, StatusChange)
        world = after(world, step)
    assert conditions_of(planned(replace(world, service=a_service())))["Ready"][0] == "True"
    assert num_writes <= 15


def test_a_service_that_is_being_deleted_needs_nothing() -> None:
    world = converged()
    leaving = copy.deepcopy(dict(world.service))
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert planned(replace(world, service=leaving)) == Plan(requeue_after_seconds=SETTINGS.resync_seconds)
    assert planned(seen(leaving)) == Plan(requeue_after_seconds=SETTINGS.resync_seconds)


def test_a_service_restored_from_a_backup_is_made_although_it_says_that_it_was() -> None:
    backup = copy.deepcopy(dict(converged().service))
    backup["metadata"] |= {"uid": "another", "generation": 1, "annotations": {"serving.sapwood.dev/applied": "x"}}
    step = planned(seen(backup))
    assert len(step.applies) == 7
    assert conditions_of(step)["Ready"] == ("False", "Creating")


@pytest.mark.parametrize(
    "kind", ["ServiceAccount", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "PodMonitor", "PrometheusRule"]
)
def test_a_child_deleted_by_hand_is_made_anew(kind: str) -> None:
    world = converged()
    (gone,) = [ref for ref in world.children if ref.kind == kind]
    step = planned(replace(world, children={r: c for r, c in world.children.items() if r != gone}))
    assert [ref_of(child) for child in step.applies] == [gone]
    assert step.status == Unchanged()


def test_both_services_deleted_by_hand_are_made_anew() -> None:
    world = converged()
    left = {r: c for r, c in world.children.items() if r.kind != "Service"}
    assert kinds(planned(replace(world, children=left))) == ["Service", "Service"]


def test_without_its_deployment_a_service_is_not_ready_until_it_has_one_again() -> None:
    world = converged()
    left = {r: c for r, c in world.children.items() if r != DEPLOYMENT}
    step = planned(replace(world, children=left, pods=(), replica_sets=()))
    assert kinds(step) == ["Deployment"]
    assert conditions_of(step)["Ready"] == ("False", "Creating")
    assert conditions_of(step)["Serving"][0] == "False"
    assert "NotServing" in reasons(step)


def test_a_deployment_paused_by_hand_goes_on() -> None:
    world = converged()
    paused = copy.deepcopy(dict(world.children[DEPLOYMENT]))
    paused["spec"]["paused"] = True
    step = planned(replace(world, children={**world.children, DEPLOYMENT: paused}))
    assert [child["spec"]["paused"] for child in step.applies] == [False]


def test_an_image_edited_by_hand_is_set_back_and_the_status_says_not_ready_meanwhile() -> None:
    world = converged()
    children = copy.deepcopy(dict(world.children))
    live: Any = children[DEPLOYMENT]
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    step = planned(replace(world, children=children))
    assert kinds(step) == ["Deployment"]
    assert conditions_of(step)["Ready"] == ("False", "Updating")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every number, text and switch in an object."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))
    else:
        yield path


def edited(live: Mapping[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """The object with another value there."""
    copied = copy.deepcopy(dict(live))
    inner: Any = copied
    for key in path[:-1]:
        inner = inner[key]
    former = inner[path[-1]]
    inner[path[-1]] = not former if isinstance(former, bool) else former + 7 if isinstance(former, int) else "edited"
    return copied


@pytest.mark.parametrize("gateway_namespace", ["team", "elsewhere"])
def test_any_field_of_any_child_that_is_edited_by_hand_is_set_back(gateway_namespace: str) -> None:
    settings = replace(SETTINGS, gateway_namespace=gateway_namespace)
    service = a_service(replicas=2, exposure=EXPOSED, resources={"limits": {"memory": "2Gi"}})
    desired = plan(seen(service, apis=ALL_APIS), settings, NOW).applies
    world = seen(service, apis=ALL_APIS, children={ref_of(child): stored(child) for child in desired})
    assert plan(world, settings, NOW).applies == ()
    for child in desired:
        for path in places(child):
            if path[0] in ("apiVersion", "kind") or path in (("metadata", "name"), ("metadata", "namespace")):
                continue
            if path[:2] == ("metadata", "ownerReferences"):
                continue  # then it is somebody else's
            children = {**world.children, ref_of(child): edited(world.children[ref_of(child)], path)}
            assert plan(replace(world, children=children), settings, NOW).applies == (child,), (child["kind"], path)


def test_a_value_that_the_api_server_stores_as_another_is_written_once() -> None:
    world = seen(a_service(replicas=0, podTemplate={"spec": {"dnsPolicy": ""}}))
    world = rolled_out(after(world, planned(world)), 0)
    assert world.children[DEPLOYMENT]["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"
    assert kinds(planned(world)) == ["Deployment"]
    answered = replace(world, answers=world.children)
    assert kinds(planned(answered)) == []
    assert conditions_of(planned(answered))["Ready"][0] == "True"
    children = copy.deepcopy(dict(world.children))
    live: Any = children[DEPLOYMENT]
    live["spec"]["template"]["spec"]["dnsPolicy"] = "Default"
    assert kinds(planned(replace(answered, children=children))) == ["Deployment"]
    assert kinds(planned(changed(answered, podTemplate={"spec": {"dnsPolicy": "None"}}))) == ["Deployment"]


def test_a_child_that_is_being_deleted_is_waited_for() -> None:
    world = converged()
    children = copy.deepcopy(dict(world.children))
    leaving: Any = children[DEPLOYMENT]
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    step = planned(replace(world, children=children))
    assert step.applies == ()
    assert conditions_of(step)["Ready"] == ("False", "Updating")


def leaving_with(finalizer: str, ref: ObjectRef) -> Plan:
    world = converged()
    children = copy.deepcopy(dict(world.children))
    leaving: Any = children[ref]
    leaving["metadata"] |= {"deletionTimestamp": "2026-11-30T12:00:00Z", "finalizers": [finalizer]}
    return planned(replace(world, children=children))


@pytest.mark.parametrize("ref", [DEPLOYMENT, ObjectRef("v1", "Service", "team", "chat-engine")])
def test_a_child_that_cannot_go_for_a_finalizer_is_told_with_its_name(ref: ObjectRef) -> None:
    step = leaving_with("example.com/keep", ref)
    assert ref not in map(ref_of, step.applies)
    assert conditions_of(step)["Ready"] == ("False", "DeletionHeld")
    assert message_of(step, "Degraded") == (
        f"{ref} is being deleted and waits for the finalizer example.com/keep, which whoever set it has to remove; it "
        "is made anew then"
    )
    assert reasons(step) == ["DeletionHeld"]


def test_a_child_of_a_former_service_that_cannot_go_is_not_called_somebody_elses() -> None:
    world = converged()
    namesake = replace(world, service=a_service(uid="of the new one"))
    children = copy.deepcopy(dict(world.children))
    leaving: Any = children[ROUTING]
    leaving["metadata"] |= {"deletionTimestamp": "2026-11-30T12:00:00Z", "finalizers": ["example.com/keep"]}
    step = planned(replace(namesake, children={ROUTING: leaving}))
    assert ROUTING not in map(ref_of, step.applies)
    assert conditions_of(step)["Ready"] == ("False", "DeletionHeld")


@pytest.mark.parametrize("finalizer", ["foregroundDeletion", "orphan"])
def test_a_finalizer_that_kubernetes_itself_works_off_is_nothing_to_tell(finalizer: str) -> None:
    assert conditions_of(leaving_with(finalizer, DEPLOYMENT))["Degraded"] == ("False", "AsExpected")


def test_the_operators_own_new_version_writes_what_it_renders_differently() -> None:
    step = plan(converged(), replace(SETTINGS, engine_image="sapwood/engine:2"), NOW)
    assert kinds(step) == ["Deployment"]


# --- Replicas


def test_a_service_is_looked_at_again_when_a_wait_becomes_an_obstacle() -> None:
    world = with_deployment(converged())
    since = NOW.isoformat()
    held = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since}
    pods = (a_pod(phase="Pending", conditions=[held]),)
    world = replace(world, pods=pods, replica_sets=(a_replica_set(),))
    assert plan(world, SETTINGS, NOW).requeue_after_seconds == VOLUME_PATIENCE.total_seconds()
    late = plan(world, SETTINGS, LATER)
    assert late.requeue_after_seconds == SETTINGS.resync_seconds
    assert conditions_of(late)["Degraded"] == ("True", "VolumesNotReady")


def test_what_an_autoscaler_set_stays_in_every_write() -> None:
    world = carried_out(seen(a_service(autoscaling={"minReplicas": 1, "maxReplicas": 8})))
    children = copy.deepcopy(dict(world.children))
    scaled: Any = children[DEPLOYMENT]
    scaled["spec"]["replicas"] = 4
    world = replace(world, children=children)
    for step in (planned(world), planned(changed(world, engine={"contextLength": 512}))):
        assert all(child["spec"]["replicas"] == 4 for child in step.applies)
    assert kinds(planned(changed(world, engine={"contextLength": 512}))) == ["Deployment"]


def test_scaling_writes_the_deployment_alone_and_is_told() -> None:
    step = planned(changed(converged(2), replicas=3))
    assert [(c["kind"], c["spec"]["replicas"]) for c in step.applies] == [("Deployment", 3)]
    assert reasons(step) == ["Scaled"]


def test_a_service_of_no_replicas_is_ready_and_does_not_serve() -> None:
    world = carried_out(rolled_out(carried_out(seen(a_service(replicas=0))), 0))
    status = {c["type"]: c["status"] for c in world.service["status"]["conditions"]}
    assert (status["Ready"], status["Serving"]) == ("True", "False")


# --- Ownership


def a_stranger(api_version: str, kind: str, name: str) -> tuple[ObjectRef, dict[str, Any]]:
    """An object of somebody else."""
    metadata = {"name": name, "namespace": "team", "uid": "stranger"}
    return ObjectRef(api_version, kind, "team", name), {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def test_an_object_of_somebody_else_is_never_written_and_the_rest_is_made() -> None:
    ref, other = a_stranger("v1", "Service", "chat")
    step = planned(seen(a_service(), children={ref: other}))
    assert ref not in {ref_of(child) for child in step.applies}
    assert len(step.applies) == 6
    assert conditions_of(step)["Degraded"] == ("True", "NameTaken")
    assert "Service team/chat exists and belongs to somebody else" in message_of(step, "Ready")
    assert step.requeue_after_seconds == SETTINGS.retry_seconds


def test_the_deployment_of_somebody_else_counts_for_nothing() -> None:
    ref, other = a_stranger("apps/v1", "Deployment", "chat-engine")
    other |= {"spec": {"replicas": 3}, "status": {"readyReplicas": 3, "replicas": 3}}
    step = planned(seen(a_service(), children={ref: other}))
    assert conditions_of(step)["Serving"][0] == "False"


@pytest.mark.parametrize(("api_version", "kind"), sorted(ALL_APIS | {("autoscaling/v2", "HorizontalPodAutoscaler")}))
def test_an_object_of_somebody_else_is_never_deleted(api_version: str, kind: str) -> None:
    ref, other = a_stranger(api_version, kind, "chat")
    world = converged(observability={"podMonitor": "Disabled", "alerts": False})
    assert planned(replace(world, children={**world.children, ref: other})).deletes == ()


def test_an_object_of_a_former_service_of_the_same_name_is_not_deleted_by_the_new_one() -> None:
    world = converged(exposure=EXPOSED)
    (ref,) = [ref for ref in world.children if ref.kind == "Ingress"]
    children = copy.deepcopy(dict(world.children))
    stale: Any = children[ref]
    stale["metadata"]["ownerReferences"][0]["uid"] = "of-the-former-one"
    assert planned(replace(changed(world, exposure={}), children=children)).deletes == tuple(
        delete for delete in planned(changed(world, exposure={})).deletes if delete.ref != ref
    )


def test_nobody_watches_a_service_that_does_not_want_it_any_more() -> None:
    deletes = planned(changed(converged(), observability={"podMonitor": "Disabled", "alerts": False})).deletes
    assert [(d.ref.kind, d.ref.name, d.uid) for d in deletes] == [
        ("PodMonitor", "chat-engine", "uid-of-PodMonitor"),
        ("PrometheusRule", "chat-engine", "uid-of-PrometheusRule"),
    ]


def test_what_is_ours_and_no_longer_wanted_is_deleted_by_its_uid() -> None:
    deletes = planned(changed(converged(exposure=EXPOSED), exposure={})).deletes
    assert [(d.ref.kind, d.ref.name, d.uid) for d in deletes] == [
        ("HTTPRoute", "chat", "uid-of-HTTPRoute"),
        ("Ingress", "chat", "uid-of-Ingress"),
    ]


def test_nothing_is_deleted_because_an_api_is_not_seen_for_a_while() -> None:
    assert planned(replace(converged(exposure=EXPOSED), apis=frozenset())).deletes == ()


def test_an_owned_object_of_a_kind_that_the_operator_does_not_make_is_not_deleted() -> None:
    world = converged()
    ref, other = a_stranger("v1", "Secret", "chat-notes")
    other["metadata"]["ownerReferences"] = [{"uid": world.service["metadata"]["uid"]}]
    assert planned(replace(world, children={**world.children, ref: other})).deletes == ()


def orphaned(child: Mapping[str, Any], owners: list[dict[str, Any]]) -> dict[str, Any]:
    left = copy.deepcopy(dict(child))
    left["metadata"]["ownerReferences"] = owners
    return left


def test_children_orphaned_by_a_former_service_are_taken_over() -> None:
    world = converged()
    children = {ref: orphaned(child, []) for ref, child in world.children.items()}
    assert len(planned(replace(world, children=children)).applies) == len(children)


def test_children_that_another_object_controls_are_not_taken_over() -> None:
    world = converged()
    owners = [{"uid": "another", "controller": True}]
    children = {ref: orphaned(child, owners) for ref, child in world.children.items()}
    step = planned(replace(world, children=children))
    assert step.applies == ()
    assert conditions_of(step)["Degraded"] == ("True", "NameTaken")


def test_an_address_that_belongs_to_somebody_else_is_not_told() -> None:
    world = converged()
    assert "url" in world.service["status"]
    address = ObjectRef("v1", "Service", "team", "chat")
    stranger = {**world.children[address], "metadata": {"name": "chat", "namespace": "team"}}
    step = planned(replace(world, children={**world.children, address: stranger}))
    assert conditions_of(step)["Degraded"] == ("True", "NameTaken")
    assert isinstance(step.status, StatusChange)
    assert "url" not in step.status.status


# --- Refusals


def test_what_the_api_server_refuses_is_told_and_tried_again_soon() -> None:
    problem = ApplyProblem(DEPLOYMENT, "Forbidden", "exceeded quota: count/deployments.apps=1")
    step = planned(seen(a_service(), problems=(problem,)))
    assert conditions_of(step)["Ready"] == ("False", "ApplyRefused")
    assert message_of(step, "Degraded") == (
        "the API server refuses Deployment team/chat-engine (Forbidden): exceeded quota: count/deployments.apps=1"
    )
    assert DEPLOYMENT in {ref_of(child) for child in step.applies}
    assert step.requeue_after_seconds == SETTINGS.retry_seconds
    assert reasons(step) == ["ApplyRefused"]


def test_a_deletion_that_the_api_server_refuses_is_told_too() -> None:
    world = changed(converged(exposure=EXPOSED), exposure={})
    ref = next(delete.ref for delete in planned(world).deletes)
    step = planned(replace(world, problems=(ApplyProblem(ref, "Forbidden", "not yours"),)))
    assert conditions_of(step)["Degraded"] == ("True", "ApplyRefused")


def test_a_refusal_of_what_is_no_longer_to_be_written_is_forgotten() -> None:
    world = converged()
    problem = ApplyProblem(DEPLOYMENT, "Forbidden", "exceeded quota")
    assert planned(replace(world, problems=(problem,))) == Plan(requeue_after_seconds=SETTINGS.resync_seconds)


def test_a_spec_that_cannot_be_used_takes_nothing_away() -> None:
    world = converged()
    step = planned(changed(world, engine={"extraArgs": ["--sed=1"]}))
    assert (step.applies, step.deletes) == ((), ())
    assert conditions_of(step)["Ready"] == ("False", "InvalidSpec")
    assert conditions_of(step)["Serving"] == ("True", "ReplicasReady")
    assert "spec.engine.extraArgs" in message_of(step, "Ready")
    assert isinstance(step.status, StatusChange)
    assert step.status.status["desiredReplicas"] == 2
    assert step.status.status["url"] == "http://chat.team.svc.cluster.local"
    assert reasons(step) == ["InvalidSpec"]


def test_a_spec_that_is_mended_heals() -> None:
    world = converged()
    broken = changed(world, engine={"extraArgs": ["--sed=1"]})
    mended = changed(after(broken, planned(broken)), engine={})
    step = planned(mended)
    assert conditions_of(step)["Ready"] == ("True", "AllReplicasReady")
    assert reasons(step) == ["Ready"]


@pytest.mark.parametrize("name", ["a" * 41, "a" * 63, "123a"])
def test_a_name_that_children_cannot_have_is_a_condition_and_makes_nothing(name: str) -> None:
    step = planned(seen(a_service(name)))
    assert step.applies == ()
    assert conditions_of(step)["Degraded"] == ("True", "InvalidSpec")
    assert "metadata.name" in message_of(step, "Degraded")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "10.0.0.1",
        "chat.team",
        "sapwood-gateway.sapwood-system",
        "b.team-b.svc",
        "b.team-b.svc.cluster.local",
    ],
)
@pytest.mark.parametrize("way", ["ingress", "gateway"])
def test_a_host_that_means_something_inside_of_the_cluster_cannot_be_claimed(way: str, host: str) -> None:
    claims = {"ingress": {"host": host}, "gateway": {"parentRefs": [{"name": "edge"}], "hostnames": ["x.com", host]}}
    step = planned(seen(a_service(exposure={way: claims[way]}), apis=ALL_APIS))
    assert step.applies == ()
    assert conditions_of(step)["Ready"] == ("False", "InvalidSpec")
    assert f"spec.exposure: '{host}' cannot be used: it is a name inside of the cluster" in message_of(step, "Ready")


@pytest.mark.parametrize(
    "host", ["chat.example.com", "example.com", "chat.svc.example.com", "*.example.com", "team.dev"]
)
def test_a_host_from_outside_can_be_claimed(host: str) -> None:
    assert planned(seen(a_service(exposure={"ingress": {"host": host}}))).applies


def test_fields_that_are_not_built_are_named_and_pods_are_made_from_the_rest() -> None:
    exposure = {"inferencePool": {"create": True}}
    step = planned(seen(a_service(engine={"grammarBackend": "XGrammar"}, exposure=exposure)))
    assert "Deployment" in kinds(step)
    assert conditions_of(step)["Unsupported"] == ("True", "NotBuiltYet")
    assert "spec.engine.grammarBackend, spec.exposure.inferencePool" in message_of(step, "Unsupported")


def test_an_exposure_that_the_cluster_has_no_api_for_degrades_and_the_rest_is_made() -> None:
    step = planned(seen(a_service(exposure=EXPOSED)))
    assert len(step.applies) == 7
    assert conditions_of(step)["Degraded"] == ("True", "ApiMissing")
    assert "spec.exposure.gateway needs HTTPRoute of gateway.networking.k8s.io/v1" in message_of(step, "Degraded")
