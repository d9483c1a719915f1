"""The runbooks: a section per alert, and queries that ask for what is exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support_docs import Block, blocks
from support_series_names import mistakes

from sapwood_contract.alerting import (
    ServiceObjectives,
    all_services_rule_groups,
    operator_rule_groups,
    platform_rule_groups,
)

PAGE = Path("docs/runbooks.md")
GROUPS = [
    *all_services_rule_groups(ServiceObjectives(), runbook_base=""),
    *platform_rule_groups(runbook_base=""),
    *operator_rule_groups(runbook_base=""),
]
ALERTS = {rule["alert"] for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]}


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    assert set(SECTIONS) == ALERTS


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_a_section_says_what_it_is_what_users_feel_how_to_make_sure_what_to_do_and_when_it_is_nothing(
    alert: str,
) -> None:
    parts = re.findall(r"^\*\*([^*]+)\.\*\*", SECTIONS[alert], re.MULTILINE)
    assert parts == ["What it means", "What users feel", "Make sure", "What to do", "When it is nothing"]


@pytest.mark.parametrize("block", blocks(PAGE, "promql"), ids=lambda block: block.code[:60])
def test_a_query_asks_for_what_is_exported(block: Block) -> None:
    assert mistakes(block.code, RECORDED) == []
