"""What was seen in the cluster of one InferenceService, at one moment: live objects as the API server gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sapwood_operator.domain.intent import NO_INTENT, Intent, NoIntent


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """Names one namespaced object."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ApplyProblem:
    """The API server refused a write, and will refuse it again until something changes."""

    ref: ObjectRef
    reason: str
    """The API server's own: ``Forbidden``, ``Invalid``…"""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One InferenceService and what belongs to it."""

    service: Mapping[str, Any]
    """The live InferenceService."""
    children: Mapping[ObjectRef, Mapping[str, Any]]
    """Live objects that the service owns, or that have the name of one that it would own."""
    pods: tuple[Mapping[str, Any], ...]
    """Pods that match the service's selector."""
    replica_sets: tuple[Mapping[str, Any], ...]
    """ReplicaSets that match the service's selector."""
    apis: frozenset[tuple[str, str]]
    """``(apiVersion, kind)`` of the optional APIs that the cluster has."""
    problems: tuple[ApplyProblem, ...] = ()
    """The last refusal of each object that is refused now."""
    answers: Mapping[ObjectRef, Mapping[str, Any]] = field(default_factory=dict)
    """What the API server answered to the last write of each child, where that is known."""
    intent: Intent | NoIntent = NO_INTENT
    """What scaling wants; it is decided from all the others."""


def ref_of(document: Mapping[str, Any]) -> ObjectRef:
    """Return what names an object, live or desired."""
    metadata = document["metadata"]
    return ObjectRef(document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"])


def is_owned(document: Mapping[str, Any], uid: str) -> bool:
    """Whether the object's owner references name this very owner: a namesake made later has another uid."""
    return any(owner.get("uid") == uid for owner in document["metadata"].get("ownerReferences") or ())


def has_controller(document: Mapping[str, Any]) -> bool:
    """Whether some object controls this one."""
    return any(owner.get("controller") for owner in document["metadata"].get("ownerReferences") or ())


def is_leaving(document: Mapping[str, Any]) -> bool:
    """Whether the object is being deleted."""
    return document["metadata"].get("deletionTimestamp") is not None
