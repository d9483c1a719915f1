"""``kubectl sapwood status``: how a service is, at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sapwood_operator.kubectl.picture import JsonObject, Picture, is_ready_tenant
from sapwood_operator.kubectl.text import columns

_COUNTS = (
    ("desired", "desiredReplicas"),
    ("ready", "readyReplicas"),
    ("updated", "updatedReplicas"),
    ("warming", "warmingReplicas"),
    ("draining", "drainingReplicas"),
)


def render_status(picture: Picture) -> str:
    """Return the text, with conditions, replicas and the address."""
    about, status = picture.service["metadata"], picture.status
    behind = f" ({picture.behind})" if picture.behind else ""
    lines = [f"{about['namespace']}/{about['name']}  generation {about.get('generation', 1)}{behind}", ""]
    conditions = picture.conditions() or [picture.condition("Ready")]
    lines += columns([(c["type"], c["status"], why) for c, why in _reasons(conditions)], indent="  ")
    counts = ", ".join(f"{status.get(field, 0)} {word}" for word, field in _COUNTS)
    about_requests = [
        ("replicas", counts),
        ("address", status.get("url", "none")),
        ("routing", _routing(picture)),
        ("callers", _callers(picture)),
        ("watched", _watched(picture)),
    ]
    lines += ["", *columns(about_requests, indent="  ")]
    return "\n".join(lines) + "\n"


def _routing(picture: Picture) -> str:
    routing = picture.section("routing")
    policy, queue = str(routing.get("policy", "the default policy")), routing.get("queue")
    if queue is None:
        return policy
    return f"{policy}; {queue.get('maxRequests')} requests may wait {queue.get('maxWait')} for a replica"


def _callers(picture: Picture) -> str:
    if not picture.asks_for_keys:
        return "whoever reaches the gateway"
    ready = sum(is_ready_tenant(tenant) for tenant in picture.tenants)
    return f"Tenants with an API key; seen: {ready} ready, {len(picture.tenants) - ready} not"


def _watched(picture: Picture) -> str:
    seen = [kind for kind in ("PodMonitor", "PrometheusRule") if picture.of_kind(kind)]
    objects = f"by {' and '.join(seen)}" if seen else "no PodMonitor or PrometheusRule seen"
    tracing = picture.section("observability").get("tracing")
    return objects if tracing is None else f"{objects}; traces go to {tracing.get('endpoint')}"


def _reasons(conditions: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    """Return each condition with why it is so; a cause that several have in common is told whole once."""
    told: set[str] = set()
    for condition in conditions:
        reason = str(condition["reason"])
        yield condition, f"{reason}: " + ("as above" if reason in told else str(condition["message"]))
        told.add(reason)
