"""``kubectl sapwood status``: how a service is, at a glance."""

from __future__ import annotations

from sapwood_operator.kubectl.picture import Picture
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
    lines = [f"{about['namespace']}/{about['name']}  generation {about.get('generation', 1)}{_behind(picture)}", ""]
    conditions = picture.conditions() or [picture.condition("Ready")]
    lines += columns([(c["type"], c["status"], f"{c['reason']}: {c['message']}") for c in conditions], indent="  ")
    counts = ", ".join(f"{status.get(field, 0)} {word}" for word, field in _COUNTS)
    lines += ["", *columns([("replicas", counts), ("address", status.get("url", "none"))], indent="  ")]
    return "\n".join(lines) + "\n"


def _behind(picture: Picture) -> str:
    """Conditions that are about an older spec say nothing about this one."""
    seen = picture.status.get("observedGeneration", 0)
    return "" if seen == picture.service["metadata"].get("generation", 1) else f" (the operator has seen {seen})"
