"""The PodMonitor, where the Prometheus Operator's API exists."""

from __future__ import annotations

import re
from typing import Any

from sapwood_contract import http
from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.domain import names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ScaledReplicas, ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "monitoring.coreos.com/v1", "PodMonitor"
_SERVICE_OF_POD = "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9]", "_", SERVICE_LABEL)
"""Prometheus' name for the pod's label."""
SCALED_INTERVAL = "15s"
"""Between two scrapes of what is scaled, so that ``--signals=prometheus`` has samples that are young enough."""


def pod_monitor(spec: ServiceSpec, settings: OperatorSettings) -> dict[str, Any]:
    """Return the PodMonitor of the engines' admin port; rules and dashboards know a service by the label that it adds.

    It names no protocol: by itself Prometheus asks first for OpenMetrics, which has the exemplars, and to Prometheus
    Operators before 0.72 the field is unknown.
    """
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        labels=settings.metrics_labels,
        spec={
            "selector": {"matchLabels": names.selector(spec.name)},
            "podMetricsEndpoints": [
                {
                    "port": "admin",
                    "path": http.METRICS,
                    **({"interval": SCALED_INTERVAL} if isinstance(spec.replicas, ScaledReplicas) else {}),
                    "relabelings": [{"sourceLabels": [_SERVICE_OF_POD], "targetLabel": "inference_service"}],
                }
            ],
        },
    )
