"""Curves of what grows, and their cliffs: points at which a unit of work suddenly costs more than at the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from figures import Spread

MOST_RISE = 1.3
"""A token or key may cost this many times what it did at the point before."""
_LEAST_SHARE = 0.05
"""Of the base: smaller differences from it are noise, and count as this much."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size and what it took."""

    x: float
    units: float
    """Tokens or keys that the time is divided by"""
    seconds: Spread


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in the order in which work grows."""

    name: str
    unit: str
    points: Sequence[Point]
    base_seconds: float = 0.0
    """What it takes without any of the units; only what comes on top is their cost."""

    def cost_seconds(self, point: Point) -> float:
        """Return what a unit costs at ``point``, median."""
        return (point.seconds.median - self.base_seconds) / point.units


@dataclass(frozen=True, slots=True)
class Cliff:
    """Between two points a unit's cost rises ``rise`` times, for certain: see `cliffs`."""

    before: float
    after: float
    rise: float


def cliffs(curve: Curve, most_rise: float = MOST_RISE) -> list[Cliff]:
    """Return where a unit's cost rises more than ``most_rise`` times from one point to the next.

    The lower quartile after is compared with the upper one before, so that a noisy minute is no cliff. The point that
    the base was taken from tells nothing of a unit.
    """
    found = []
    for before, after in pairwise(curve.points):
        if before.seconds.median == curve.base_seconds:
            continue
        above_base = max(before.seconds.upper - curve.base_seconds, _LEAST_SHARE * curve.base_seconds)
        rise = (after.seconds.lower - curve.base_seconds) / after.units / (above_base / before.units)
        if rise > most_rise:
            found.append(Cliff(before.x, after.x, rise))
    return found
