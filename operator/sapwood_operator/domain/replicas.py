"""How many replicas the Deployment should have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood_operator.domain.spec import FixedReplicas, ScaledReplicas


def wanted_replicas(asked: FixedReplicas | ScaledReplicas, live_deployment: Mapping[str, Any] | None) -> int:
    """Return the number to apply.

    Under an autoscaler it is what the Deployment has now, within bounds: reconciling never takes back what was decided.
    ``live_deployment``: None where there is none yet; then the autoscaler begins with the minimum.
    """
    match asked:
        case FixedReplicas(count):
            return count
        case ScaledReplicas(minimum, maximum):
            live = minimum if live_deployment is None else int(live_deployment["spec"].get("replicas", 1))
            return min(max(live, minimum), maximum)
