"""``kubectl sapwood tree``: a service, what it owns, what that owns, down to the pods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sapwood_operator.kubectl.explain import pod_state
from sapwood_operator.kubectl.picture import JsonObject, Picture
from sapwood_operator.kubectl.text import columns


def render_tree(picture: Picture, *, now: datetime) -> str:
    """Return the tree of owners; an object whose owner is not there is not the service's, and is left out."""
    rows: list[tuple[str, str]] = []
    _draw(picture.service, picture.objects, rows, now, lead="", branch="", below="")
    return "\n".join(columns(rows)) + "\n"


def _draw(
    node: JsonObject,
    objects: Sequence[JsonObject],
    rows: list[tuple[str, str]],
    now: datetime,
    *,
    lead: str,
    branch: str,
    below: str,
) -> None:
    rows.append((f"{lead}{branch}{node['kind']}/{node['metadata']['name']}", _state(node, now)))
    owned = [o for o in objects if _owner(o) == node["metadata"]["uid"]]
    owned.sort(key=lambda o: (str(o["kind"]), str(o["metadata"]["name"])))
    for child in owned:
        last = child is owned[-1]
        _draw(
            child,
            objects,
            rows,
            now,
            lead=lead + below,
            branch="└── " if last else "├── ",
            below="    " if last else "│   ",
        )


def _owner(live: JsonObject) -> str:
    owners = live["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _state(node: JsonObject, now: datetime) -> str:
    if node["kind"] == "Pod":
        return _pod(node, now)
    describe = _STATES.get(node["kind"])
    return "" if describe is None else describe(node)


def _service_state(service: JsonObject) -> str:
    for condition in (service.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready":
            return "Ready" if condition["status"] == "True" else f"not ready: {condition['reason']}"
    return "not seen by an operator yet"


def _replicas(workload: JsonObject) -> str:
    wanted, status = workload.get("spec", {}).get("replicas", 1), workload.get("status") or {}
    return f"{status.get('readyReplicas', 0)} of {wanted} ready"


def _pod(pod: JsonObject, now: datetime) -> str:
    node = pod.get("spec", {}).get("nodeName")
    return pod_state(pod, now) + (f" on {node}" if node else "")


_STATES: dict[str, Callable[[JsonObject], str]] = {
    "InferenceService": _service_state,
    "Deployment": _replicas,
    "ReplicaSet": _replicas,
}
