"""What a movement is decided from: the pods of a service, those that are on their way out, and who has to do what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from sapwood_operator.autoscaling.engines import EngineSeen
from sapwood_operator.autoscaling.values import Demand, NoDemand
from sapwood_operator.autoscaling.victims import Progress
from sapwood_operator.domain.names import ENGINE_CONTAINER
from sapwood_operator.domain.observed import is_leaving
from sapwood_operator.domain.obstacles import is_ready
from sapwood_operator.domain.pod_marks import is_first_to_go

Rollout = Literal["none", "moving", "stuck"]
"""moving: pods of a former revision are left; stuck: they are, and the Deployment's deadline for progress is over."""

_NO_GATEWAY = NoDemand("no gateway was asked")
_ENDED = ("Succeeded", "Failed")
"""Such a pod counts for nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod that has not ended."""

    name: str
    uid: str
    created: float
    """Unix time."""
    progress: Progress
    has_served: bool
    """Whether its engine has been ready since it was started last."""
    is_going: bool = False
    """It is being deleted: nothing stops that, and the ReplicaSet counts it no more."""
    is_marked: bool = False
    """The ReplicaSet's controller is to take it first."""

    @property
    def may_have_requests(self) -> bool:
        """Whether somebody may wait for an answer of it."""
        return self.progress == "ready" or self.has_served


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that was chosen to go; ``status.autoscaling.leaving`` has them until they are gone."""

    pod: str
    uid: str
    since: float
    """Unix time, in whole seconds: when it was cordoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A service's replicas at one moment."""

    pods: tuple[PodSeen, ...]
    """`pods_seen`."""
    asked: int | None
    """``spec.replicas`` of the live Deployment; None: there is none."""
    leaving: tuple[Leaving, ...] = ()
    """`leaving_of` the live status."""
    rollout: Rollout = "none"
    engines: Mapping[str, EngineSeen] = field(default_factory=dict)
    """Uid of a pod -> what is known of its engine (`adapters.engine_calls`)."""
    demand: Demand | NoDemand = _NO_GATEWAY
    demand_at: float = 0.0
    """When the gateways were asked, Unix time: the earliest where they were asked one after the other."""


def pods_seen(pods: Sequence[Mapping[str, Any]]) -> tuple[PodSeen, ...]:
    """Read the service's live pods; ended ones are left out."""
    return tuple(_pod_seen(pod) for pod in pods if _phase(pod) not in _ENDED)


def leaving_of(status: Mapping[str, Any]) -> tuple[Leaving, ...]:
    """Read ``status.autoscaling``; an entry that nobody of ours wrote is passed over."""
    entries = status.get("leaving")
    found = [_leaving(entry) for entry in entries] if isinstance(entries, list) else []
    return tuple(entry for entry in found if entry is not None)


def leaving_status(leaving: Sequence[Leaving]) -> list[dict[str, str]]:
    """Return what `leaving_of` reads, for ``status.autoscaling.leaving``."""
    return [{"pod": each.pod, "uid": each.uid, "since": _text(each.since)} for each in leaving]


def _pod_seen(pod: Mapping[str, Any]) -> PodSeen:
    metadata = pod["metadata"]
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        created=_time(metadata.get("creationTimestamp")) or 0.0,
        progress=_progress(pod),
        has_served=any(each["name"] == ENGINE_CONTAINER and each.get("started") for each in statuses),
        is_going=is_leaving(pod),
        is_marked=is_first_to_go(pod),
    )


def _progress(pod: Mapping[str, Any]) -> Progress:
    if is_ready(pod):
        return "ready"
    if _phase(pod) == "Running":
        return "running"
    return "waiting" if pod.get("spec", {}).get("nodeName") else "unplaced"


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _leaving(entry: object) -> Leaving | None:
    if not isinstance(entry, Mapping):
        return None
    pod, uid, since = entry.get("pod"), entry.get("uid"), _time(entry.get("since"))
    if not isinstance(pod, str) or not isinstance(uid, str) or since is None:
        return None
    return Leaving(pod, uid, since)


def _time(text: object) -> float | None:
    """Return a time of Kubernetes as Unix time; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.timestamp() if parsed.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
