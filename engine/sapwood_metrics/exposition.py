"""How metrics leave a program: as OpenMetrics, with exemplars, to a scraper that asks for it, else as Prometheus' text.

What a line says before its value never changes, so it is made once; prometheus-client escapes every name and label anew
in each scrape. A scrape costs one look at each series, however many requests there were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import Counter, Gauge, Info
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from sapwood_contract.metrics import Series
from sapwood_metrics.histogram import Histogram

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_TYPE = "application/openmetrics-text"
_number: Callable[[float], str] = floatToGoString
"""A value as it is written; the library has no annotations."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """The answer to a scrape."""

    body: bytes
    content_type: str


def takes_openmetrics(accept: str) -> bool:
    """Tell whether an Accept header names OpenMetrics and does not decline it."""
    offers = (offer.split(";") for offer in accept.lower().replace(" ", "").split(","))
    return any(
        offer[0] == _OPENMETRICS_TYPE and not any(re.fullmatch(r"q=0(\.0*)?", part) for part in offer)
        for offer in offers
    )


def _about(name: str, kind: str, help_: str, *, is_open: bool) -> str:
    """Return HELP and TYPE of a family: in the older form a counter's name has its suffix, and an Info is a gauge."""
    if not is_open and kind == "counter":
        name += "_total"
    if not is_open and kind == "info":
        name, kind = f"{name}_info", "gauge"
    return f"# HELP {name} {help_}\n# TYPE {name} {kind}\n"


class PlainWriter:
    """Writes one counter, gauge or info."""

    def __init__(self, metric: Counter | Gauge | Info) -> None:
        self._metric = metric
        self._heads: dict[tuple[object, ...], str] = {}
        """Name of a sample and its labels -> its line up to the value."""

    def write(self, *, is_open: bool) -> Iterator[str]:
        """Yield HELP, TYPE and each sample."""
        for family in self._metric.collect():
            yield _about(family.name, family.type, family.documentation, is_open=is_open)
            for sample in family.samples:
                key = (sample.name, *sample.labels.items())
                head = self._heads.get(key)
                if head is None:
                    head = self._heads[key] = _head(sample.name, sample.labels)
                yield f"{head}{_number(sample.value)}\n"


class HistogramWriter:
    """Writes one histogram."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._heads: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Label values -> the lines up to their values: of each bucket, of count and sum."""

    def write(self, *, is_open: bool) -> Iterator[str]:
        """Yield HELP, TYPE and each sample."""
        series = self._histogram.series
        yield _about(series.name, series.type, series.help, is_open=is_open)
        for values, counted in self._histogram:
            heads = self._heads.get(values)
            if heads is None:
                heads = self._heads[values] = _histogram_heads(series, values)
            numbers = tuple(accumulate(counted.counts))
            for head, number, exemplar in zip(heads, numbers, counted.exemplars, strict=False):
                beside = _exemplar(exemplar) if is_open and exemplar is not None else ""
                yield f"{head}{_number(number)}{beside}\n"
            yield f"{heads[-2]}{_number(numbers[-1])}\n{heads[-1]}{_number(counted.total)}\n"


def _histogram_heads(series: Series, values: tuple[str, ...]) -> tuple[str, ...]:
    own = dict(zip(series.labels, values, strict=True))
    borders = (*map(_number, series.buckets), "+Inf")
    buckets = (_head(f"{series.name}_bucket", own | {"le": border}) for border in borders)
    return (*buckets, _head(f"{series.name}_count", own), _head(f"{series.name}_sum", own))


def _head(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{_labels(labels)} " if labels else f"{name} "


def _labels(labels: Mapping[str, str]) -> str:
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return f"{{{written}}}"


def _exemplar(exemplar: Exemplar) -> str:
    return f" # {_labels(exemplar.labels)} {_number(exemplar.value)} {exemplar.timestamp}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
