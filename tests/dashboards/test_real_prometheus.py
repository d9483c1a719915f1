"""A real Prometheus that scrapes two real engines and a gateway under a minute of load, and what it then knows.

What is rare is made to happen: evictions, preemptions, a full queue, refusals, clients that leave, engines that end and
start anew. Lost batches of cache events are not among it (a gateway asks anew for all blocks once engines are back,
which counts as a gap too); nor are errors of an engine, whose series are at 0. The operator's series come from its own
registry, without a cluster, and its decisions are about a service that is made up: see
`sapwood_dashboards.stand.programs`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support_programs import needs

from sapwood_dashboards.pictures import draw
from sapwood_dashboards.radix_cache import RADIX_CACHE
from sapwood_dashboards.stand.answers import Answers, panel_expressions, rule_expressions
from sapwood_dashboards.stand.observed import observe
from sapwood_dashboards.stand.programs import NAMESPACE, SERVICE

pytestmark = pytest.mark.engine

LOAD_SECONDS = 60.0
MAY_BE_EMPTY: set[str] = set()
PROVOKED = (
    ("sapwood_preemptions_total", "reason", {"kv_full"}),
    ("sapwood_evicted_tokens_total", "reason", {"capacity"}),
    ("sapwood_requests_total", "finish_reason", {"length", "abort"}),
    ("sapwood_http_requests_total", "code", {"200", "400", "499"}),
    ("sapwood_gateway_requests_total", "code", {"200", "400", "401", "429", "499", "503"}),
    ("sapwood_gateway_rejected_total", "reason", {"auth", "rate", "overload"}),
    ("sapwood_gateway_route_total", "result", {"prefix", "least_load", "none"}),
    ("sapwood_gateway_attempt_failures_total", "reason", {"cut"}),
    ("sapwood_gateway_event_gaps_total", "reason", {"snapshot"}),
)
"""Counters with a panel of their own, and which of their lines must have left zero."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    needs("prometheus")
    return asyncio.run(observe(tmp_path_factory.mktemp("stand"), LOAD_SECONDS))


def test_no_panel_is_dead(answers: Answers) -> None:
    assert set(answers.empty(panel_expressions())) == MAY_BE_EMPTY


def test_every_rule_has_what_it_looks_at(answers: Answers) -> None:
    assert set(answers.empty(rule_expressions())) == MAY_BE_EMPTY


@pytest.mark.parametrize(("series", "label", "values"), PROVOKED, ids=lambda given: str(given)[:40])
def test_what_is_rare_was_seen(answers: Answers, series: str, label: str, values: set[str]) -> None:
    [expr] = {each for each in panel_expressions() if each.startswith(f"sum by ({label}) (rate({series}{{")}
    assert values <= {line.labels[label] for line in answers.lines[expr] if max(line.values) > 0}


def test_users_who_found_no_engine_are_told_of_by_an_alert_and_nobody_of_a_broken_cache(answers: Answers) -> None:
    assert "AvailabilityBudgetBurn" in answers.firing
    assert "CacheInvariantBroken" not in answers.firing


def test_what_the_operator_says_of_a_service_bears_the_services_name_and_not_the_operators(answers: Answers) -> None:
    [expr] = {each for each in panel_expressions() if "sapwood_autoscaler_desired_replicas{@scaled}" in each}
    [line] = answers.lines[expr]
    assert line.labels == {"namespace": NAMESPACE, "name": SERVICE}
    assert len(set(line.values)) > 1
    assert "AutoscalerBlind" not in answers.firing


def test_the_engines_came_back(answers: Answers) -> None:
    [state] = {each for each in panel_expressions() if each.startswith("sum by (state) (sapwood_engine_state")}
    [ready] = [line for line in answers.lines[state] if line.labels["state"] == "ready"]
    assert ready.values[-1] == 2
    assert min(ready.values) < 2


def test_a_dashboard_can_be_drawn_of_it(answers: Answers, tmp_path: Path) -> None:
    draw(RADIX_CACHE, answers, tmp_path / "picture.png")
    assert 10_000 < (tmp_path / "picture.png").stat().st_size < 250_000
