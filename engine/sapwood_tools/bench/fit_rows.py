"""From what was asked and when answers came to a latency model's costs: equations, and their robust solution.

An equation says that so much of each of the seven costs took so many seconds. Errors are relative, since an answer that
takes ten times as long is not ten times as well known; what is far from the others counts little, because on a machine
that others use now and then a step takes twice as long.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_tools.replay.latency import RequestSeconds, StepSeconds

_NUM_COSTS = 7
_SWEEPS = 400
_ROUNDS = 30
_TUNING = 4.685
"""Tukey's biweight keeps 95 % of the efficiency of least squares where errors are normal (Holland and Welsch, 1977)."""
_LEAST_SPREAD = 0.01
"""Relative errors within this are no outliers, however well the rest fits."""


@dataclass(frozen=True, slots=True)
class Equation:
    """Amounts of each cost, and the seconds that they took together."""

    probe: str
    """What was asked; equations of one name are repetitions."""
    seconds: float
    prefill_tokens: float = 0.0
    prefill_keys: float = 0.0
    decodes: float = 0.0
    decode_keys: float = 0.0
    steps: float = 0.0
    requests: float = 0.0
    request_tokens: float = 0.0

    @property
    def amounts(self) -> tuple[float, ...]:
        """In the order of the costs."""
        steps = (self.prefill_tokens, self.prefill_keys, self.decodes, self.decode_keys, self.steps)
        return (*steps, self.requests, self.request_tokens)


@dataclass(frozen=True, slots=True)
class Residual:
    """How well one probe is told."""

    probe: str
    measured_seconds: float
    """Median of its repetitions, as is the next."""
    told_seconds: float

    @property
    def ratio(self) -> float:
        """Return what is told over what was measured."""
        return self.told_seconds / self.measured_seconds


@dataclass(frozen=True, slots=True)
class Fitted:
    """The costs, and how well they tell what was measured."""

    steps: StepSeconds
    requests: RequestSeconds
    residuals: tuple[Residual, ...]

    @property
    def median_error(self) -> float:
        """Relative, over all probes."""
        return statistics.median(abs(each.ratio - 1) for each in self.residuals)


def fit(equations: Sequence[Equation]) -> Fitted:
    """Return the costs, none of them negative, that tell ``equations`` best: iteratively reweighted least squares."""
    rows = [tuple(amount / each.seconds for amount in each.amounts) for each in equations]
    weights = [1.0] * len(rows)
    costs = [0.0] * _NUM_COSTS
    for _ in range(_ROUNDS):
        costs = _least_squares(rows, weights, costs)
        errors = [_dot(row, costs) - 1.0 for row in rows]
        # Median absolute deviation, scaled to the standard deviation of normal errors.
        spread = max(_LEAST_SPREAD, 1.4826 * statistics.median(map(abs, errors)))
        weights = [_biweight(error / (_TUNING * spread)) for error in errors]
    names = list(dict.fromkeys(each.probe for each in equations))
    prefill_token, prefill_key, decode, decode_key, base, request, request_token = costs
    return Fitted(
        StepSeconds(
            prefill_token=prefill_token, prefill_key=prefill_key, decode=decode, decode_key=decode_key, base=base
        ),
        RequestSeconds(request=request, request_token=request_token),
        tuple(_residual(name, [each for each in equations if each.probe == name], costs) for name in names),
    )


def _residual(name: str, equations: Sequence[Equation], costs: Sequence[float]) -> Residual:
    measured = statistics.median(each.seconds for each in equations)
    told = statistics.median(_dot(each.amounts, costs) for each in equations)
    return Residual(name, measured, told)


def _biweight(share: float) -> float:
    return (1.0 - share * share) ** 2 if abs(share) < 1.0 else 0.0


def _least_squares(rows: Sequence[tuple[float, ...]], weights: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Coordinate descent from ``costs``: each cost in turn becomes the best one beside the others, or 0."""
    # Columns as long as 1, so that keys by the million and steps by the one go at one pace.
    scales = [max(1e-12, sum(row[column] ** 2 for row in rows) ** 0.5) for column in range(_NUM_COSTS)]
    scaled = [tuple(amount / scale for amount, scale in zip(row, scales, strict=True)) for row in rows]
    squares = [
        [sum(weight * row[i] * row[j] for row, weight in zip(scaled, weights, strict=True)) for j in range(_NUM_COSTS)]
        for i in range(_NUM_COSTS)
    ]
    products = [sum(weight * row[i] for row, weight in zip(scaled, weights, strict=True)) for i in range(_NUM_COSTS)]
    found = [cost * scale for cost, scale in zip(costs, scales, strict=True)]
    for _ in range(_SWEEPS):
        for index, (row, product) in enumerate(zip(squares, products, strict=True)):
            if row[index] > 0:
                found[index] = max(0.0, found[index] + (product - _dot(row, found)) / row[index])
    return [cost / scale for cost, scale in zip(found, scales, strict=True)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
