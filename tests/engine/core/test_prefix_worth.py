"""How often a prefix is expected to be used, by its use so far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_engine.core.prefix_worth import HORIZON_SECONDS, NEW_USES, expected_uses

seconds = st.floats(0.0, 1e6)


@pytest.mark.parametrize(
    ("hits", "age", "idle", "uses"),
    [
        (0, 0.0, 0.0, NEW_USES),
        (1, 0.0, 0.0, 1 + NEW_USES),
        (9, HORIZON_SECONDS, 0.0, (9 + NEW_USES) / 2),
        (9, HORIZON_SECONDS, HORIZON_SECONDS, (9 + NEW_USES) / 4),
        (99, 99 * HORIZON_SECONDS, 0.0, (99 + NEW_USES) / 100),
    ],
)
def test_what_came_so_far_is_spread_over_its_life_and_halved_with_every_five_minutes_without_a_use(
    hits: int, age: float, idle: float, uses: float
) -> None:
    assert expected_uses(hits, age_seconds=age, idle_seconds=idle) == pytest.approx(uses)


@given(hits=st.integers(0, 1000), age=seconds, idle=seconds, more=st.floats(1.0, 1e6))
def test_more_uses_never_make_it_less_and_more_age_or_rest_never_more(
    hits: int, age: float, idle: float, more: float
) -> None:
    uses = expected_uses(hits, age_seconds=age, idle_seconds=idle)
    assert 0.0 <= uses <= hits + NEW_USES
    assert expected_uses(hits + 1, age_seconds=age, idle_seconds=idle) >= uses
    assert expected_uses(hits, age_seconds=age + more, idle_seconds=idle) <= uses
    assert expected_uses(hits, age_seconds=age, idle_seconds=idle + more) <= uses


def test_a_clock_that_was_known_less_exactly_then_gives_no_more_than_its_uses() -> None:
    assert expected_uses(3, age_seconds=-5.0, idle_seconds=-5.0) == 3 + NEW_USES
