"""The page on scaling: every field, reason and condition that there is, and examples that their readers would take."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support_docs import blocks, commands
from support_programs import needs
from support_series_names import mistakes

from sapwood_contract.alerting import ServiceObjectives, all_services_rule_groups
from sapwood_operator.adapters.kinds import SERVICES
from sapwood_operator.autoscaling.explain import RULES
from sapwood_operator.autoscaling.recorded import VERDICTS
from sapwood_operator.kubectl.cli import build_parser

PAGE = Path("docs/scaling.md")
TEXT = PAGE.read_text(encoding="utf-8")
MANIFESTS = {each.get("kind", "rules"): each for block in blocks(PAGE, "yaml") for each in [yaml.safe_load(block.code)]}
GROUPS = all_services_rule_groups(ServiceObjectives(), runbook_base="")
RECORDED = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}


def rows(*first_words: str) -> list[list[str]]:
    """The cells of a table that begins with a row of these words."""
    head = "| " + " | ".join(first_words)
    table = TEXT[TEXT.index(head) :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def fields(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every field that holds a value or a list."""
    for name, inner in schema["properties"].items():
        if "properties" in inner:
            yield from fields(inner, f"{path}{name}.")
        else:
            yield path + name


def test_every_field_of_a_policy_is_in_the_table_and_no_other() -> None:
    (version,) = yaml.safe_load(Path("crds/autoscalingpolicies.yaml").read_text(encoding="utf-8"))["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert sorted(name for row in rows("field") for name in named(row[0])) == sorted(fields(spec))


def test_every_reason_is_in_the_table_and_no_other() -> None:
    assert sorted(name for row in rows("reason") for name in named(row[0])) == sorted(RULES)


def test_every_condition_says_what_to_do_and_no_other() -> None:
    told = [(named(row[0])[0], reason) for row in rows("condition", "reason") for reason in named(row[1])]
    assert sorted(told) == sorted(VERDICTS)


@pytest.mark.parametrize("kind", ["ScaledObject", "HorizontalPodAutoscaler"])
def test_others_scale_the_service_itself(kind: str) -> None:
    target = MANIFESTS[kind]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": "chat"}


def queries() -> list[str]:
    asked = [trigger["metadata"]["query"] for trigger in MANIFESTS["ScaledObject"]["spec"]["triggers"]]
    (rule,) = MANIFESTS["rules"]["externalRules"]
    return [*asked, rule["seriesQuery"], rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="default"')]


def test_their_queries_ask_for_what_is_exported_and_recorded_in_promql(tmp_path: Path) -> None:
    assert [mistake for query in queries() for mistake in mistakes(query, RECORDED)] == []
    rules = [{"record": f"asked:{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}), encoding="utf-8")
    subprocess.run([needs("promtool"), "check", "rules", str(tmp_path / "rules.yml")], check=True, capture_output=True)


def test_one_of_the_queries_is_recorded_and_the_hpas_metric_is_the_adapters() -> None:
    assert any(query.partition("{")[0] in RECORDED for query in queries())
    (metric,) = MANIFESTS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == MANIFESTS["rules"]["externalRules"][0]["name"]["as"]


def test_the_plugins_commands_are_accepted() -> None:
    asked = [
        words[2:] for block in blocks(PAGE, "sh") for words in commands(block) if words[:2] == ["kubectl", "sapwood"]
    ]
    assert {words[0] for words in asked} == {"explain", "what-if"}
    for words in asked:
        assert build_parser().parse_args(words).command == words[0]
