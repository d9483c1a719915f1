"""What a scraped histogram says of its values. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a histogram, as near as its buckets tell."""

    seconds: float
    is_least: bool = False
    """It lies beyond the last finite bound: at least so much."""


def quantile(buckets: Iterable[tuple[float, float]], share: float) -> Quantile | None:
    """Return the quantile by a straight line inside its bucket, as Prometheus' histogram_quantile does.

    ``buckets``: (upper bound in seconds, observations up to it), both rising, the last bound infinity; ``share``: from
    0 to 1. None: nothing was observed.
    """
    counts = list(buckets)
    if not counts or counts[-1][1] <= 0:
        return None
    rank, low, below = counts[-1][1] * share, 0.0, 0.0
    for bound, count in counts:
        if count >= rank and count > below:
            if math.isinf(bound):
                break
            return Quantile(low + (bound - low) * (rank - below) / (count - below))
        if not math.isinf(bound):
            low, below = bound, count
    return Quantile(low, is_least=True)
