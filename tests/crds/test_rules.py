"""Every CEL rule has a case in `support_crd_cases`, and every object there is one that only a rule could refuse."""

from __future__ import annotations

import re

from support_crd_cases import CASES, Case, manifest
from support_crds import problems, rules


def shown(case: Case) -> tuple[str, str, str, str]:
    return case.kind, re.sub(r"\[\d+\]", "[]", case.field), case.message, case.reason


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    kinds = {case.kind for case in CASES}
    written = {
        (kind, (path + rule.get("fieldPath", "")).removeprefix("."), rule["message"], rule.get("reason", _INVALID))
        for kind in kinds
        for path, rule in rules(kind)
    }
    assert written == {shown(case) for case in CASES}


_INVALID = "FieldValueInvalid"


def test_the_schema_alone_accepts_every_object_of_the_cases() -> None:
    for case in CASES:
        for changes in (case.accepted, case.refused, case.before or {}):
            assert not problems(manifest(case.kind, changes)), case


def test_no_two_cases_have_the_same_name() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
