"""A miss-ratio curve as engines tell it: what the hit ratio of prompt tokens would be with more or less KV memory.

The engine measures it (`sapwood_engine.core.miss_ratio`), exports it and answers with it under ``/admin/cache``; the
operator asks it what more or fewer replicas would hit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a cache of so many tokens would hit."""

    capacity_tokens: float | None
    """None: of any size."""
    hit_ratio: float
    """Of prompt tokens, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A miss-ratio curve as it is told."""

    enabled: bool
    sample_rate: float
    """Share of the units without an exact mark that are followed."""
    num_samples: int
    """Marks counted since the start, at admissions."""
    capacity_tokens: int
    """What the engine has."""
    points: tuple[CurvePoint, ...]
    """Rising, the last one of an endless cache; none while too little is known."""
    working_set_tokens: float
    """Capacity at which 90 % of the hits of the last point are had; NaN while too little is known, infinite where it
    is beyond the last but one.
    """
    regret_tokens: int
    """Prompt tokens computed since the start that a cache of twice the capacity would have held."""


def no_curve(capacity_tokens: int) -> Curve:
    """Return the curve of an engine that measures none."""
    return Curve(False, 0.0, 0, capacity_tokens, (), math.nan, 0)


def describe_curve(curve: Curve) -> dict[str, Any]:
    """Return the curve as plain values, as ``/admin/cache`` shows it; None for what is unknown or infinite."""
    described = asdict(curve)
    if not math.isfinite(curve.working_set_tokens):
        described["working_set_tokens"] = None
    return described


def hit_ratio_at(curve: Curve, capacity_tokens: float) -> float:
    """Return what an LRU cache of ``capacity_tokens`` tokens (`math.inf` for any number) would hit of prompt tokens.

    Between points a straight line; beyond the last finite one what that says. NaN while too little is known.
    """
    if not curve.points:
        return math.nan
    if capacity_tokens == math.inf:
        return curve.points[-1].hit_ratio
    before_capacity, before_ratio = 0.0, 0.0
    for point in curve.points:
        if point.capacity_tokens is None:
            break
        if capacity_tokens <= point.capacity_tokens:
            share = (capacity_tokens - before_capacity) / (point.capacity_tokens - before_capacity)
            return before_ratio + share * (point.hit_ratio - before_ratio)
        before_capacity, before_ratio = point.capacity_tokens, point.hit_ratio
    return before_ratio
