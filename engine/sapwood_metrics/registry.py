"""One program's metrics, made of `sapwood_contract.metrics`: what is not declared there cannot be made."""

from __future__ import annotations

from typing import TypeVar

from prometheus_client import Counter, Gauge, Info, disable_created_metrics

from sapwood_contract.metrics import BY_NAME, Series
from sapwood_metrics.exposition import (
    OPENMETRICS,
    TEXT,
    HistogramWriter,
    PlainWriter,
    Scraped,
    takes_openmetrics,
)
from sapwood_metrics.histogram import Histogram

M = TypeVar("M", Counter, Gauge, Info)


class Registry:
    """Makes metrics, and shows them in the order in which they were made.

    What it makes may be used from any thread; `render` is called from one. A series is declared by itself, or by its
    name, KeyError where there is none.
    """

    def __init__(self) -> None:
        # Else twice the series, for a time that nobody looks at. (The library has no annotations.)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._writers: list[PlainWriter | HistogramWriter] = []

    def counter(self, declared: Series | str) -> Counter:
        """Make a counter."""
        series = _series(declared)
        return self._shown(Counter(series.name, series.help, series.labels, registry=None))

    def gauge(self, declared: Series | str) -> Gauge:
        """Make a gauge."""
        series = _series(declared)
        return self._shown(Gauge(series.name, series.help, series.labels, registry=None))

    def info(self, declared: Series | str) -> Info:
        """Make an info."""
        series = _series(declared)
        return self._shown(Info(series.name.removesuffix("_info"), series.help, series.labels, registry=None))

    def histogram(self, declared: Series | str) -> Histogram:
        """Make a histogram."""
        histogram = Histogram(_series(declared))
        self._writers.append(HistogramWriter(histogram))
        return histogram

    def render(self, accept: str = "") -> Scraped:
        """Return every series, in the form that an Accept header of ``accept`` asks for."""
        is_open = takes_openmetrics(accept)
        lines = [line for writer in self._writers for line in writer.write(is_open=is_open)]
        return Scraped("".join((*lines, "# EOF\n" if is_open else "")).encode(), OPENMETRICS if is_open else TEXT)

    def _shown(self, metric: M) -> M:
        self._writers.append(PlainWriter(metric))
        return metric


def _series(declared: Series | str) -> Series:
    return BY_NAME[declared] if isinstance(declared, str) else declared
