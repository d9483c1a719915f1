"""Figures are printed with their spread, and a missed bar is told."""

from __future__ import annotations

import json

import pytest

from figures import Bar, Spread, judge, milliseconds, ratios, say, spread


def test_a_spread_is_told_by_its_median_quartiles_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    say("reading", "ms", spread([3, 1, 2, 5, 4]), threads=2)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "name": "reading", "unit": "ms", "median": 3, "lower": 2, "upper": 4, "least": 1, "most": 5, "threads": 2,
    }  # fmt: skip


def test_one_value_is_its_own_spread() -> None:
    assert spread([7]) == Spread(7, 7, 7, 7, 7)


def test_ratios_are_taken_within_a_round() -> None:
    found = ratios([2, 40, 6], [1, 20, 3])
    assert (found.least, found.most) == (2, 2)


def test_milliseconds_are_the_same_spread() -> None:
    assert milliseconds(spread([0.25])).median == 250


@pytest.mark.parametrize(
    ("value", "bar", "holds"),
    [
        (1.3, Bar(1.3, "at most"), True),
        (1.31, Bar(1.3, "at most"), False),
        (0.75, Bar(0.75, "at least"), True),
        (0.74, Bar(0.75, "at least"), False),
    ],
)
def test_a_bar_is_held_or_the_miss_is_said(
    value: float, bar: Bar, holds: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge("share", value, bar, binding="memory") is holds
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "name": "share", "value": value, "binding": "memory", "bar": f"{bar.side} {bar.limit}", "holds": holds,
    }  # fmt: skip
    assert ("share" in err) is not holds


def test_the_median_of_a_spread_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("ratio", spread([1, 1, 9]), Bar(1.3, "at most"))
    assert json.loads(capsys.readouterr().out)["most"] == 9
