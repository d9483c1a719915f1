"""How many replicas the Deployment should have where nothing but the spec says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood_operator.domain.spec import FixedReplicas, PolicyRef, ScaledReplicas

_FIRST_REPLICAS = 1
"""Of a service whose policy is not known."""


def wanted_replicas(asked: FixedReplicas | ScaledReplicas, live_deployment: Mapping[str, Any] | None) -> int:
    """Return the number to apply.

    Under an autoscaler it is what the Deployment has now, within bounds: reconciling never takes back what was decided.
    ``live_deployment``: None where there is none yet; then the autoscaler begins with the minimum.
    """
    live = None if live_deployment is None else int(live_deployment["spec"].get("replicas", 1))
    if isinstance(asked, FixedReplicas):
        return asked.count
    if isinstance(asked.by, PolicyRef):
        return _FIRST_REPLICAS if live is None else live
    least = asked.by.min_replicas
    return min(max(least if live is None else live, least), asked.by.max_replicas)
