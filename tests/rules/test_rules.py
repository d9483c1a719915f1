"""The rules: Prometheus' own tool reads and tests them, and what they name is exported."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support_programs import needs
from support_promql import read
from support_series_names import OF_SCRAPES, mistakes

from sapwood_contract.alerting import (
    TTFT_BORDERS,
    InvalidObjectives,
    ServiceObjectives,
    all_services_rule_groups,
    operator_rule_groups,
    platform_rule_groups,
    service_rule_groups,
)

BASE = "http://sapwood-operator.sapwood-system.svc/runbooks"
CASES = sorted(Path("tests/rules").glob("*.yaml"))
GATEWAY = platform_rule_groups(runbook_base=BASE)
OPERATOR = operator_rule_groups(runbook_base=BASE)
ALL = all_services_rule_groups(ServiceObjectives(), runbook_base=BASE)
EVERY = [*ALL, *GATEWAY, *OPERATOR]
STRICT = ServiceObjectives(ttft_seconds=0.5, ttft_ratio=0.99, availability=0.999)


def rules(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for group in groups for rule in group["rules"]]


def alerts(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for rule in rules(groups) if "alert" in rule]


def recorded(groups: list[dict[str, Any]]) -> set[str]:
    return {rule["record"] for rule in rules(groups) if "record" in rule}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([needs("promtool"), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_fire_and_stay_silent_as_the_cases_say(path: Path) -> None:
    run = promtool("test", "rules", path)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires, is_silent = set(), set()
    for path in CASES:
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for case in test.get("alert_rule_test", []):
                for alert in case["exp_alerts"]:
                    labels = alert["exp_labels"]
                    fires.add((case["alertname"], labels.get("component"), labels.get("burn")))
                if not case["exp_alerts"]:
                    is_silent.add(case["alertname"])
    ours = alerts(EVERY)
    assert fires == {(each["alert"], each["labels"].get("component"), each["labels"].get("burn")) for each in ours}
    assert is_silent == {each["alert"] for each in ours}


@pytest.mark.parametrize("objectives", [ServiceObjectives(), STRICT], ids=["default", "strict"])
def test_promtool_accepts_what_is_rendered_for_one_service(objectives: ServiceObjectives, tmp_path: Path) -> None:
    groups = [*service_rule_groups("team", "chat", objectives, runbook_base=BASE), *GATEWAY, *OPERATOR]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    run = promtool("check", "rules", "--lint-fatal", tmp_path / "rules.yaml")
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_selector_of_a_service_is_of_that_service_alone() -> None:
    chosen = {("namespace", "=", "team"), ("inference_service", "=", "chat")}
    for rule in rules(service_rule_groups("team", "chat", ServiceObjectives(), runbook_base=BASE)):
        selections = read(rule["expr"]).selections
        assert selections
        assert all(chosen <= set(selection.matchers) for selection in selections), rule["expr"]


def test_a_name_cannot_leave_its_quotes() -> None:
    [first, *_] = rules(service_rule_groups('a"} or b{c="\\', "chat", ServiceObjectives(), runbook_base=BASE))
    assert 'namespace="a\\"} or b{c=\\"\\\\",inference_service="chat"' in first["expr"]


@pytest.mark.parametrize("rule", rules(EVERY), ids=lambda rule: rule.get("alert") or rule["record"])
def test_what_a_rule_names_is_exported_or_recorded(rule: dict[str, Any]) -> None:
    assert mistakes(rule["expr"], recorded(EVERY)) == []


def test_a_renamed_series_is_named() -> None:
    assert mistakes("sum(rate(sapwood_request_total[5m]))", set()) == [
        "sapwood_request_total is exported by no program and recorded by no rule"
    ]
    assert mistakes('sapwood_kv_tokens{state="spare"}', set()) == ["state of sapwood_kv_tokens is never spare"]
    assert mistakes('sapwood_kv_tokens{state=~"free|spare"}', set()) == ["state of sapwood_kv_tokens is never spare"]
    assert mistakes('sapwood_kv_tokens{mood="free"}', set()) == ["sapwood_kv_tokens has no label mood"]
    assert mistakes("sum by (mood) (sapwood_kv_tokens)", set()) == [
        "grouped by mood, which is no label of these series"
    ]
    assert mistakes('sapwood_step_seconds_bucket{le="7.0"}', set()) == [
        "le of sapwood_step_seconds_bucket is never 7.0"
    ]
    assert mistakes("sapwood_step_seconds", set()) == [
        "sapwood_step_seconds is exported by no program and recorded by no rule"
    ]


def test_an_alert_says_who_where_and_what_to_read() -> None:
    for alert in alerts(EVERY):
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["description"].endswith(".")
        assert alert["annotations"]["runbook_url"] == f"{BASE}#{alert['alert'].lower()}"


def test_no_rule_adds_labels_that_prometheus_has_for_targets() -> None:
    assert all(OF_SCRAPES.isdisjoint(alert["labels"]) for alert in alerts(EVERY))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.9999])
def test_every_burn_can_be_reached_and_faster_ones_are_never_easier(share: float) -> None:
    groups = service_rule_groups(
        "team", "chat", ServiceObjectives(ttft_ratio=share, availability=share), runbook_base=BASE
    )
    for name in ("TTFTBudgetBurn", "AvailabilityBudgetBurn"):
        burning = [alert["expr"] for alert in alerts(groups) if alert["alert"] == name]
        thresholds = [float(expr.split(" > ")[1].split()[0]) for expr in burning]
        assert len(thresholds) == 4
        assert thresholds == sorted(thresholds, reverse=True)
        assert round(1 - share, 6) <= thresholds[-1]
        assert thresholds[0] < 1


def test_objectives_are_on_the_borders_of_buckets() -> None:
    assert ServiceObjectives().ttft_seconds in TTFT_BORDERS
    for rule in rules(service_rule_groups("team", "chat", STRICT, runbook_base=BASE)):
        for selection in read(rule["expr"]).selections:
            if selection.series == "sapwood_time_to_first_token_seconds_bucket":
                assert ("le", "=", "0.5") in selection.matchers


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("ttft_seconds", 3.0, "give one of 0.001, 0.005"),
        ("ttft_ratio", 1.0, "give a share from 0.5 to below 1"),
        ("availability", 99.0, "give a share from 0.5 to below 1"),
        ("availability", float("nan"), "give a share"),
    ],
)
def test_an_objective_that_cannot_be_measured_is_refused_by_name(field: str, value: float, says: str) -> None:
    with pytest.raises(InvalidObjectives, match=rf"^{field} is {value!r}; {says}"):
        ServiceObjectives(**{field: value})


def test_no_record_is_forgotten_between_two_evaluations() -> None:
    """Prometheus shows no sample that is older than 5 minutes."""
    assert {group["interval"] for group in EVERY if "interval" in group} <= {"1m", "2m", "3m", "4m"}
