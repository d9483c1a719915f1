"""What a scraped histogram says of its values."""

from __future__ import annotations

import math

import pytest

from sapwood_metrics.quantiles import Quantile, quantile

INF = math.inf
QUANTILES: list[tuple[str, list[tuple[float, float]], float, Quantile | None]] = [
    ("no buckets", [], 0.5, None),
    ("nothing observed", [(1.0, 0), (INF, 0)], 0.5, None),
    ("in the first bucket", [(1.0, 4), (INF, 4)], 0.5, Quantile(0.5)),
    ("in a later one", [(1.0, 0), (2.0, 4), (INF, 4)], 0.25, Quantile(1.25)),
    ("at a border", [(1.0, 2), (2.0, 4), (INF, 4)], 0.5, Quantile(1.0)),
    ("after empty ones", [(1.0, 2), (2.0, 2), (4.0, 4), (INF, 4)], 0.75, Quantile(3.0)),
    ("beyond the last bound", [(1.0, 1), (INF, 4)], 0.95, Quantile(1.0, is_least=True)),
    ("all of it beyond", [(1.0, 0), (INF, 4)], 0.5, Quantile(1.0, is_least=True)),
]


@pytest.mark.parametrize(
    ("buckets", "share", "expected"), [row[1:] for row in QUANTILES], ids=[row[0] for row in QUANTILES]
)
def test_a_quantile_lies_on_a_straight_line_inside_its_bucket(
    buckets: list[tuple[float, float]], share: float, expected: Quantile | None
) -> None:
    assert quantile(buckets, share) == expected
