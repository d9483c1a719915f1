"""The PodDisruptionBudget: how many replicas the drain of nodes may take at once."""

from __future__ import annotations

from typing import Any

from sapwood_operator.domain import names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ServiceSpec

API_VERSION, KIND = "policy/v1", "PodDisruptionBudget"


def disruption_budget(spec: ServiceSpec) -> dict[str, Any]:
    """Return the budget: one replica at a time, unless the spec says how many have to stay."""
    bound = {"maxUnavailable": 1} if spec.min_available is None else {"minAvailable": spec.min_available}
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        spec={
            **bound,
            "selector": {"matchLabels": names.selector(spec.name)},
            # A replica that does not serve protects nobody, and would hold up the drain of its node for ever.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
