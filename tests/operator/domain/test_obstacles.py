"""Why a replica does not start: a message that names pod and cause, and stays the same while the cause does."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from support_operator import HASH, NOW, a_pod, ended, waiting

from sapwood_operator.domain.obstacles import (
    NO_OBSTACLE,
    VOLUME_PATIENCE,
    NoObstacle,
    Obstacle,
    pod_obstacle,
    seconds_to_obstacle,
)

BACK_OFF = 'Back-off pulling image "sapwood/engine:bad"'
NOT_FOUND = "rpc error: code = NotFound: not found"
STARTED_LAST = '{"event": "loading", "timestamp": "12:00:07"}\nsapwood: no such folder: /opt/model.\n'


def found(
    *pods: dict[str, Any], model_loaded: bool = False, now: datetime = NOW, **conditions: Any
) -> Obstacle | NoObstacle:
    deployment = {"status": {"conditions": list(conditions.values())}}
    return pod_obstacle(pods, deployment, model_loaded=model_loaded, now=now)


def cause(*pods: dict[str, Any], **rest: Any) -> Obstacle:
    obstacle = found(*pods, **rest)
    assert isinstance(obstacle, Obstacle)
    return obstacle


REASONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a bad image": (
        {"containers": [waiting("ErrImagePull", NOT_FOUND)]},
        "ImagePullFailed",
        f"cannot pull the image 'sapwood/engine:bad' ({NOT_FOUND})",
    ),
    "a missing secret": (
        {"containers": [waiting("CreateContainerConfigError", 'secret "hub" not found')]},
        "ContainerConfigInvalid",
        'cannot be started: secret "hub" not found',
    ),
    "a model that is not there": (
        {"containers": [waiting("CrashLoopBackOff", "back-off 10s", lastState=ended(1, STARTED_LAST))]},
        "EngineFailed",
        f"engine ended with exit code 1: no such folder: /opt/model; kubectl logs chat-engine-{HASH}-a --previous",
    ),
    "an option that cannot be used": (
        {"containers": [waiting("CrashLoopBackOff", lastState=ended(2, "sapwood: --page-size: 0 cannot be used"))]},
        "OptionsRefused",
        "engine ended with exit code 2: --page-size: 0 cannot be used; correct spec.engine",
    ),
    "too little memory": (
        {"containers": [waiting("CrashLoopBackOff", lastState=ended(137, reason="OOMKilled"))]},
        "OutOfMemory",
        "engine took more memory than it may; raise spec.resources.limits.memory",
    ),
    "a crash whose successor loads": (
        {"containers": [{"name": "engine", "state": {"running": {}}, "lastState": ended(1, "sapwood: broken file")}]},
        "EngineFailed",
        "ended with exit code 1: broken file",
    ),
    "a sidecar that ends": (
        {"containers": [waiting("CrashLoopBackOff", name="proxy", lastState=ended(0, "done"))]},
        "ContainerFailed",
        "proxy ended with exit code 0: done",
    ),
    "no room on any node": (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. no new claims to "
                    "deallocate, preemption: 0/3 nodes help.",
                }
            ],
        },
        "Unschedulable",
        "finds no node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_every_cause_has_its_reason_and_names_the_pod(name: str) -> None:
    pod, reason, message = REASONS[name]
    obstacle = cause(a_pod(**pod))
    assert obstacle.reason == reason
    assert obstacle.message.startswith(f"pod chat-engine-{HASH}-a")
    assert message in obstacle.message


@pytest.mark.parametrize("name", REASONS)
def test_a_pod_that_is_ready_or_leaves_or_is_replaced_is_no_cause(name: str) -> None:
    pod = REASONS[name][0]
    assert found(a_pod(**{**pod, "ready": True})) == NO_OBSTACLE
    assert found(a_pod(**pod, leaving=True)) == NO_OBSTACLE
    assert found(a_pod(**{**pod, "phase": "Failed"})) == NO_OBSTACLE


def test_an_image_that_is_tried_again_and_again_gives_one_message() -> None:
    tries = [
        waiting("ErrImagePull", NOT_FOUND),
        waiting("ImagePullBackOff", f"{BACK_OFF}: ErrImagePull: {NOT_FOUND}"),
    ]
    assert len({cause(a_pod(containers=[container])) for container in tries}) == 1
    assert "(" not in cause(a_pod(containers=[waiting("ImagePullBackOff", BACK_OFF)])).message


def test_an_engine_that_crashes_again_and_again_gives_one_message() -> None:
    last: dict[str, Any] = {"lastState": ended(1, STARTED_LAST)}
    stages = [
        {"name": "engine", "state": ended(1, STARTED_LAST)},
        waiting("CrashLoopBackOff", "back-off 10s restarting failed container", restartCount=1, **last),
        {"name": "engine", "state": {"running": {"startedAt": "12:00:10"}}, "restartCount": 2, **last},
        waiting("CrashLoopBackOff", "back-off 20s restarting failed container", restartCount=2, **last),
    ]
    assert len({cause(a_pod(containers=[container])) for container in stages}) == 1


def test_a_log_line_as_last_words_loses_its_time() -> None:
    line = '{"event": "the worker died", "timestamp": "2026-11-30T12:00:00Z", "level": "error"}'
    assert "exit code 1: the worker died;" in cause(a_pod(containers=[waiting("", lastState=ended(1, line))])).message


@pytest.mark.parametrize("words", ['{"event": "cut off', "x" * 5000, ""])
def test_last_words_are_bounded_and_may_be_anything(words: str) -> None:
    assert len(cause(a_pod(containers=[waiting("", lastState=ended(1, words))])).message) < 600


def test_of_several_pods_the_first_by_name_is_told() -> None:
    first = a_pod("chat-engine-b", containers=[waiting("ErrImagePull", "b")])
    second = a_pod("chat-engine-c", containers=[waiting("ErrImagePull", "c")])
    assert "chat-engine-b" in cause(second, first).message
    assert cause(second, first) == cause(first, second)


def test_a_crash_is_about_the_model_until_a_replica_has_loaded_it() -> None:
    pod = a_pod(containers=[waiting("CrashLoopBackOff", lastState=ended(1, "sapwood: x"))])
    assert cause(pod).about_model
    assert not cause(pod, model_loaded=True).about_model
    assert not cause(a_pod(containers=[waiting("ErrImagePull", "x")])).about_model


HELD = a_pod(
    phase="Pending",
    conditions=[
        {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": "2026-11-30T12:00:00Z"},
    ],
    containers=[waiting("ContainerCreating")],
) | {"spec": {"nodeName": "node-1", "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "cache", "nfs": {}}]}}
"""As it is while a volume cannot be mounted, and for a moment in the life of every pod."""


def test_a_pod_that_waits_too_long_for_its_volumes_says_so() -> None:
    assert cause(HELD, now=NOW + VOLUME_PATIENCE) == Obstacle(
        "VolumesNotReady",
        f"pod chat-engine-{HASH}-a waits on node node-1 for its volumes (cache) or its network; kubectl describe pod "
        f"chat-engine-{HASH}-a shows for what, and why",
    )
    assert cause(HELD, now=NOW + 2 * VOLUME_PATIENCE) == cause(HELD, now=NOW + VOLUME_PATIENCE), "written once"


def test_volumes_have_some_time_and_its_end_is_known() -> None:
    passed = timedelta(seconds=30)
    assert found(HELD, now=NOW + passed) == NO_OBSTACLE
    assert seconds_to_obstacle([HELD], NOW + passed) == (VOLUME_PATIENCE - passed).total_seconds()
    assert seconds_to_obstacle([HELD], NOW + VOLUME_PATIENCE) == math.inf


@pytest.mark.parametrize(
    "pod", [a_pod(), a_pod(phase="Pending"), {**HELD, "status": {**HELD["status"], "phase": "Running"}}]
)
def test_a_pod_that_waits_for_no_volume_has_no_end_of_patience(pod: dict[str, Any]) -> None:
    assert seconds_to_obstacle([pod], NOW) == math.inf
    assert found(pod, now=NOW + VOLUME_PATIENCE) == NO_OBSTACLE


LOST = a_pod(conditions=[{"type": "ContainersReady", "status": "True"}]) | {"spec": {"nodeName": "node-1"}}
"""As Kubernetes leaves a pod that was ready when its node fell silent."""


def test_a_pod_whose_node_is_silent_names_the_node() -> None:
    assert cause(LOST) == Obstacle(
        "NodeLost",
        f"node node-1 of pod chat-engine-{HASH}-a does not answer; kubectl describe node node-1 says more",
    )


def test_a_pod_that_only_waits_for_a_readiness_gate_has_not_lost_its_node() -> None:
    assert found({**LOST, "spec": {"nodeName": "node-1", "readinessGates": [{"conditionType": "x"}]}}) == NO_OBSTACLE


QUOTA = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": 'pods "chat-engine-7d9f8b6c5-x7k2p" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=2',
}


def test_pods_that_the_cluster_refuses_are_told_without_the_names_of_each_try() -> None:
    obstacle = cause(quota=QUOTA)
    assert obstacle.reason == "PodsRefused"
    assert "exceeded quota: pods, requested: pods=1, used: pods=2" in obstacle.message
    other_try = QUOTA | {"message": QUOTA["message"].replace("x7k2p", "abcde")}
    assert cause(quota=other_try) == obstacle


def test_a_rollout_without_progress_and_without_a_known_cause_says_so() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "…"}
    assert cause(a_pod(), late=late) == Obstacle(
        "ProgressDeadlineExceeded",
        f"chat-engine-{HASH}-a did not get ready in time; kubectl describe pod shows what it does",
    )


def test_a_pod_that_loads_is_no_obstacle() -> None:
    loading = a_pod(containers=[{"name": "engine", "state": {"running": {}}, "lastState": {}}])
    progressing = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
    assert found(loading, progressing=progressing) == NO_OBSTACLE
    assert found(a_pod(containers=[waiting("ContainerCreating")], phase="Pending")) == NO_OBSTACLE
