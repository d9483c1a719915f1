"""Which pod a Deployment that shrinks is to take: the one that has been emptied, and no other.

A ReplicaSet takes the pod with the lowest `controller.kubernetes.io/pod-deletion-cost` before others that are as ready.
We set that annotation and nothing else of a pod, under our field manager, so that applying it without takes it away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sapwood_operator.domain.observed import is_leaving

COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO = "-2000000000"
"""Below what anybody else would give a pod; also how we know our own mark."""


def is_first_to_go(pod: Mapping[str, Any]) -> bool:
    """Whether the live pod bears our mark."""
    return (pod["metadata"].get("annotations") or {}).get(COST_ANNOTATION) == FIRST_TO_GO


def due_marks(pods: Sequence[Mapping[str, Any]], first_to_go: Collection[str]) -> tuple[Mapping[str, Any], ...]:
    """Return what to apply of pods that have to get the mark or to lose it, by their names.

    ``first_to_go``: names of those that shall have it. A pod that is being deleted is past this.
    """
    due = [pod for pod in pods if not is_leaving(pod) and is_first_to_go(pod) != (_name(pod) in first_to_go)]
    return tuple(_mark(pod, marked=_name(pod) in first_to_go) for pod in sorted(due, key=_name))


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _mark(pod: Mapping[str, Any], *, marked: bool) -> Mapping[str, Any]:
    """The uid keeps the API server from making a pod of that name, should this one be gone by then."""
    metadata = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": {COST_ANNOTATION: FIRST_TO_GO} if marked else {}},
    }
