"""A histogram that is cheap to add to and to read: one look-up an observation, one copy a scrape.

prometheus-client's is neither. It makes some twenty objects of each bucket in every scrape, and most of what a program
exports are buckets: reading its histograms of an engine took a millisecond, on the thread that streams answers.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock

from prometheus_client.samples import Exemplar

from sapwood_contract.metrics import Series


@dataclass(frozen=True, slots=True)
class Counted:
    """What a histogram knew at one moment."""

    counts: tuple[int, ...]
    """How many values lie in each bucket, above the one before; the last is without a border."""
    total: float
    exemplars: tuple[Exemplar | None, ...]
    """The latest value of each bucket that had one."""


class Buckets:
    """The values of one series; safe to use from several threads."""

    def __init__(self, borders: tuple[float, ...]) -> None:
        self._borders = borders
        self._counts = [0] * (len(borders) + 1)
        self._total = 0.0
        self._exemplars: list[Exemplar | None] = [None] * len(self._counts)
        self._lock = Lock()

    def observe(self, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Add ``value``; ``exemplar``: labels that lead to where it comes from."""
        place = bisect_left(self._borders, value)  # a value on a border lies below it
        with self._lock:
            self._counts[place] += 1
            self._total += value
            if exemplar:
                self._exemplars[place] = Exemplar(dict(exemplar), value, time.time())

    def read(self) -> Counted:
        """Return counts and sum of the same observations."""
        with self._lock:
            return Counted(tuple(self._counts), self._total, tuple(self._exemplars))


class Histogram:
    """Every series of one name."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self._children: dict[tuple[str, ...], Buckets] = {}
        if not series.labels:
            self.labels()

    def labels(self, *values: str) -> Buckets:
        """Return the series with these values of its labels, in their order; there is one from now on."""
        assert len(values) == len(self.series.labels), f"{self.series.name} has the labels {self.series.labels}"
        return self._children.setdefault(values, Buckets(self.series.buckets))

    def observe(self, value: float, exemplar: Mapping[str, str] | None = None) -> None:
        """As `Buckets.observe`, of a histogram without labels."""
        self._children[()].observe(value, exemplar)

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], Counted]]:
        """Yield the values of the labels of each series, and what it knows."""
        for values, buckets in tuple(self._children.items()):
            yield values, buckets.read()
