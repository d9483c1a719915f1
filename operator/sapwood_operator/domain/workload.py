"""How far the pods are: the Deployment's own count, and whether it is about what is desired now."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.domain.observed import is_leaving
from sapwood_operator.domain.obstacles import (
    NO_OBSTACLE,
    NoObstacle,
    Obstacle,
    is_ready,
    pod_obstacle,
    seconds_to_obstacle,
)

REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
"""Of a Deployment and of its ReplicaSets: which one is the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The replicas of one service."""

    wanted: int
    exists: bool
    """Whether there is a Deployment."""
    settled: bool
    """Whether the counts are about the revision that is desired: neither a write nor the controller is behind."""
    total: int = 0
    updated: int = 0
    ready: int = 0
    available: int = 0
    warming: int = 0
    """Pods that run and are not ready."""
    draining: int = 0
    """Pods that finish their requests before they go: cordoned, or being deleted."""
    cordoned: int = 0
    """Ready pods that are sent nothing new."""
    model_loaded: bool = False
    """Whether a pod of the current revision is ready."""
    obstacle: Obstacle | NoObstacle = NO_OBSTACLE
    seconds_to_obstacle: float = math.inf
    """After which a pod's waiting becomes an obstacle, with no event to tell of it."""

    @property
    def serving(self) -> int:
        """Pods that take new requests."""
        return max(0, self.ready - self.cordoned)

    @property
    def old(self) -> int:
        """Pods of former revisions."""
        return max(0, self.total - self.updated)


def read_workload(
    deployment: Mapping[str, Any] | None,
    replica_sets: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    *,
    wanted: int,
    written: bool,
    now: datetime,
    cordoned: Collection[str] = (),
) -> Workload:
    """Read live objects. ``deployment``: None where there is none. ``written``: it is as desired, no write is due.

    ``cordoned``: names of pods that are sent nothing new.
    """
    held = [pod for pod in pods if not is_leaving(pod) and pod["metadata"]["name"] in cordoned]
    going = [*held, *(pod for pod in pods if is_leaving(pod))]
    warming = sum(not is_ready(pod) and _runs(pod) for pod in pods if pod not in going)
    draining = sum(_runs(pod) and _has_served(pod) for pod in going)
    if deployment is None:
        return Workload(wanted=wanted, exists=False, settled=False, warming=warming, draining=draining)
    status = deployment.get("status") or {}
    current = _current(deployment, replica_sets)
    current_pods = [pod for pod in pods if current and _template_hash(pod) == _template_hash(current)]
    model_loaded = bool((current.get("status") or {}).get("readyReplicas"))
    settled = written and status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 1)
    return Workload(
        wanted=wanted,
        exists=True,
        settled=settled,
        total=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        warming=warming,
        draining=draining,
        cordoned=sum(map(is_ready, held)),
        model_loaded=model_loaded and settled,
        # Before that, what is in the way may be in the way of the former revision only.
        obstacle=pod_obstacle(current_pods, deployment, model_loaded=model_loaded, now=now) if settled else NO_OBSTACLE,
        seconds_to_obstacle=seconds_to_obstacle(current_pods, now),
    )


def _runs(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


def _has_served(pod: Mapping[str, Any]) -> bool:
    """Whether its engine has been ready: one that never was, or failed since, has no requests to finish."""
    statuses = pod["status"].get("containerStatuses") or ()
    return any(status["name"] == ENGINE_CONTAINER and status.get("started") for status in statuses)


def _current(deployment: Mapping[str, Any], replica_sets: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the ReplicaSet of the Deployment's revision; empty where it is not seen yet."""
    uid, revision = deployment["metadata"].get("uid"), _revision(deployment)
    own = (rs for rs in replica_sets if any(o.get("uid") == uid for o in rs["metadata"].get("ownerReferences") or ()))
    return next((rs for rs in own if _revision(rs) == revision), {})


def _revision(document: Mapping[str, Any]) -> str:
    return str((document["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION, ""))


def _template_hash(document: Mapping[str, Any]) -> str:
    """Return what a ReplicaSet and its pods have in common."""
    return str((document["metadata"].get("labels") or {}).get("pod-template-hash", ""))
