"""``kubectl sapwood status``: how a service is, at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sapwood_operator.kubectl.picture import JsonObject, Picture
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
    lines += ["", *columns([("replicas", counts), ("address", status.get("url", "none"))], indent="  ")]
    return "\n".join(lines) + "\n"


def _reasons(conditions: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    """Return each condition with why it is so; a cause that several have in common is told whole once."""
    told: set[str] = set()
    for condition in conditions:
        reason = str(condition["reason"])
        yield condition, f"{reason}: " + ("as above" if reason in told else str(condition["message"]))
        told.add(reason)
