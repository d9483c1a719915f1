"""What the table says of each replica and service, as texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_metrics.quantiles import Quantile, quantile
from sapwood_operator.autoscaling.explain import replicas_text
from sapwood_operator.autoscaling.pods import leaving_of
from sapwood_operator.local.figures import Figures
from sapwood_operator.local.platform import Platform
from sapwood_operator.local.pod import NotMade, Pod, Resting, Serving, Starting

_NOTHING = "–"
_REMARKED = ("Unsupported", "AutoscalingActive", "MetricsAvailable", "ScalingLimited")
_GOOD = ("Ready", "AutoscalingActive", "MetricsAvailable")
"""Conditions that are True where nothing is to be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replica."""

    service: str
    replica: str
    state: str
    requests: str
    """Under way, and ended."""
    hit_rate: str
    """Share of prompt tokens that a cache held."""
    ttft: str
    """Median time to first token."""
    tokens_per_second: str
    restarts: str


def rows(platform: Platform, figures: Figures, now: float) -> list[Row]:
    """Return a row a replica, in the order in which they were made."""
    return [_row(pod, figures, state_of(platform, pod, now)) for pod in platform.kubelet.pods]


def _row(pod: Pod, figures: Figures, state: str) -> Row:
    reading = figures.last(pod.name)
    hit_rate = f"{reading.cached_tokens / reading.prompt_tokens:.0%}" if reading.prompt_tokens else _NOTHING
    rate = figures.tokens_per_second(pod.name)
    return Row(
        service=pod.service.name,
        replica=pod.name,
        state=state,
        requests=f"{reading.num_running} / {reading.num_requests}",
        hit_rate=hit_rate,
        ttft=_time(quantile(reading.ttft_buckets, 0.5)),
        tokens_per_second=f"{rate:.0f}" if rate else _NOTHING,
        restarts=str(pod.num_restarts),
    )


def _time(found: Quantile | None) -> str:
    if found is None:
        return _NOTHING
    time = f"{found.seconds * 1000:.0f} ms" if found.seconds < 1 else f"{found.seconds:.1f} s"
    return f"≥ {time}" if found.is_least else time


def state_of(platform: Platform, pod: Pod, now: float | None = None) -> str:
    """Return how a replica is; with ``now``, also when it is started again."""
    leaving = leaving_of(_autoscaling(platform.world.services.get(pod.service, {})))
    match pod.condition:
        case _ if pod.is_leaving or pod.uid in {each.uid for each in leaving}:
            return "draining"
        case Starting():
            return "starting"
        case Serving(is_ready=is_ready):
            return "ready" if is_ready else "not ready"
        case Resting(until):
            return "ended" if now is None else f"starts again in {max(0, math.ceil(until - now))} s"
        case NotMade():
            return "cannot start"


def scales(platform: Platform) -> list[str]:
    """Return a line for each service that a policy scales: how many replicas are wanted, and why."""
    found = []
    for key, service in sorted(platform.world.services.items()):
        decided = _autoscaling(service)
        if "bound" in decided:
            wanted = replicas_text(decided["desired"])
            found.append(f"{key.name}: {wanted} wanted: {decided['bound']}: {decided['message']}")
    return found


def _autoscaling(service: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (service.get("status") or {}).get("autoscaling") or {}
    return found


def remarks(platform: Platform) -> list[str]:
    """Return what is to be known of the services beside their replicas."""
    found = []
    for key, service in sorted(platform.world.services.items()):
        conditions = {each["type"]: each for each in (service.get("status") or {}).get("conditions") or ()}
        # Ready tells what Degraded does, and how many serve meanwhile.
        for type_ in ("Degraded" if _is(conditions, "Ready", "True") else "Ready", *_REMARKED):
            if _is(conditions, type_, "False" if type_ in _GOOD else "True") and not _is_start(conditions[type_]):
                found.append(f"{key.name}: {conditions[type_]['reason']}: {conditions[type_]['message']}")
    others = (*platform.tenant_problems, *platform.documents.not_acted_on, platform.discovery.problem)
    return [*found, *filter(None, others)]


def _is_start(condition: Mapping[str, Any]) -> bool:
    """Whether it says no more than Ready does of a service whose first replica starts."""
    return bool(condition["reason"] == "NoReplicaReady")


def _is(conditions: Mapping[str, Mapping[str, Any]], type_: str, status: str) -> bool:
    return type_ in conditions and conditions[type_]["status"] == status


def example_call(platform: Platform) -> str:
    """Return a command that calls the first service, in lines that a terminal need not break, or why there is none."""
    if not platform.documents.services:
        return "there is no InferenceService in the files: nothing runs but the gateway"
    service = platform.documents.services[0]
    body = {"model": _model(service), "messages": [{"role": "user", "content": "Hello"}]}
    key = ['-H "Authorization: Bearer $API_KEY"'] if _asks_for_keys(service) else []
    url = f"curl {platform.gateway.url}/v1/chat/completions"
    return " \\\n  ".join([url, "-H 'Content-Type: application/json'", *key, f"-d '{json.dumps(body)}'"])


def _model(service: Mapping[str, Any]) -> str:
    return str(service["spec"]["model"].get("name") or service["metadata"]["name"])


def _asks_for_keys(service: Mapping[str, Any]) -> bool:
    return (service["spec"].get("tenancy") or {}).get("authentication") == "ApiKey"
