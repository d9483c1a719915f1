"""The tables of the operator's README are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from support_operator import ALL_APIS, WITH_SECRET, a_service

from sapwood_operator.autoscaling.recorded import VERDICTS
from sapwood_operator.domain import policies
from sapwood_operator.domain.children.desired import desired_children
from sapwood_operator.domain.conditions import TABLE
from sapwood_operator.domain.events import RULES
from sapwood_operator.domain.spec import read

README = Path("operator/README.md")


def table(name: str) -> list[list[str]]:
    """The rows of a marked table, without its head."""
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found, f"{README} marks no table {name}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()[2:]]


def test_every_child_stands_in_the_table_of_children() -> None:
    exposure = {"ingress": {"host": "chat.example.com"}, "gateway": {"parentRefs": [{"name": "edge"}]}}
    spec = read(a_service(exposure=exposure, tenancy={"authentication": "ApiKey"}))
    made = desired_children(spec, WITH_SECRET, replicas=1, apis=ALL_APIS)
    told = [(child["kind"], child["metadata"]["name"].replace("chat", "NAME")) for child in made]
    assert [row[:2] for row in table("children")] == [
        [kind, re.sub(r"-[0-9a-f]{10}$", "-HASH", name)] for kind, name in told
    ]


def test_every_rule_of_a_condition_stands_in_the_table_of_conditions() -> None:
    assert [row[:2] for row in table("conditions")] == [
        [f"`{type_}`", rule.sentence] for type_, rules in TABLE.items() for rule in rules
    ]


def test_every_rule_of_an_event_stands_in_the_table_of_events() -> None:
    assert [row[0] for row in table("events")] == [rule.sentence for rule in RULES]


def test_every_condition_of_scaling_stands_in_the_table_of_scaling() -> None:
    assert table("scaling") == [
        [f"`{type_}`", sentence, status, f"`{reason}`"] for (type_, reason), (status, sentence) in VERDICTS.items()
    ]


def test_every_rule_of_a_policy_stands_in_the_table_of_policies() -> None:
    assert [row[0] for row in table("policies")] == [rule.sentence for rule in policies.READY]
