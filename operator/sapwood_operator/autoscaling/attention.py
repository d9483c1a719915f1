"""Which services the sampler looks at, how often, and whom of their pods it asks: read from live objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood_operator.autoscaling.pods import PodSeen, leaving_of, pods_seen
from sapwood_operator.autoscaling.signals import EnginePod
from sapwood_operator.domain.launch import ADMIN_PORT
from sapwood_operator.domain.names import ENGINE_CONTAINER


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One service."""

    namespace: str
    name: str
    pods: tuple[EnginePod, ...]
    """Those that have not ended."""
    scales: bool
    """Its pods are asked what they do."""
    is_urgent: bool
    """What its gateways have to do is asked all the time: a request may wait for its first replica, or a replica that
    is to go may have become idle."""


def watched(service: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> Watched:
    """Read a live InferenceService and its live pods."""
    seen = pods_seen(pods)
    scales = bool(service["spec"].get("autoscaling"))
    status = (service.get("status") or {}).get("autoscaling")
    is_leaving = isinstance(status, Mapping) and bool(leaving_of(status))
    live = {pod["metadata"]["uid"]: pod for pod in pods}
    return Watched(
        namespace=service["metadata"]["namespace"],
        name=service["metadata"]["name"],
        pods=tuple(_engine_pod(each, live[each.uid]) for each in seen),
        scales=scales,
        is_urgent=is_leaving or (scales and not any(each.progress == "ready" for each in seen)),
    )


def _engine_pod(seen: PodSeen, pod: Mapping[str, Any]) -> EnginePod:
    address = (pod.get("status") or {}).get("podIP") or ""
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{_admin_port(pod)}" if address else ""
    return EnginePod(uid=seen.uid, name=seen.name, url=url, after=seen.created)


def _admin_port(pod: Mapping[str, Any]) -> int:
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = [port for each in containers if each.get("name") == ENGINE_CONTAINER for port in each.get("ports") or ()]
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "admin"), ADMIN_PORT)
