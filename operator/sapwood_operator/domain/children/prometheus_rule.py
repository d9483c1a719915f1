"""The PrometheusRule, where the Prometheus Operator's API exists: recording rules and alerts of one service."""

from __future__ import annotations

from typing import Any

from sapwood_contract.alerting import service_rule_groups
from sapwood_operator.domain import names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.observability import objectives_for
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "monitoring.coreos.com/v1", "PrometheusRule"


def prometheus_rule(
    spec: ServiceSpec, settings: OperatorSettings, *, promised_seconds: float | None = None
) -> dict[str, Any]:
    """Return the rules that hold the service to its objectives; ``promised_seconds``: see `Intent`."""
    own = spec.observability.objectives
    objectives = own if promised_seconds is None else objectives_for(promised_seconds)
    groups = service_rule_groups(spec.namespace, spec.name, objectives, runbook_base=settings.runbook_url)
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        labels=settings.metrics_labels,
        spec={"groups": groups},
    )
