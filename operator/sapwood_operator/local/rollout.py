"""What Kubernetes' own controllers decide for a Deployment: which pods to make, and which to let go.

There are never more than ``replicas + maxSurge`` pods, and what it does leaves ``replicas - maxUnavailable`` ready.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood_operator.domain.workload import REVISION_ANNOTATION
from sapwood_operator.local.pod import HASH_LABEL, Pod

_HASH_CHARACTERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be done now; nothing, where all is as it should be."""

    num_new: int = 0
    """Pods of the present template to make."""
    leaving: tuple[str, ...] = ()
    """Names of pods to let go."""


def template_hash(deployment: Mapping[str, Any]) -> str:
    """Return what the pods of one template have in common."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]


def change(deployment: Mapping[str, Any], pods: Sequence[Pod]) -> Change:
    """Decide the next step towards what the Deployment says; ``pods`` are all of its own."""
    spec = deployment["spec"]
    wanted = int(spec["replicas"])
    surge, unavailable = _bounds(spec["strategy"]["rollingUpdate"], wanted)
    present = template_hash(deployment)
    staying = [pod for pod in pods if not pod.is_leaving]
    new = [pod for pod in staying if pod.template_hash == present]
    old = [pod for pod in staying if pod.template_hash != present]
    leaving = _beyond(new, wanted)
    # One that is not ready serves nobody: it makes room first.
    leaving += [pod for pod in old if not pod.is_ready]
    num_ready = sum(pod.is_ready for pod in staying if pod not in leaving)
    spare = max(0, num_ready - max(0, wanted - unavailable))
    leaving += sorted((pod for pod in old if pod.is_ready), key=lambda pod: (pod.deletion_cost, pod.number))[:spare]
    room = wanted + surge - (len(staying) - len(leaving))
    return Change(
        num_new=max(0, min(wanted - len(new), room)),
        leaving=tuple(pod.name for pod in leaving),
    )


def _beyond(new: list[Pod], wanted: int) -> list[Pod]:
    """Those too many: the ones that are not ready first, then of the lowest deletion cost, then the youngest."""
    by_worth = sorted(new, key=lambda pod: (not pod.is_ready, -pod.deletion_cost, pod.number))
    return by_worth[wanted:]


def _bounds(rolling: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    surge = _count(rolling["maxSurge"], wanted, math.ceil)
    unavailable = _count(rolling["maxUnavailable"], wanted, math.floor)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _count(value: int | str, wanted: int, rounded: Any) -> int:
    """A share becomes a number as Kubernetes rounds it."""
    if isinstance(value, str):
        return int(rounded(int(value.removesuffix("%")) * wanted / 100))
    return value


def deployment_as_seen(deployment: Mapping[str, Any], pods: Sequence[Pod], revision: int) -> dict[str, Any]:
    """Return the Deployment with the status that its controller would write."""
    present = template_hash(deployment)
    staying = [pod for pod in pods if not pod.is_leaving]
    num_ready = sum(pod.is_ready for pod in staying)
    metadata = deployment["metadata"]
    annotations = {**metadata.get("annotations", {}), REVISION_ANNOTATION: str(revision)}
    return {
        **deployment,
        "metadata": {**metadata, "annotations": annotations},
        "status": {
            "observedGeneration": metadata["generation"],
            "replicas": len(staying),
            "updatedReplicas": sum(pod.template_hash == present for pod in staying),
            "readyReplicas": num_ready,
            "availableReplicas": num_ready,
        },
    }


def replica_set(deployment: Mapping[str, Any], pods: Sequence[Pod], revision: int) -> dict[str, Any]:
    """Return the ReplicaSet of the present template."""
    present = template_hash(deployment)
    metadata = deployment["metadata"]
    return {
        "metadata": {
            "name": f"{metadata['name']}-{present}",
            "namespace": metadata["namespace"],
            "labels": {HASH_LABEL: present},
            "annotations": {REVISION_ANNOTATION: str(revision)},
            "ownerReferences": [{"uid": metadata["uid"], "controller": True}],
        },
        "status": {"readyReplicas": sum(p.is_ready and not p.is_leaving for p in pods if p.template_hash == present)},
    }
