"""Columns and ages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sapwood_operator.kubectl.text import age, columns

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def test_columns_stand_two_spaces_apart_and_the_last_ends_where_it_ends() -> None:
    assert columns([("a", "1", "x y"), ("long", "22", "z")], indent="  ") == ["  a     1   x y", "  long  22  z"]


def test_no_rows_are_no_lines() -> None:
    assert columns([]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d"), (-5, "0s")],
)
def test_an_age_is_told_in_its_largest_unit_that_has_two(seconds: int, text: str) -> None:
    assert age((NOON - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z"), NOON) == text
