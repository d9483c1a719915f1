"""What a decision looks at, read from live objects and from what the sampler knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sapwood_operator.autoscaling.pods import Leaving, PodSeen, Rollout
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.values import Replica, Stage

_DEADLINE_OVER = "ProgressDeadlineExceeded"


def rollout_of(deployment: Mapping[str, Any] | None) -> Rollout:
    """Return how a live Deployment is with its revisions; None: there is none."""
    status = {} if deployment is None else deployment.get("status") or {}
    if status.get("replicas", 0) <= status.get("updatedReplicas", 0):
        return "none"
    conditions = status.get("conditions") or ()
    is_stuck = any(each["type"] == "Progressing" and each.get("reason") == _DEADLINE_OVER for each in conditions)
    return "stuck" if is_stuck else "moving"


def replicas_of(
    pods: Sequence[Mapping[str, Any]],
    seen: Sequence[PodSeen],
    leaving: Sequence[Leaving],
    signals: ServiceSignals,
    now: float,
) -> tuple[Replica, ...]:
    """Return the replicas that there are.

    ``pods``: live ones; ``seen``: those of them that have not ended; ``leaving``: who was chosen to go; ``now``: Unix
    time.
    """
    chosen = {entry.uid: entry.since for entry in leaving}
    live = {pod["metadata"]["uid"]: pod for pod in pods}
    found = []
    for pod in seen:
        stage = "leaving" if pod.is_going or pod.uid in chosen else _stage(pod, signals)
        since = chosen.get(pod.uid) or _since(live[pod.uid], stage, pod.created)
        found.append(
            Replica(
                uid=pod.uid,
                name=pod.name,
                stage=stage,
                age_seconds=max(0.0, now - since),
                reading=signals.reading_of(pod.uid),
            )
        )
    return tuple(found)


def _stage(pod: PodSeen, signals: ServiceSignals) -> Stage:
    match pod.progress:
        case "unplaced":
            return "pending"
        case "ready":
            return "ready"
        case _:
            return "warming" if signals.states.get(pod.uid) == "warming" else "starting"


def _since(pod: Mapping[str, Any], stage: Stage, created: float) -> float:
    """Return when the pod came into its stage, as far as its conditions say: one that starts anew since it was ready
    last."""
    changes = {each["type"]: each.get("lastTransitionTime") for each in pod.get("status", {}).get("conditions") or ()}
    texts = [changes.get(type_) for type_ in ("Ready", *(() if stage == "ready" else ("PodScheduled",)))]
    return max((datetime.fromisoformat(text).timestamp() for text in texts if text), default=created)
