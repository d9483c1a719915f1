"""``kubectl sapwood explain``: why a service is not ready, pod by pod, what to do, how it scales, its last events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sapwood_operator.domain.intent import SCALING_CONDITIONS
from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.domain.obstacles import NoObstacle, Obstacle, held_since, is_ready, pod_obstacle
from sapwood_operator.domain.workload import REVISION_ANNOTATION
from sapwood_operator.kubectl.picture import JsonObject, Picture, is_ready_tenant, ready_condition
from sapwood_operator.kubectl.scaling import render_scaling
from sapwood_operator.kubectl.text import age, columns

LAST_EVENTS = 10
_HEALTHY = {"Ready": "True", "Serving": "True", "ModelAvailable": "True"}
"""Status that a condition has when all is well; ``False`` for those that are not here."""


def render_explain(picture: Picture, *, now: datetime) -> str:
    """Return the text; ages are counted up to ``now``."""
    parts = [
        _headline(picture),
        _troubles(picture),
        render_scaling(picture, now=now),
        _tenants(picture),
        _rollout(picture),
        _pods(picture, now),
        _events(picture, now),
    ]
    return "\n".join("\n".join(part) + "\n" for part in parts if part)


def _headline(picture: Picture) -> list[str]:
    ready, serving = picture.condition("Ready"), picture.condition("Serving")
    behind = [f"This is about an older spec: {picture.behind}."] if picture.behind and picture.status else []
    if ready["status"] == "True":
        return [f"{picture.name} is ready: {ready['message']}.", *behind]
    answers = "answers requests" if serving["status"] == "True" else "answers no requests"
    return [f"{picture.name} is not ready and {answers}.", f"{ready['reason']}: {ready['message']}", *behind]


def _troubles(picture: Picture) -> list[str]:
    """Conditions, but for those of scaling, that are not as they should be and say more than the headline."""
    said = picture.condition("Ready")["reason"]
    rows = [
        (c["type"], c["status"], f"{c['reason']}: {c['message']}")
        for c in picture.conditions()
        if c["type"] not in SCALING_CONDITIONS
        and c["status"] != _HEALTHY.get(c["type"], "False")
        and c["reason"] != said
    ]
    return ["Conditions", *columns(rows, indent="  ")] if rows else []


def _tenants(picture: Picture) -> list[str]:
    """Tenants of which a key, or each, is refused."""
    troubled = [(str(t["metadata"]["name"]), ready_condition(t)) for t in picture.tenants if not is_ready_tenant(t)]
    rows = [(name, f"{c.get('reason', 'NotSeenYet')}: {c.get('message', '')}".rstrip(": ")) for name, c in troubled]
    return ["Tenants", *columns(rows, indent="  ")] if rows else []


def _rollout(picture: Picture) -> list[str]:
    """The revisions that still have pods, the newest first."""
    revisions = sorted(picture.of_kind("ReplicaSet"), key=_revision, reverse=True)
    rows = [
        (
            f"revision {_revision(rs)}" + (" (current)" if rs is revisions[0] else ""),
            f"{rs.get('status', {}).get('readyReplicas', 0)} of {rs.get('spec', {}).get('replicas', 0)} ready",
            str(rs["metadata"]["name"]),
        )
        for rs in revisions
        if rs is revisions[0] or rs.get("status", {}).get("replicas", 0)
    ]
    return ["Rollout", *columns(rows, indent="  ")] if rows else []


def _revision(replica_set: JsonObject) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION, 0))


def _pods(picture: Picture, now: datetime) -> list[str]:
    """Every pod; its obstacle in full where the headline, which names one, is about another."""
    said = picture.condition("Ready")["message"]
    rows = []
    for pod in picture.of_kind("Pod"):
        obstacle = _obstacle(pod, now)
        more = f": {obstacle.message}" if isinstance(obstacle, Obstacle) and obstacle.message not in said else ""
        rows.append((str(pod["metadata"]["name"]), pod_state(pod, now) + more))
    return ["Pods", *columns(rows, indent="  ")] if rows else []


def pod_state(pod: JsonObject, now: datetime) -> str:
    """Return in a few words what a pod is doing, or what keeps it from getting ready."""
    if pod["metadata"].get("deletionTimestamp"):
        return "finishes its requests and leaves"
    if is_ready(pod):
        return "ready"
    obstacle = _obstacle(pod, now)
    return f"not ready: {obstacle.reason if isinstance(obstacle, Obstacle) else _waits_for(pod)}"


def _obstacle(pod: JsonObject, now: datetime) -> Obstacle | NoObstacle:
    return pod_obstacle([pod], {}, model_loaded=False, now=now)


def _waits_for(pod: JsonObject) -> str:
    status = pod.get("status", {})
    if held_since(pod) is not None:
        return "waiting for its volumes and its network"
    for container in status.get("containerStatuses") or ():
        if container["name"] == ENGINE_CONTAINER and container.get("started"):
            return "its engine was ready and is not any more"
        if reason := (container.get("state", {}).get("waiting") or {}).get("reason"):
            return str(reason)
    return "loading the model" if status.get("phase") == "Running" else str(status.get("phase", "Pending"))


def _events(picture: Picture, now: datetime) -> list[str]:
    told = sorted(picture.events, key=_told_at)[-LAST_EVENTS:]
    rows = [(age(_told_at(e), now), str(e["type"]), str(e["reason"]), _note(e)) for e in told]
    return ["Events", *columns(rows, indent="  ")] if rows else []


def _told_at(event: JsonObject) -> str:
    """Events of the older API have other fields."""
    series = event.get("series") or {}
    times: Sequence[str | None] = (
        series.get("lastObservedTime"),
        event.get("deprecatedLastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return next(time for time in times if time)


def _note(event: JsonObject) -> str:
    return str(event.get("note") or event.get("message") or "")
