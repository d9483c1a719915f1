"""The files that follow from the data: a JSON per dashboard, and the rules for a Prometheus without the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sapwood_contract.alerting import (
    ServiceObjectives,
    all_services_rule_groups,
    operator_rule_groups,
    platform_rule_groups,
)
from sapwood_dashboards.catalogue import DASHBOARDS
from sapwood_dashboards.grafana import RUNBOOKS, dashboard_json

_HEAD = "# Written by dashboards/generate.py; `make dashboards` writes it anew.\n"


def dashboard_files() -> dict[Path, str]:
    """Return by name, below ``dashboards``, the text of every dashboard."""
    return {Path(f"{each.uid}.json"): dashboard_json(each) for each in DASHBOARDS}


def rule_files() -> dict[Path, str]:
    """Return by name, below ``dashboards/rules``, the text of the rules of all engines, gateways and operator."""
    engines = all_services_rule_groups(ServiceObjectives(), runbook_base=RUNBOOKS)
    return {
        Path("engines.yaml"): _rules(engines),
        Path("gateways.yaml"): _rules(platform_rule_groups(runbook_base=RUNBOOKS)),
        Path("operator.yaml"): _rules(operator_rule_groups(runbook_base=RUNBOOKS)),
    }


def _rules(groups: list[dict[str, Any]]) -> str:
    return _HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=120, allow_unicode=True)
