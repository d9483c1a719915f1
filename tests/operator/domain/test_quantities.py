"""Quantities and durations."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sapwood_operator.domain.quantities import quantity, seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", Decimal(1)),
        (2, Decimal(2)),
        ("1500m", Decimal("1.5")),
        ("0.5", Decimal("0.5")),
        (".5", Decimal("0.5")),
        ("2Gi", Decimal(2 * 1024**3)),
        ("1E", Decimal(10**18)),
        ("1e3", Decimal(1000)),
        ("100u", Decimal("0.0001")),
    ],
)
def test_a_quantity_is_read_by_its_value(text: str | int, value: Decimal) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1gi", "one", "1e9999", True, None, "1Gi "])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5), ("0s", 0)]
)
def test_a_duration_is_read_in_seconds(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "10", "10d", "m", "-1s", "1s 2s", "1h!"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)
