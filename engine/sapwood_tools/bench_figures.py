"""A measured figure beside its baseline, and the one way in which both are measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` and ``baseline`` in ``unit``, both medians of interleaved repetitions of one run."""

    name: str
    value: float
    unit: str
    baseline: float
    ratio: float

    def line(self) -> str:
        """Return the figure as one JSON object."""
        return json.dumps(asdict(self))


def measured(name: str, unit: str, value: float, baseline: float) -> Figure:
    """Return the figure, rounded to what a timing can carry."""
    return Figure(name, round(value, 4), unit, round(baseline, 4), round(value / baseline, 4))


def interleaved(work: Callable[[], object], baseline: Callable[[], object], *, repetitions: int) -> tuple[float, float]:
    """Return the median seconds of ``work`` and of ``baseline``, run by turns so that both meet the same
    machine.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions):
        for run, seconds in zip((work, baseline), times, strict=True):
            start = perf_counter()
            run()
            seconds.append(perf_counter() - start)
    return median(times[0]), median(times[1])
