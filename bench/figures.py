"""Measured values with their spread, bars that they are held against, and the JSON lines that tell both."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Spread:
    """What repetitions of one measurement gave, in the unit of the values."""

    median: float
    lower: float
    """Quartiles: half of the values lie between them."""
    upper: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach."""

    limit: float
    side: Literal["at least", "at most"]

    def holds(self, value: float) -> bool:
        """Whether ``value`` is on the right side; the limit itself is."""
        return value >= self.limit if self.side == "at least" else value <= self.limit


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one or more values."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [values[0]]
    return Spread(median, lower, upper, min(values), max(values))


def ratios(values: Sequence[float], baselines: Sequence[float]) -> Spread:
    """Return the spread of values over the baselines of the same rounds."""
    return spread([value / baseline for value, baseline in zip(values, baselines, strict=True)])


def milliseconds(seconds: Spread) -> Spread:
    """Return the same in milliseconds."""
    return Spread(**{name: 1e3 * value for name, value in asdict(seconds).items()})


def say(name: str, unit: str, values: Spread, **more: object) -> None:
    """Print a measured value."""
    _print({"name": name, "unit": unit, **_rounded(asdict(values)), **more})


def judge(name: str, value: float | Spread, bar: Bar, **more: object) -> bool:
    """Print ``value``, of which the median counts, beside its bar; return whether it holds."""
    median = value.median if isinstance(value, Spread) else value
    fields = asdict(value) if isinstance(value, Spread) else {"value": value}
    holds = bar.holds(median)
    _print({"name": name, **_rounded(fields), **more, "bar": f"{bar.side} {bar.limit:g}", "holds": holds})
    if not holds:
        print(f"{name}: {median:.4g} is not {bar.side} {bar.limit:g}", file=sys.stderr)
    return holds


def _rounded(fields: dict[str, float]) -> dict[str, float]:
    """What a timing can carry: four digits that say something."""
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in fields.items()}


def _print(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)
