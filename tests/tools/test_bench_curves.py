"""A cliff is a unit's cost that rises at once and for certain."""

from __future__ import annotations

from curves import Cliff, Curve, Point, cliffs
from figures import Spread


def about(seconds: float, noise: float = 0.01) -> Spread:
    low, high = seconds * (1 - noise), seconds * (1 + noise)
    return Spread(seconds, low, high, low, high)


def test_a_cost_a_unit_that_stays_or_falls_has_no_cliff() -> None:
    points = [Point(n, n, about(0.008 + 0.001 * n)) for n in (1, 2, 4, 8, 16)]
    assert cliffs(Curve("batch", "token", points)) == []


def test_a_jump_between_two_points_is_a_cliff_that_names_them() -> None:
    points = [Point(n, n, about(0.001 * n * (2 if n > 4 else 1), noise=0)) for n in (1, 2, 4, 8)]
    assert cliffs(Curve("batch", "token", points)) == [Cliff(4, 8, 2.0)]


def test_a_rise_within_the_noise_is_no_cliff() -> None:
    points = [Point(1, 1, about(0.01, noise=0.3)), Point(2, 2, about(0.03, noise=0.3))]
    assert cliffs(Curve("batch", "token", points)) == []


def test_what_a_step_costs_anyway_does_not_hide_a_cliff_of_keys() -> None:
    keys = {256: 0.0005, 512: 0.001, 1024: 0.004}
    points = [Point(n, n, about(0.008 + seconds, noise=0)) for n, seconds in keys.items()]
    assert [(c.before, c.after) for c in cliffs(Curve("context", "key", points, base_seconds=0.008))] == [(512, 1024)]
    assert cliffs(Curve("context", "key", points)) == []


def test_a_point_that_is_no_slower_than_the_base_makes_no_cliff_of_the_next() -> None:
    points = [Point(256, 256, about(0.0079, noise=0)), Point(512, 512, about(0.0081, noise=0))]
    assert cliffs(Curve("context", "key", points, base_seconds=0.008)) == []


def test_the_point_that_the_base_is_taken_from_is_no_measure_of_the_next() -> None:
    points = [Point(100, 1, about(0.019, noise=0.03)), Point(75, 256, about(0.385, noise=0.01))]
    assert cliffs(Curve("cached share", "token", points, base_seconds=0.019)) == []
