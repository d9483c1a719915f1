"""Numbers as texts and bars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_metrics.quantiles import Quantile
from sapwood_tools.top import shown
from sapwood_tools.top.figures import Latency


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.12, "120 ms"),
        (3.44, "3.4 s"),
        (75.0, "75 s"),
        (720.0, "12 min"),
        (18_400.0, "5.1 h"),
    ],
)
def test_times_have_the_unit_that_fits(number: float, text: str) -> None:
    assert shown.seconds(number) == text


def test_what_is_unknown_is_a_dash_and_what_is_none_is_zero() -> None:
    assert [shown.whole(None), shown.rate(None), shown.share(None), shown.quantile(None)] == ["–"] * 4
    assert [shown.whole(0), shown.rate(0.0), shown.share(0.0)] == ["0", "0", "0%"]
    assert shown.latency(None) == "p50 –, p95 –"


def test_rates_have_as_many_digits_as_say_something() -> None:
    assert [shown.rate(number) for number in (0.04, 3.21, 120.4, 12_345.6)] == ["0.0", "3.2", "120", "12,346"]


def test_a_latency_beyond_the_buckets_is_at_least_so_much() -> None:
    assert shown.latency(Latency(Quantile(0.012), Quantile(60.0, is_least=True))) == "p50 12 ms, p95 ≥ 60 s"


@given(st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=6), st.integers(6, 80))
def test_a_bar_is_full_and_nothing_that_is_there_is_left_out(amounts: list[float], width: int) -> None:
    cells = shown.apportion(amounts, width)
    assert sum(cells) == (width if sum(amounts) > 0 else 0)
    assert all((number > 0) == (amount > 0) for number, amount in zip(cells, amounts, strict=True))


def test_cells_follow_the_shares() -> None:
    assert shown.apportion([50, 25, 25, 0], 8) == [4, 2, 2, 0]
    assert shown.bar({"active": 1, "free": 3}, shown.KV_CELLS, 8).plain == "██······"
    assert shown.bar({"active": 0, "free": 0}, shown.KV_CELLS, 8).plain == ""
    assert shown.bar({"decode": 1, "of a later version": 1}, shown.PHASE_CELLS, 4).plain == "██??"


def test_a_sparkline_rises_with_the_ratio_and_keeps_both_ends() -> None:
    assert shown.sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    drawn = shown.sparkline([i / 63 for i in range(64)], 16)
    assert (len(drawn), drawn[0], drawn[-1]) == (16, "▁", "█")
