"""Figures are computed from answers, ratios from pairs of runs."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_tools.bench import report
from sapwood_tools.bench.client import Answer, Failure
from sapwood_tools.bench.compare import turns
from sapwood_tools.bench.cpu_use import CpuUse
from sapwood_tools.bench.measure import Outcome
from sapwood_tools.bench.report import Summary

QUIET = CpuUse(server_cores=2.0, client_cores=0.0, foreign_cores=0.01, stolen_cores=0.0)
BUSY = CpuUse(server_cores=1.0, client_cores=0.0, foreign_cores=0.9, stolen_cores=0.0)


def answer(*, first: float = 1.0, last: float = 4.0, tokens: int = 4, cached: int | None = None) -> Answer:
    return Answer("x", 0.0, first, last, 10, tokens, cached)


def run_of(server: str, variant: int, *, speed: float, failures: int = 0, cpu: CpuUse | None = QUIET) -> Summary:
    outcome = Outcome(
        "w",
        variant,
        4 / speed,
        (answer(),),
        tuple(Failure("x") for _ in range(failures)),
        num_other_lengths=0,
    )
    return report.summarise(server, outcome, cpu)


def test_a_summary_counts_tokens_times_and_failures() -> None:
    answers = (answer(first=1.0, cached=3), answer(first=3.0, cached=5))
    outcome = Outcome("w", 2, 8.0, answers, (Failure("a"), Failure("b"), Failure("a")), num_other_lengths=0)
    summary = report.summarise("s", outcome, None)
    assert summary.output_tokens_per_second == 1.0
    assert summary.ttft_p50_seconds == 2.0
    assert summary.tpot_p50_seconds == pytest.approx((1.0 + 1 / 3) / 2)
    assert summary.num_cached_tokens == 8
    assert summary.failures == {"a": 2, "b": 1}


def test_a_server_that_reports_no_cached_tokens_is_not_said_to_have_none() -> None:
    assert report.summarise("s", Outcome("w", 0, 1.0, (answer(),), (), 0), None).num_cached_tokens is None


def test_a_run_without_answers_is_valid_json_and_a_line_of_the_table() -> None:
    summary = report.summarise("s", Outcome("w", 0, 1.0, (), (Failure("a"),), 0), None)
    fields = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert fields["ttft_p50_seconds"] is None
    assert "w r0" in report.table([summary])


@given(st.lists(st.floats(0, 1e6), min_size=2), st.sampled_from([0.1, 0.5, 0.9]))
def test_a_percentile_is_what_the_standard_library_computes(values: list[float], share: float) -> None:
    expected = statistics.quantiles(values, n=10, method="inclusive")[round(share * 10) - 1]
    assert report.percentile(values, share) == pytest.approx(expected, abs=1e-6)


def test_a_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(report.percentile([], 0.5))


def test_ratios_pair_the_same_variants_and_tell_their_spread() -> None:
    runs = [run_of("ours", v, speed=s) for v, s in enumerate([1.0, 3.0, 2.0])]
    runs += [run_of("peer", v, speed=s) for v, s in enumerate([2.0, 2.0, 2.0])]
    (ratio,) = report.ratios(runs, "ours", "peer")
    assert (ratio.median, ratio.least, ratio.most) == pytest.approx((1.0, 0.5, 1.5))
    assert ratio.num_repetitions == 3


def test_a_run_with_failures_and_a_run_without_a_partner_count_in_no_ratio() -> None:
    runs = [run_of("ours", 0, speed=1.0), run_of("ours", 1, speed=9.0), run_of("ours", 2, speed=9.0)]
    runs += [run_of("peer", 0, speed=1.0), run_of("peer", 1, speed=1.0, failures=1)]
    (ratio,) = report.ratios(runs, "ours", "peer")
    assert ratio.num_repetitions == 1
    assert ratio.most == pytest.approx(1.0)


def test_repetitions_in_which_others_used_the_processors_are_told() -> None:
    runs = [run_of("ours", 0, speed=1.0), run_of("ours", 1, speed=1.0)]
    runs += [run_of("peer", 0, speed=1.0, cpu=BUSY), run_of("peer", 1, speed=1.0)]
    (ratio,) = report.ratios(runs, "ours", "peer")
    assert ratio.num_disturbed == 1


def test_servers_take_turns_in_going_first_and_share_each_variant() -> None:
    order = list(turns(("ours", "peer"), ("a", "b", "c"), 2))
    assert len(order) == 12
    pairs = [order[i : i + 2] for i in range(0, 12, 2)]
    assert all(a.workload == b.workload and a.variant == b.variant for a, b in pairs)
    assert [a.server for a, _ in pairs] == ["ours", "peer"] * 3
