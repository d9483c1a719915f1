"""Prometheus rule groups of one InferenceService, of all engines, of gateways and of the operator, from the data in
`alert_rules` and `operator_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood_contract.alert_rules import (
    CACHE_RECORDINGS,
    ENGINE_ALERTS,
    GATEWAY_ALERTS,
    TTFT_BORDERS,
    WINDOWS,
    Alert,
    InvalidObjectives,
    Objective,
    Recording,
    ServiceObjectives,
    burn_alerts,
    engine_objectives,
    gateway_objective,
)
from sapwood_contract.operator_rules import OPERATOR_ALERTS

__all__ = [
    "TTFT_BORDERS",
    "InvalidObjectives",
    "ServiceObjectives",
    "all_services_rule_groups",
    "operator_rule_groups",
    "platform_rule_groups",
    "service_rule_groups",
]

_LONG_WINDOWS = ("6h", "1d", "3d")
_LONG_INTERVAL = "3m"
"""Between evaluations of long windows, which change slowly and read much; below the 5 minutes after which Prometheus
forgets a sample."""


def service_rule_groups(
    namespace: str, name: str, objectives: ServiceObjectives, *, runbook_base: str
) -> list[dict[str, Any]]:
    """Return the rule groups of one InferenceService: each selector has its ``namespace`` and ``inference_service``.

    ``runbook_base``: address of the page with a section per alert, without a fragment.
    """
    selector = f'namespace="{_escaped(namespace)}",inference_service="{_escaped(name)}"'
    return _engine_groups(selector, objectives, runbook_base)


def all_services_rule_groups(objectives: ServiceObjectives, *, runbook_base: str) -> list[dict[str, Any]]:
    """Return the same groups for all engines, told apart by ``namespace`` and ``inference_service``: for a Prometheus
    that has no rules from the operator.
    """
    return _engine_groups("", objectives, runbook_base)


def platform_rule_groups(*, runbook_base: str, objectives: ServiceObjectives | None = None) -> list[dict[str, Any]]:
    """Return the rule groups of gateways.

    ``objectives``: its ``availability`` is what users get at the gateway, every service alike; None for the default.
    """
    objective = gateway_objective(objectives or ServiceObjectives())
    alerts = [*burn_alerts(objective), *GATEWAY_ALERTS]
    groups = _groups("sapwood-gateway", [], [objective], alerts)
    return [_rendered(group, "", runbook_base) for group in groups]


def operator_rule_groups(*, runbook_base: str) -> list[dict[str, Any]]:
    """Return the rule groups of the operator: of its autoscaler, for every service alike."""
    return [_rendered({"name": "sapwood-operator-alerts", "rules": OPERATOR_ALERTS}, "", runbook_base)]


def _engine_groups(selector: str, objectives: ServiceObjectives, runbook_base: str) -> list[dict[str, Any]]:
    burning = engine_objectives(objectives)
    alerts = [*(alert for each in burning for alert in burn_alerts(each)), *ENGINE_ALERTS]
    groups = _groups("sapwood-engine", CACHE_RECORDINGS, burning, alerts)
    return [_rendered(group, selector, runbook_base) for group in groups]


def _groups(
    prefix: str, records: Sequence[Recording], objectives: Sequence[Objective], alerts: Sequence[Alert]
) -> list[dict[str, Any]]:
    """Return what records short windows, what records long ones, and what alerts."""
    short = [window for window in WINDOWS if window not in _LONG_WINDOWS]
    return [
        {
            "name": f"{prefix}-records",
            "rules": [*records, *(each.recording(window) for each in objectives for window in short)],
        },
        {
            "name": f"{prefix}-records-long",
            "interval": _LONG_INTERVAL,
            "rules": [each.recording(window) for each in objectives for window in _LONG_WINDOWS],
        },
        {"name": f"{prefix}-alerts", "rules": list(alerts)},
    ]


def _rendered(group: dict[str, Any], selector: str, runbook_base: str) -> dict[str, Any]:
    return group | {"rules": [_rule(each, selector, runbook_base) for each in group["rules"]]}


def _rule(rule: Recording | Alert, selector: str, runbook_base: str) -> dict[str, Any]:
    expr = _selected(rule.expr, selector)
    if isinstance(rule, Recording):
        return {"record": rule.name, "expr": expr}
    pending = {"for": rule.pending} if rule.pending else {}
    annotations = {
        "summary": rule.summary,
        "description": rule.description,
        "runbook_url": f"{runbook_base}#{rule.name.lower()}",
    }
    labels = {"severity": rule.severity, **rule.labels}
    return {"alert": rule.name, "expr": expr, **pending, "labels": labels, "annotations": annotations}


def _selected(expr: str, selector: str) -> str:
    """Put ``selector`` where ``@`` stands."""
    if not selector:
        return expr.replace("{@,", "{").replace("{@}", "")
    return expr.replace("{@", "{" + selector)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
