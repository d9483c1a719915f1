"""InferenceServices whose pods wait for a node that does not exist: all of the operator's work but running pods."""

from __future__ import annotations

from typing import Any

from world import World, condition, eventually

NOWHERE = {"nodeSelector": {"sapwood.test/node": "none"}}
CHILDREN = (
    ("ServiceAccount", "chat-engine"),
    ("NetworkPolicy", "chat-engine"),
    ("Service", "chat-engine"),
    ("PodDisruptionBudget", "chat-engine"),
    ("Deployment", "chat-engine"),
    ("ConfigMap", "chat-routing"),
    ("Service", "chat"),
)
"""(kind, name) of all that belongs to a service named chat."""


def make(world: World, namespace: str, **spec: Any) -> None:
    """Apply a service named chat, and return once everything of it is there and said."""
    world.make_service(namespace, **{"placement": NOWHERE, **spec})
    wait_until_settled(world, namespace)


def wait_until_settled(world: World, namespace: str) -> None:
    """Return once all children are there and the status tells that pods find no node."""
    eventually(
        lambda: (
            set(CHILDREN) <= world.children(namespace).keys() and says(world, namespace, "Degraded", "Unschedulable")
        ),
        f"a settled service in {namespace}",
        within_seconds=60,
    )


def says(world: World, namespace: str, type_: str, reason: str) -> bool:
    """Whether a condition of the service has that reason."""
    return condition(world.service(namespace), type_).get("reason") == reason
