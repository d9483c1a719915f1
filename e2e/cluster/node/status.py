"""What a pod's containers are doing, and how the Kubernetes API says it. Pure.

Times are RFC 3339 strings. The rules are the kubelet's: a pod is Pending until each container has run, Running until
none will run again; it is ready when each container is.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
RestartPolicy = Literal["Always", "OnFailure", "Never"]

KILLED = 128 + signal.SIGKILL
"""Exit code of a container that was killed."""
MESSAGE_BYTES = 4096
"""How long a termination message may be."""
LOG_MESSAGE_BYTES, LOG_MESSAGE_LINES = 2048, 80
"""How much of a log stands in for it (FallbackToLogsOnError)."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running; ``reason`` is what ``kubectl get pods`` shows, such as ImagePullBackOff."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    started_at: str


@dataclass(frozen=True, slots=True)
class Terminated:
    exit_code: int
    message: str
    started_at: str
    finished_at: str
    container_id: str

    @property
    def reason(self) -> str:
        return "Completed" if self.exit_code == 0 else "Error"


@dataclass(frozen=True, slots=True)
class NeverTerminated:
    """There is no earlier run of the container."""


State = Waiting | Running | Terminated
Last = Terminated | NeverTerminated


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container as it is now; ``container_id`` is empty until it has run."""

    name: str
    image: str
    state: State
    last: Last = NeverTerminated()
    restarts: int = 0
    is_started: bool = False
    """Its startup probe has passed."""
    is_ready: bool = False
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod as it is now; ``address`` is empty until it has a network."""

    restart_policy: RestartPolicy
    init_containers: Sequence[ContainerView]
    containers: Sequence[ContainerView]
    is_initialized: bool
    started_at: str
    address: str
    node_address: str


def first_view(pod: Mapping[str, Any], container: Mapping[str, Any], now: str) -> ContainerView:
    """Return how a container looks before this agent did anything for it.

    One that has a status with an id was run by an earlier agent, with which it ended.
    """
    reason = "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"
    view = ContainerView(container["name"], container["image"], Waiting(reason))
    status = pod.get("status", {})
    known = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    for earlier in known:
        if earlier["name"] == view.name and earlier.get("containerID"):
            started_at = earlier["state"].get("running", {}).get("startedAt", now)
            last = Terminated(KILLED, "ended with the agent of its node", started_at, now, earlier["containerID"])
            view = replace(view, last=last, restarts=earlier["restartCount"] + 1, container_id=earlier["containerID"])
    return view


def will_run_again(policy: RestartPolicy, exit_code: int) -> bool:
    """Return whether a container that ended so is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def phase_of(pod: PodView) -> Phase:
    """Return the pod's phase."""
    failed_init = [view for view in pod.init_containers if _has_failed(pod.restart_policy, view.state)]
    if failed_init:
        return "Failed"
    if not pod.is_initialized or any(_has_never_run(view) for view in pod.containers):
        return "Pending"
    ended = [view.state for view in pod.containers if isinstance(view.state, Terminated)]
    if len(ended) < len(pod.containers) or any(will_run_again(pod.restart_policy, state.exit_code) for state in ended):
        return "Running"
    return "Failed" if any(state.exit_code for state in ended) else "Succeeded"


def _has_never_run(view: ContainerView) -> bool:
    return isinstance(view.state, Waiting) and isinstance(view.last, NeverTerminated)


def _has_failed(policy: RestartPolicy, state: State) -> bool:
    return isinstance(state, Terminated) and state.exit_code != 0 and not will_run_again(policy, state.exit_code)


def status_of(pod: PodView, phase: Phase, previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the ``status`` of the pod; a condition that is as in the ``previous`` status keeps its transition time."""
    is_ready = phase == "Running" and all(view.is_ready for view in pod.containers)
    is_over = phase in ("Succeeded", "Failed")
    facts = {
        "PodReadyToStartContainers": bool(pod.address) and not is_over,
        "Initialized": pod.is_initialized,
        "ContainersReady": is_ready,
        "Ready": is_ready,
        "PodScheduled": True,
    }
    unready = [view.name for view in pod.containers if not view.is_ready]
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": pod.started_at,
        "hostIP": pod.node_address,
        "hostIPs": [{"ip": pod.node_address}],
        "conditions": [_condition(kind, holds, unready, previous, now) for kind, holds in facts.items()],
        "containerStatuses": [container_status(view) for view in pod.containers],
    }
    if pod.init_containers:
        status["initContainerStatuses"] = [container_status(view) for view in pod.init_containers]
    if pod.address:
        status |= {"podIP": pod.address, "podIPs": [{"ip": pod.address}]}
    return status


def _condition(kind: str, holds: bool, unready: Sequence[str], previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    # Written even where there is none: what is left out of a patch stays as it was.
    condition: dict[str, Any] = {"type": kind, "status": str(holds), "reason": None, "message": None}
    if not holds and kind in ("Ready", "ContainersReady"):
        condition["reason"] = "ContainersNotReady"
        condition["message"] = f"containers with unready status: [{' '.join(unready)}]"
    before: Mapping[str, Any] = next((one for one in previous.get("conditions", []) if one["type"] == kind), {})
    is_same = before.get("status") == condition["status"]
    return condition | {"lastTransitionTime": before["lastTransitionTime"] if is_same else now}


def container_status(view: ContainerView) -> dict[str, Any]:
    """Return one entry of ``containerStatuses``."""
    return {
        "name": view.name,
        "image": view.image,
        "imageID": f"process://{view.image}" if view.container_id else "",
        "containerID": view.container_id,
        "ready": view.is_ready,
        "started": view.is_started,
        "restartCount": view.restarts,
        "state": _state(view.state),
        "lastState": {} if isinstance(view.last, NeverTerminated) else _state(view.last),
    }


def _state(state: State) -> dict[str, Any]:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at):
            return {"running": {"startedAt": started_at}}
        case Terminated(exit_code, message, started_at, finished_at, container_id):
            times = {"startedAt": started_at, "finishedAt": finished_at, "containerID": container_id}
            told = {"message": message} if message else {}
            return {"terminated": {"exitCode": exit_code, "reason": state.reason, **times, **told}}


def termination_message(written: bytes, log: bytes, policy: str, exit_code: int) -> str:
    """Return what a container says about its end: what it wrote to its message file, or the end of its log if it wrote
    nothing, failed, and its ``policy`` is FallbackToLogsOnError."""
    if written or policy != "FallbackToLogsOnError" or exit_code == 0:
        return written[:MESSAGE_BYTES].decode(errors="replace")
    lines = log[-LOG_MESSAGE_BYTES:].splitlines(keepends=True)[-LOG_MESSAGE_LINES:]
    return b"".join(lines).decode(errors="replace")
