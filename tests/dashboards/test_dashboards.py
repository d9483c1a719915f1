"""The dashboards: generated, complete, and true to the series that programs export."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from support_promql import read
from support_series_names import mistakes

from sapwood_contract.metrics import SERIES
from sapwood_dashboards.catalogue import DASHBOARDS
from sapwood_dashboards.grafana import RUNBOOKS
from sapwood_dashboards.panels import Dashboard, Panel
from sapwood_dashboards.written import rule_files

RULES = [rule for text in rule_files().values() for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
EXPRESSIONS = [
    pytest.param(query.expr, id=f"{dashboard.uid}-{panel.title}-{number}")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
]
every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
every_panel = pytest.mark.parametrize(
    "panel",
    [pytest.param(panel, id=f"{each.uid}-{panel.title}") for each in DASHBOARDS for panel in each.panels],
)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_dashboards", "dashboards/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(expr: str) -> str:
    """Return ``expr`` as Prometheus would read it, with nothing chosen."""
    return re.sub(r"@\w+,?", "", expr).replace("$__rate_interval", "5m")


def committed(dashboard: Dashboard) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(f"dashboards/{dashboard.uid}.json").read_text(encoding="utf-8"))
    return loaded


def drawn_panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [panel for panel in committed(dashboard)["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("path", generator().expected(), ids=lambda path: "/".join(path.parts[-3:]))
def test_what_is_committed_is_what_make_dashboards_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generator().expected()[path], "run: make dashboards"


def test_nothing_is_left_of_dashboards_and_rules_that_there_are_no_more() -> None:
    expected = generator().expected()
    folders = {path.parent for path in expected}
    assert {path for folder in folders for path in (*folder.glob("*.json"), *folder.glob("*.yaml"))} == set(expected)


def test_there_are_nine_with_titles_and_addresses_of_their_own() -> None:
    assert len(DASHBOARDS) == len({each.uid for each in DASHBOARDS}) == len({each.title for each in DASHBOARDS}) == 9
    assert all(re.fullmatch(r"sapwood-[a-z-]{1,30}", each.uid) for each in DASHBOARDS)


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_what_an_expression_names_is_exported_or_recorded(expr: str) -> None:
    assert mistakes(plain(expr), RECORDED) == []


@every_dashboard
def test_what_can_be_chosen_are_labels_of_a_series_that_is_exported(dashboard: Dashboard) -> None:
    for query in dashboard.variable_queries().values():
        assert mistakes(query, RECORDED) == []


def test_every_series_is_shown_somewhere() -> None:
    expressions = [query.expr for each in DASHBOARDS for panel in each.panels for query in panel.queries]
    expressions += [rule["expr"] for rule in RULES]
    asked = {
        re.sub(r"_(bucket|sum|count)$", "", selection.series)
        for expr in expressions
        for selection in read(plain(expr)).selections
    }
    assert {series.name for series in SERIES} - asked == set()


@every_panel
def test_a_panel_says_what_to_do_and_in_which_unit(panel: Panel) -> None:
    assert panel.queries
    assert len(panel.description) > len(panel.title)
    assert panel.description.endswith(".")
    assert panel.width in (4, 8, 12, 24)
    assert not panel.runbook or panel.runbook in ALERTS
    values = [limit.value for limit in panel.limits]
    assert values == sorted(values)


@every_panel
def test_several_lines_of_a_panel_have_names(panel: Panel) -> None:
    legends = [query.legend for query in panel.queries]
    assert len(set(legends)) == len(legends)
    if len(legends) > 1:
        assert all(legends)


@every_panel
def test_a_name_of_a_line_uses_labels_that_it_has(panel: Panel) -> None:
    for query in panel.queries:
        used = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        of_rules = {"namespace", "inference_service"} if RECORDED & set(re.findall(r"[\w:]+", query.expr)) else set()
        assert used <= read(plain(query.expr)).grouped_by | of_rules


@every_dashboard
def test_rows_are_full(dashboard: Dashboard) -> None:
    for row in dashboard.rows:
        filled = 0
        for panel in row.panels:
            filled = filled % 24 + panel.width
            assert filled <= 24, panel.title
        assert filled == 24, row.title


@every_dashboard
def test_json_has_what_grafana_needs_of_every_panel(dashboard: Dashboard) -> None:
    loaded = committed(dashboard)
    ids = [panel["id"] for panel in loaded["panels"]]
    assert len(set(ids)) == len(ids)
    assert 0 not in ids
    for panel in drawn_panels(dashboard):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert all("@" not in target["expr"] for target in panel["targets"])


@every_dashboard
def test_dashboards_lead_to_each_other_and_to_runbooks(dashboard: Dashboard) -> None:
    loaded = committed(dashboard)
    [link] = loaded["links"]
    assert link["type"] == "dashboards"
    assert set(link["tags"]) <= set(loaded["tags"])
    [runbooks] = [each for each in loaded["templating"]["list"] if each["name"] == "runbooks"]
    assert runbooks["query"] == RUNBOOKS
    for panel, drawn in zip(dashboard.panels, drawn_panels(dashboard), strict=True):
        urls = [each["url"] for each in drawn.get("links", [])]
        assert urls == ([f"${{runbooks}}#{panel.runbook.lower()}"] if panel.runbook else [])


@every_dashboard
def test_everything_is_chosen_at_first_also_what_was_scraped_without_a_label(dashboard: Dashboard) -> None:
    variables = {each["name"]: each for each in committed(dashboard)["templating"]["list"]}
    assert set(variables) == {"datasource", "runbooks", *dashboard.variables}
    for name in dashboard.variables:
        assert variables[name]["current"]["value"] == "$__all"
        assert variables[name]["allValue"] == ".*"


@every_dashboard
def test_the_documents_show_a_picture_of_it(dashboard: Dashboard) -> None:
    picture = Path(f"docs/images/dashboards/{dashboard.uid}.png")
    assert 10_000 < picture.stat().st_size < 250_000
    assert f"(images/dashboards/{picture.name})" in Path("docs/dashboards.md").read_text(encoding="utf-8")
