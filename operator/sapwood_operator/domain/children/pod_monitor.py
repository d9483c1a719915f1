"""The PodMonitor, where the Prometheus Operator's API exists."""

from __future__ import annotations

from typing import Any

from sapwood_contract import http
from sapwood_operator.domain import names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ServiceSpec

API_VERSION, KIND = "monitoring.coreos.com/v1", "PodMonitor"


def pod_monitor(spec: ServiceSpec) -> dict[str, Any]:
    """Return the PodMonitor of the engines' admin port."""
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        spec={
            "selector": {"matchLabels": names.selector(spec.name)},
            "podMetricsEndpoints": [{"port": "admin", "path": http.METRICS}],
        },
    )
