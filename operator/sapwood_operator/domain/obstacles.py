"""Why a replica does not start: one cause, named with its pod, that stays the same text until the cause changes.

What Kubernetes says changes by the second (retries, back-off, names of pods that were never made). A status that
repeated it would be written as often; so messages are made of what is stable in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.domain.observed import is_leaving

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_EXIT_USAGE = 2
"""Of ``sapwood serve``: an option cannot be used."""
_MAX_WORDS_CHARACTERS = 400
VOLUME_PATIENCE = timedelta(minutes=2)
"""How long a node may take over a pod's volumes and network before that is an obstacle; so long its own agent waits."""
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(?:: )?(?:ErrImagePull: )?')
_UNMADE_POD = re.compile(r'pods "([-a-z0-9.]+)-[a-z0-9]{5}"')


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a service from what its spec asks for."""

    reason: str
    """In one word, for programs."""
    message: str
    """Which pod or object, the cause and what to do."""
    about_model: bool = False
    """Whether the model itself is out of reach."""


@dataclass(frozen=True, slots=True)
class NoObstacle:
    """Nothing is known to be in the way."""


NO_OBSTACLE = NoObstacle()


def pod_obstacle(
    pods: Sequence[Mapping[str, Any]], deployment: Mapping[str, Any], *, model_loaded: bool, now: datetime
) -> Obstacle | NoObstacle:
    """Return the first cause, by the pods' names, that keeps one of ``pods`` from getting ready.

    ``pods``: of the current revision; what hinders a former one will be gone with it. ``model_loaded``: one of them is
    ready, so an engine that ends has another cause than the model.
    """
    waiting = _waiting(pods)
    for pod in waiting:
        for found in _causes(pod, model_loaded=model_loaded, now=now):
            return found
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = _UNMADE_POD.sub(r'pods "\1-…"', condition.get("message", ""))
            return Obstacle("PodsRefused", f"the cluster refuses new pods: {message}")
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            names = ", ".join(pod["metadata"]["name"] for pod in waiting[:1]) or "the new pods"
            return Obstacle(
                "ProgressDeadlineExceeded",
                f"{names} did not get ready in time; kubectl describe pod shows what it does",
            )
    return NO_OBSTACLE


_ENDED = ("Succeeded", "Failed")
"""Such a pod stays to be looked at; the Deployment has replaced it."""


def seconds_to_obstacle(pods: Sequence[Mapping[str, Any]], now: datetime) -> float:
    """Return after how many seconds `pod_obstacle` may find a cause that no event tells of; infinite where none may."""
    ends = [since + VOLUME_PATIENCE for pod in _waiting(pods) if (since := held_since(pod)) is not None]
    return min(((end - now).total_seconds() for end in ends if end > now), default=math.inf)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod takes traffic."""
    return _condition(pod, "Ready").get("status") == "True"


def held_since(pod: Mapping[str, Any]) -> datetime | None:
    """Return since when the pod's node has been making its volumes and network; None: it is not, or is done."""
    sandbox = _condition(pod, "PodReadyToStartContainers")
    if _phase(pod) != "Pending" or sandbox.get("status") != "False" or not sandbox.get("lastTransitionTime"):
        return None
    return datetime.fromisoformat(sandbox["lastTransitionTime"])


def _waiting(pods: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    waiting = [pod for pod in pods if not is_leaving(pod) and not is_ready(pod) and _phase(pod) not in _ENDED]
    return sorted(waiting, key=lambda pod: str(pod["metadata"]["name"]))


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _condition(pod: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    return next((c for c in pod.get("status", {}).get("conditions") or () if c["type"] == type_), {})


def _causes(pod: Mapping[str, Any], *, model_loaded: bool, now: datetime) -> Iterator[Obstacle]:
    name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "")
    status = pod.get("status", {})
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("reason") == "Unschedulable":
        # What the scheduler tried besides, preemption and claims, follows in sentences of their own.
        message = scheduled.get("message", "").partition(". ")[0].rstrip(".")
        yield Obstacle("Unschedulable", f"pod {name} finds no node: {message}")
    if _has_lost_its_node(pod):
        yield Obstacle("NodeLost", f"node {node} of pod {name} does not answer; kubectl describe node {node} says more")
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        yield from _container_causes(name, container, model_loaded=model_loaded)
    since = held_since(pod)
    if since is not None and now - since >= VOLUME_PATIENCE:
        volumes = ", ".join(v["name"] for v in pod.get("spec", {}).get("volumes") or () if "emptyDir" not in v)
        yield Obstacle(
            "VolumesNotReady",
            f"pod {name} waits on node {node} for its volumes{volumes and f' ({volumes})'} or its network; kubectl "
            f"describe pod {name} shows for what, and why",
        )


def _has_lost_its_node(pod: Mapping[str, Any]) -> bool:
    """A node's agent writes both conditions at once. Where they differ, Kubernetes has taken back one of them since,
    because the agent is silent; a readiness gate is the other reason there is.
    """
    has_gates = bool(pod.get("spec", {}).get("readinessGates"))
    return _condition(pod, "ContainersReady").get("status") == "True" and not has_gates


def _container_causes(pod: str, container: Mapping[str, Any], *, model_loaded: bool) -> Iterator[Obstacle]:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        detail = _last_words(_BACK_OFF.sub("", message))
        because = f" ({detail})" if detail else ""
        yield Obstacle(
            "ImagePullFailed",
            f"pod {pod} cannot pull the image {container.get('image', '')!r}{because}; correct the image's name, or "
            "give the namespace the right to pull it",
        )
    elif reason in _CONFIG_REASONS:
        about_model = "secret" in message.lower() and container["name"] == ENGINE_CONTAINER
        yield Obstacle("ContainerConfigInvalid", f"pod {pod} cannot be started: {message}", about_model)
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    if ended and (ended.get("exitCode", 0) != 0 or reason == "CrashLoopBackOff"):
        yield _ended(pod, container["name"], ended, model_loaded=model_loaded)


def _ended(pod: str, container: str, ended: Mapping[str, Any], *, model_loaded: bool) -> Obstacle:
    code = ended.get("exitCode", 0)
    if ended.get("reason") == "OOMKilled":
        return Obstacle(
            "OutOfMemory",
            f"pod {pod}: {container} took more memory than it may; raise spec.resources.limits.memory, or lower "
            "spec.engine.memoryFraction or contextLength",
        )
    words = _last_words(ended.get("message", ""))
    message = f"pod {pod}: {container} ended with exit code {code}" + (f": {words}" if words else "")
    if container != ENGINE_CONTAINER:
        return Obstacle("ContainerFailed", message)
    if code == _EXIT_USAGE:
        return Obstacle("OptionsRefused", f"{message}; correct spec.engine or spec.model")
    return Obstacle("EngineFailed", f"{message}; kubectl logs {pod} --previous shows more", not model_loaded)


def _last_words(text: str) -> str:
    """Return what a program said last, without times: its own ``sapwood: …`` line if it wrote one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("sapwood: ")]
    last = (own or lines or [""])[-1].removeprefix("sapwood: ").rstrip(".")
    if last.startswith("{"):
        try:
            last = str(json.loads(last).get("event", ""))
        except ValueError:
            last = ""  # the beginning of a log line that was cut
    return last if len(last) <= _MAX_WORDS_CHARACTERS else last[: _MAX_WORDS_CHARACTERS - 1] + "…"
