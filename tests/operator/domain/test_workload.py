"""How far the pods are, read from live objects."""

from __future__ import annotations

from typing import Any

from support_operator import HASH, NOW, OLD_HASH, STARTED, a_pod, a_replica_set, waiting

from sapwood_operator.domain.obstacles import NO_OBSTACLE
from sapwood_operator.domain.workload import Workload, read_workload

DEPLOYMENT: dict[str, Any] = {
    "metadata": {
        "uid": "uid-of-Deployment",
        "generation": 2,
        "annotations": {"deployment.kubernetes.io/revision": "10"},
    },
    "status": {
        "observedGeneration": 2,
        "replicas": 3,
        "updatedReplicas": 1,
        "readyReplicas": 2,
        "availableReplicas": 2,
    },
}
BAD_IMAGE = a_pod(containers=[waiting("ErrImagePull", "not found")])


def workload(*pods: dict[str, Any], replica_sets: tuple[dict[str, Any], ...] = (), written: bool = True) -> Workload:
    return read_workload(DEPLOYMENT, replica_sets, pods, wanted=2, written=written, now=NOW)


def test_the_deployment_counts() -> None:
    seen = workload()
    assert (seen.total, seen.updated, seen.ready, seen.available, seen.old) == (3, 1, 2, 2, 2)
    assert seen.settled


def test_pods_that_run_and_are_not_ready_warm_up_and_those_that_leave_drain() -> None:
    pods = [
        a_pod("loads"),
        a_pod("serves", ready=True),
        a_pod("is made", phase="Pending"),
        a_pod("finishes", ready=True, leaving=True, containers=STARTED),
        a_pod("finishes unready", leaving=True, containers=STARTED),
        a_pod("has ended", phase="Succeeded", leaving=True),
        a_pod("never got its image", phase="Pending", leaving=True, containers=[waiting("ErrImagePull")]),
        a_pod("loads no more", leaving=True, containers=[{"name": "engine", "started": False}]),
    ]
    seen = workload(*pods)
    assert (seen.warming, seen.draining) == (1, 2)


def test_a_pod_that_is_sent_nothing_new_drains_and_serves_no_more() -> None:
    pods = [a_pod("stays", ready=True, containers=STARTED), a_pod("goes", ready=True, containers=STARTED)]
    pods.append(a_pod("never was ready"))
    cordoned = ("goes", "never was ready")
    seen = read_workload(DEPLOYMENT, (), pods, wanted=1, written=True, now=NOW, cordoned=cordoned)
    assert (seen.draining, seen.warming, seen.ready, seen.serving) == (1, 0, 2, 1)


def test_without_a_deployment_pods_are_all_that_counts() -> None:
    leaving = a_pod("finishes", leaving=True, containers=STARTED)
    seen = read_workload(None, (), (leaving,), wanted=2, written=False, now=NOW)
    assert seen == Workload(wanted=2, exists=False, settled=False, draining=1)


def test_the_model_is_loaded_when_a_pod_of_the_newest_revision_is_ready() -> None:
    old, new = a_replica_set(OLD_HASH, revision=9, ready=2), a_replica_set(HASH, revision=10)
    assert not workload(replica_sets=(old, new)).model_loaded
    assert workload(replica_sets=(old, a_replica_set(HASH, revision=10, ready=1))).model_loaded


def test_a_replica_set_of_another_deployment_says_nothing() -> None:
    other = a_replica_set(OLD_HASH, revision=10, ready=1)
    other["metadata"]["ownerReferences"] = [{"uid": "another", "controller": True}]
    assert not workload(replica_sets=(other, a_replica_set(revision=10))).model_loaded


def test_before_a_change_is_taken_up_nothing_is_said_of_its_pods_or_its_model() -> None:
    behind = workload(BAD_IMAGE, replica_sets=(a_replica_set(revision=10, ready=1),), written=False)
    assert not behind.settled
    assert not behind.model_loaded
    assert behind.obstacle == NO_OBSTACLE
    assert workload(BAD_IMAGE, replica_sets=(a_replica_set(revision=10),)).obstacle != NO_OBSTACLE


def test_a_pod_of_a_former_revision_hinders_nothing_any_more() -> None:
    mended = (a_replica_set(HASH, revision=9), a_replica_set(OLD_HASH, revision=10))
    assert workload(BAD_IMAGE, a_pod("loads", template_hash=OLD_HASH), replica_sets=mended).obstacle == NO_OBSTACLE


def test_before_the_replica_set_of_the_revision_is_seen_no_pod_hinders() -> None:
    assert workload(BAD_IMAGE, replica_sets=(a_replica_set(HASH, revision=9),)).obstacle == NO_OBSTACLE
    assert workload(BAD_IMAGE).obstacle == NO_OBSTACLE
