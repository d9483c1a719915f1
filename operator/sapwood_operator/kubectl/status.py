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
    behind = f" ({picture.behind})" if picture.behind else ""
    lines = [f"{about['namespace']}/{about['name']}  generation {about.get('generation', 1)}{behind}", ""]
    conditions = picture.conditions() or [picture.condition("Ready")]
    lines += columns([(c["type"], c["status"], f"{c['reason']}: {c['message']}") for c in conditions], indent="  ")
    counts = ", ".join(f"{status.get(field, 0)} {word}" for word, field in _COUNTS)
    lines += ["", *columns([("replicas", counts), ("address", status.get("url", "none"))], indent="  ")]
    return "\n".join(lines) + "\n"
