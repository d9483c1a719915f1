"""The status of an InferenceService, whole: counts, address, conditions, and what scaling remembers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sapwood_operator.domain import names
from sapwood_operator.domain.conditions import Facts, Verdict, judge, write_conditions
from sapwood_operator.domain.intent import SCALING_CONDITIONS, Intent, NoIntent


def status_of(
    service: Mapping[str, Any], facts: Facts, intent: Intent | NoIntent, *, url: str, now: datetime
) -> dict[str, Any]:
    """Return the status to write; what others keep in it (adapters…) stays.

    ``url``: address for clients; empty where there is none. The result equals the live status where nothing changed.
    """
    before = service.get("status") or {}
    metadata = service["metadata"]
    generation = metadata.get("generation", 1)
    workload = facts.workload
    verdicts, former = judge(facts), before.get("conditions") or ()
    scaling: Mapping[str, Any] = {}
    if isinstance(intent, Intent):
        verdicts |= {each.type: Verdict(each.status, each.reason, each.message) for each in intent.conditions}
        former = [c for c in former if c["type"] in verdicts or c["type"] not in SCALING_CONDITIONS]
        scaling = {"autoscaling": dict(intent.autoscaling), "observed": dict(intent.observed)}
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
        "conditions": write_conditions(verdicts, former, generation=generation, now=now),
        **scaling,
    }
    return {key: value for key, value in status.items() if value or key not in _OPTIONAL}


_OPTIONAL = ("url", "autoscaling", "observed")
"""Not there rather than empty."""
