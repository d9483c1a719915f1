"""Dashboards and alerts of the chart are those of the repository, where Grafana and Prometheus look for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support_chart import of_kind, render

from sapwood_contract.alerting import operator_rule_groups, platform_rule_groups

DASHBOARDS = Path("dashboards")
OTHER = {"metrics": {"rules": {"create": "Always", "runbookUrl": "https://example.com/runbooks"}}}


def dashboards(**metrics: Any) -> dict[str, Any]:
    return {
        name: manifest
        for name, manifest in of_kind(render({"metrics": metrics} if metrics else {}), "ConfigMap").items()
        if name.startswith("sapwood-dashboards-")
    }


def test_every_dashboard_is_a_config_map_that_grafanas_sidecar_finds() -> None:
    made = dashboards(**OTHER["metrics"])
    assert len(made) == 9
    for manifest in made.values():
        assert manifest["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert manifest["metadata"]["annotations"] == {"grafana_folder": "Sapwood"}
    files = {file: json.loads(text) for manifest in made.values() for file, text in manifest["data"].items()}
    texts = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.glob("*.json")}
    page = OTHER["metrics"]["rules"]["runbookUrl"]
    assert files == {file: json.loads(text.replace("docs/runbooks.md", page)) for file, text in texts.items()}


def test_where_dashboards_are_looked_for_can_be_said() -> None:
    (one, *_) = dashboards(dashboards={"labels": {"found": "yes"}, "folder": ""}).values()
    assert one["metadata"]["labels"]["found"] == "yes"
    assert "annotations" not in one["metadata"]
    assert dashboards(dashboards={"enabled": False}) == {}


@pytest.mark.parametrize(
    ("values", "page"),
    [
        ({"metrics": {"rules": {"create": "Always"}}}, "http://sapwood-operator.prod.svc.cluster.local/runbooks"),
        (OTHER, "https://example.com/runbooks"),
    ],
    ids=["the operator's own", "published"],
)
def test_the_rules_are_those_of_the_contract_and_link_to_the_runbooks(values: dict[str, Any], page: str) -> None:
    rules = of_kind(render(values), "PrometheusRule")
    assert {name: rule["spec"]["groups"] for name, rule in rules.items()} == {
        "sapwood-gateway": platform_rule_groups(runbook_base=page),
        "sapwood-operator": operator_rule_groups(runbook_base=page),
    }


def test_series_that_name_a_service_themselves_keep_its_namespace() -> None:
    """Prometheus would give them that of the operator's pod, and call theirs exported_namespace."""
    monitors = of_kind(render({"metrics": {"podMonitor": {"create": "Always"}}}), "PodMonitor")
    honors = {
        name: [endpoint.get("honorLabels", False) for endpoint in monitor["spec"]["podMetricsEndpoints"]]
        for name, monitor in monitors.items()
    }
    assert honors == {"sapwood-operator": [True], "sapwood-gateway": [False]}


def test_rules_bear_the_labels_by_which_a_prometheus_selects_them() -> None:
    metrics = {"labels": {"release": "prometheus"}, "rules": {"create": "Always"}, "podMonitor": {"create": "Always"}}
    manifests = render({"metrics": metrics})
    for kind in ("PrometheusRule", "PodMonitor"):
        for manifest in of_kind(manifests, kind).values():
            assert manifest["metadata"]["labels"]["release"] == "prometheus"
