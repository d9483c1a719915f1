"""The HorizontalPodAutoscaler's algorithm, for one metric that is averaged over pods.

After kubernetes/pkg/controller/podautoscaler (1.31): `replica_calculator.go` for how many, `horizontal.go` for
stabilisation and the default behaviour. Every 15 seconds; a ratio within a tenth of 1 changes nothing; pods that are
not ready count as 0 where the others ask for more; up by 4 pods or 100 % at once, down to the most that was wanted
within the window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 0.1
_MOST_ADDED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What every rule keeps to."""

    least: int
    most: int
    down_seconds: float = 300.0
    """The window of stabilisation on the way down."""


def wanted(values: Sequence[float], num_unready: int, target: float, current: int) -> int:
    """Return how many pods the metric asks for: ``values`` are of ready pods, ``target`` is the average wanted."""
    if not values:
        return current
    ratio = sum(values) / (target * len(values))
    if ratio > 1 and num_unready:
        num_pods = len(values) + num_unready
        ratio = sum(values) / (target * num_pods)
        if ratio <= 1 + TOLERANCE:
            return current
        return max(current, math.ceil(ratio * num_pods))
    if abs(ratio - 1) <= TOLERANCE:
        return current
    return math.ceil(ratio * len(values))


class Stabilised:
    """Bounds, steps and the window of the way down, for wishes that come in order of time."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._wishes: deque[tuple[float, int]] = deque()

    def settle(self, wish: int, current: int, now: float) -> int:
        """Return how many there are to be, where ``wish`` are wanted and ``current`` asked for."""
        bounds = self._bounds
        wish = min(max(wish, bounds.least), bounds.most)
        if not self._wishes:
            self._wishes.append((now, current))  # as the HPA does: what it finds was somebody's wish
        self._wishes.append((now, wish))
        while self._wishes[0][0] < now - bounds.down_seconds:
            self._wishes.popleft()
        if wish >= current:
            return min(wish, max(current + _MOST_ADDED, 2 * current))
        return min(current, max(each for _, each in self._wishes))
