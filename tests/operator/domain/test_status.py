"""What the status says: Ready never lies, a message names pod and cause, and the Events tell the story in order."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from support_operator import (
    HASH,
    LATER,
    NOW,
    OLD_HASH,
    STARTED,
    WITH_SECRET,
    a_pod,
    a_replica_set,
    a_service,
    after,
    carried_out,
    changed,
    conditions_of,
    converged,
    ended,
    message_of,
    planned,
    reasons,
    seen,
    waiting,
    with_deployment,
)

from sapwood_operator.domain.observed import Observed
from sapwood_operator.domain.plan import StatusChange, Unchanged, plan


def rolling(world: Observed, *pods: dict[str, Any], **status: Any) -> Observed:
    """The world after a change of the image, its Deployment written and taken up, with these pods and counts."""
    world = changed(world, engine={"image": "sapwood/engine:bad"})
    world = after(world, planned(world))
    world = with_deployment(world, revision=2, **status)
    old = tuple(a_pod(f"chat-engine-{OLD_HASH}-{n}", template_hash=OLD_HASH, ready=True) for n in range(2))
    sets = (a_replica_set(OLD_HASH, revision=1, ready=2), a_replica_set(HASH, revision=2))
    return replace(world, pods=(*old, *pods), replica_sets=sets)


QUOTA = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": f'pods "chat-engine-{HASH}-x7k2p" is forbidden: exceeded quota: pods, used: pods=2, limited: pods=2',
}


def test_old_pods_that_are_ready_do_not_make_a_refused_generation_ready() -> None:
    world = rolling(converged(), replicas=2, readyReplicas=2, availableReplicas=2, conditions=[QUOTA])
    step = planned(world)
    assert conditions_of(step)["Ready"] == ("False", "PodsRefused")
    assert conditions_of(step)["Serving"] == ("True", "ReplicasReady")
    assert "exceeded quota" in message_of(step, "Ready")


def test_a_generation_that_is_rolled_out_in_part_is_not_ready() -> None:
    world = rolling(converged(), a_pod(), replicas=3, updatedReplicas=1, readyReplicas=2, availableReplicas=2)
    assert conditions_of(planned(world))["Ready"] == ("False", "RolloutInProgress")


def test_pods_that_crash_after_having_been_ready_make_the_service_not_ready() -> None:
    world = converged()
    crashed = waiting("CrashLoopBackOff", lastState=ended(1, "sapwood: the worker died"))
    pods = tuple(a_pod(f"chat-engine-{HASH}-{n}", containers=[crashed]) for n in range(2))
    world = replace(with_deployment(world, replicas=2, updatedReplicas=2), pods=pods)
    step = planned(world)
    assert conditions_of(step)["Ready"] == ("False", "EngineFailed")
    assert conditions_of(step)["Serving"] == ("False", "NoReplicaReady")
    assert f"pod chat-engine-{HASH}-0: engine ended with exit code 1: the worker died" in message_of(step, "Ready")
    assert reasons(step) == ["EngineFailed", "NotServing"]


def test_counts_of_a_generation_that_the_controller_has_not_seen_make_nothing_ready() -> None:
    world = converged()
    done = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}
    behind = with_deployment(world, **done, observedGeneration=0)
    assert conditions_of(planned(behind))["Ready"] == ("False", "Updating")


def test_the_service_is_ready_again_only_when_all_of_it_is_updated_and_ready() -> None:
    world = rolling(converged(), replicas=2, updatedReplicas=2, readyReplicas=2, availableReplicas=2)
    assert conditions_of(planned(world))["Ready"] == ("True", "AllReplicasReady")


def test_a_bad_image_stops_the_rollout_and_the_message_names_pod_and_cause() -> None:
    bad = a_pod(containers=[waiting("ErrImagePull", "not found")], phase="Pending")
    world = rolling(converged(), bad, replicas=3, updatedReplicas=1, readyReplicas=2, availableReplicas=2)
    step = planned(world)
    assert conditions_of(step)["Degraded"] == ("True", "ImagePullFailed")
    assert message_of(step, "Ready") == (
        f"pod chat-engine-{HASH}-a cannot pull the image 'sapwood/engine:bad' (not found); correct the image's name, "
        "or give the namespace the right to pull it. 2 of 2 replicas of the former revision go on serving"
    )
    told = after(world, step)
    again = waiting("ImagePullBackOff", 'Back-off pulling image "sapwood/engine:bad": ErrImagePull: not found')
    later = replace(told, pods=(*told.pods[:2], a_pod(containers=[again], phase="Pending")))
    assert planned(later, now=LATER).status == Unchanged()


def test_a_bad_model_says_so_apart_from_the_old_pods_that_serve() -> None:
    bad = a_pod(containers=[waiting("CrashLoopBackOff", lastState=ended(1, "sapwood: no such repository: o/n"))])
    world = rolling(converged(), bad, replicas=3, updatedReplicas=1, readyReplicas=2, availableReplicas=2)
    conditions = conditions_of(planned(world))
    assert conditions["ModelAvailable"] == ("False", "EngineFailed")
    assert conditions["Serving"] == ("True", "ReplicasReady")


def test_a_rollout_is_told_from_beginning_to_end() -> None:
    world = changed(converged(2), engine={"image": "sapwood/engine:2"})
    new = a_pod(f"chat-engine-{HASH}-new")
    old = a_pod(f"chat-engine-{OLD_HASH}-0", template_hash=OLD_HASH, ready=True, leaving=True, containers=STARTED)
    sets = (a_replica_set(OLD_HASH, revision=1), a_replica_set(HASH, revision=2, ready=1))
    stages: list[dict[str, Any]] = [
        {},
        {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2, "availableReplicas": 2, "pods": (new,)},
        {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, "availableReplicas": 1, "pods": (new, old)},
        {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2, "pods": ()},
    ]
    story: list[str] = []
    for stage in stages:
        if stage:
            pods = stage.pop("pods")
            world = replace(with_deployment(world, revision=2, **stage), pods=pods, replica_sets=sets)
        step = planned(world)
        story += reasons(step)
        world = after(world, step)
    assert story == ["RolloutStarted", "Draining", "Ready"]


# --- Facts in the status


def test_the_status_counts_replicas_and_says_where_the_service_is() -> None:
    loading, leaving = a_pod("b"), a_pod("c", ready=True, leaving=True, containers=STARTED)
    world = with_deployment(
        carried_out(seen(a_service(replicas=2, generation=4))),
        replicas=2,
        updatedReplicas=2,
        readyReplicas=1,
        availableReplicas=1,
    )
    step = planned(replace(world, pods=(a_pod("a", ready=True), loading, leaving)))
    assert isinstance(step.status, StatusChange)
    status = {name: value for name, value in step.status.status.items() if name != "conditions"}
    assert status == {
        "observedGeneration": 4,
        "desiredReplicas": 2,
        "replicas": 2,
        "readyReplicas": 1,
        "updatedReplicas": 2,
        "warmingReplicas": 1,
        "drainingReplicas": 1,
        "selector": (
            "app.kubernetes.io/component=engine,app.kubernetes.io/instance=chat,app.kubernetes.io/name=sapwood"
        ),
        "url": "http://chat.team.svc.cluster.local",
    }


def test_what_others_keep_in_the_status_stays() -> None:
    world = converged()
    service = copy.deepcopy(dict(world.service))
    service["status"] |= {"autoscaling": {"desired": 2}, "adapters": [{"name": "sql"}]}
    step = planned(changed(replace(world, service=service), replicas=3))
    assert isinstance(step.status, StatusChange)
    assert step.status.status["autoscaling"] == {"desired": 2}
    assert step.status.status["adapters"] == [{"name": "sql"}]


def test_a_service_that_asks_for_keys_has_no_address_without_a_secret_and_says_what_to_set() -> None:
    world = seen(a_service(tenancy={"authentication": "ApiKey"}))
    step = planned(world)
    assert isinstance(step.status, StatusChange)
    assert "url" not in step.status.status
    assert conditions_of(step)["Ready"] == ("False", "SecretMissing")
    assert conditions_of(step)["Degraded"] == ("True", "SecretMissing")
    assert "start both with --secret-file" in message_of(step, "Ready")
    served = plan(world, WITH_SECRET, NOW)
    assert isinstance(served.status, StatusChange)
    assert served.status.status["url"] == "http://chat.team.svc.cluster.local"
    assert conditions_of(served)["Degraded"] == ("False", "AsExpected")
