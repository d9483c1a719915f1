"""One replica as a value, and as the Pod that Kubernetes would show: the domain's decisions read the latter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.domain.pod_marks import COST_ANNOTATION
from sapwood_operator.local.world import ServiceKey

HASH_LABEL = "pod-template-hash"
LOOPBACK = "127.0.0.1"
_NODE = "this machine"
_SOME_TIME = "1970-01-01T00:00:00Z"
"""Of a deletion: that there is one is all that anybody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where an engine listens, on the loopback address."""

    http: int
    admin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int
    """As a shell tells it: 128 + n where signal n ended it."""
    last_words: str
    """The end of what it wrote."""


@dataclass(frozen=True, slots=True)
class Starting:
    """It runs, and has not been ready yet."""


@dataclass(frozen=True, slots=True)
class Serving:
    """It has been ready since it was started last."""

    is_ready: bool
    since: datetime
    """When it came to be ready, or not ready, with a time zone."""


@dataclass(frozen=True, slots=True)
class Resting:
    """It has ended, and is started again when its time has come."""

    until: float
    """On the monotonic clock, in seconds."""


@dataclass(frozen=True, slots=True)
class NotMade:
    """It cannot be started as things are."""

    problem: str


Condition = Starting | Serving | Resting | NotMade


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One replica at one moment."""

    service: ServiceKey
    name: str
    uid: str
    template_hash: str
    template: Mapping[str, Any]
    """Of the Deployment, as it was when the pod was made."""
    number: int
    """Rises with every pod that is made."""
    ports: Ports
    created: datetime
    """With a time zone."""
    condition: Condition = Starting()
    num_restarts: int = 0
    last_exit: Exit | None = None
    """Of the run before the present one; None: there was none."""
    is_leaving: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    """What the domain has written on it."""

    @property
    def is_ready(self) -> bool:
        """Whether it may get requests."""
        return isinstance(self.condition, Serving) and self.condition.is_ready

    @property
    def deletion_cost(self) -> int:
        """Among pods that are as ready the one with the lowest goes first."""
        return int(self.annotations.get(COST_ANNOTATION, "0"))

    @property
    def runs(self) -> bool:
        """Whether it has a process."""
        return isinstance(self.condition, Starting | Serving)


def pod_object(pod: Pod) -> dict[str, Any]:
    """Return the Pod as the API server would show it."""
    metadata: dict[str, Any] = {
        "name": pod.name,
        "namespace": pod.service.namespace,
        "uid": pod.uid,
        "creationTimestamp": pod.created.isoformat(),
        "labels": {**pod.template["metadata"]["labels"], HASH_LABEL: pod.template_hash},
        "annotations": dict(pod.annotations),
    }
    if pod.is_leaving:
        metadata["deletionTimestamp"] = _SOME_TIME
    was_made = pod.runs or pod.last_exit is not None
    ports = [{"name": "http", "containerPort": pod.ports.http}, {"name": "admin", "containerPort": pod.ports.admin}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": _NODE, "containers": [{"name": ENGINE_CONTAINER, "ports": ports}]},
        "status": {
            "phase": "Running" if was_made else "Pending",
            "podIP": LOOPBACK,
            "conditions": [_ready_condition(pod)],
            "containerStatuses": [_container_status(pod)],
        },
    }


def _ready_condition(pod: Pod) -> dict[str, str]:
    condition = {"type": "Ready", "status": "True" if pod.is_ready else "False"}
    if isinstance(pod.condition, Serving):
        condition["lastTransitionTime"] = pod.condition.since.isoformat()
    return condition


def _container_status(pod: Pod) -> dict[str, Any]:
    ended = {} if pod.last_exit is None else {"terminated": _terminated(pod.last_exit)}
    return {
        "name": ENGINE_CONTAINER,
        "started": isinstance(pod.condition, Serving),
        "ready": pod.is_ready,
        "restartCount": pod.num_restarts,
        "state": _state(pod.condition),
        "lastState": ended,
    }


def _state(condition: Condition) -> dict[str, Any]:
    match condition:
        case Starting() | Serving():
            return {"running": {}}
        case Resting():
            return {"waiting": {"reason": "CrashLoopBackOff"}}
        case NotMade(problem):
            return {"waiting": {"reason": "CreateContainerConfigError", "message": problem}}


def _terminated(end: Exit) -> dict[str, Any]:
    reason = "Completed" if end.code == 0 else "Error"
    return {"exitCode": end.code, "reason": reason, "message": end.last_words}
