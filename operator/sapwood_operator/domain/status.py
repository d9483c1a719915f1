"""The status of an InferenceService, whole: counts, address and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sapwood_operator.domain import names
from sapwood_operator.domain.conditions import Facts, judge, write_conditions


def status_of(service: Mapping[str, Any], facts: Facts, *, url: str, now: datetime) -> dict[str, Any]:
    """Return the status to write; what others keep in it (adapters, autoscaling…) stays.

    ``url``: address for clients; empty where there is none. The result equals the live status where nothing changed.
    """
    before = service.get("status") or {}
    metadata = service["metadata"]
    generation = metadata.get("generation", 1)
    workload = facts.workload
    status = {
        **before,
        "observedGeneration": generation,
        "desiredReplicas": workload.wanted,
        "replicas": workload.total,
        "readyReplicas": workload.ready,
        "updatedReplicas": workload.updated,
        "warmingReplicas": workload.warming,
        "drainingReplicas": workload.draining,
        "selector": names.selector_text(names.selector(metadata["name"])),
        "url": url,
        "conditions": write_conditions(judge(facts), before.get("conditions") or (), generation=generation, now=now),
    }
    if not url:
        del status["url"]
    return status
