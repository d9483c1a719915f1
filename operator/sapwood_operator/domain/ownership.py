"""Which live objects are the service's own: only these are written, and only these are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.domain import names
from sapwood_operator.domain.observed import ObjectRef, Observed, has_controller, is_owned
from sapwood_operator.domain.spec import ServiceSpec


def belongs_to(spec: ServiceSpec, live: Mapping[str, Any]) -> bool:
    """Whether a live object may be written for this service.

    Besides what it owns that is what a former one of the same name left behind (``kubectl delete --cascade=orphan``, a
    restored backup) and nobody controls. An object that somebody else made is never taken over.
    """
    if is_owned(live, spec.uid):
        return True
    labels = live["metadata"].get("labels") or {}
    orphaned = labels.get(names.MANAGED_BY_LABEL) == names.FIELD_MANAGER and labels.get(SERVICE_LABEL) == spec.name
    return orphaned and not has_controller(live)


def own_deployment(observed: Observed) -> Mapping[str, Any] | None:
    """Return the service's live Deployment; one of the same name that somebody else made says nothing about it."""
    metadata = observed.service["metadata"]
    ref = ObjectRef("apps/v1", "Deployment", metadata["namespace"], names.engine(metadata["name"]))
    live = observed.children.get(ref)
    return live if live is not None and is_owned(live, metadata["uid"]) else None
