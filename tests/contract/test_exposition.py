"""Both forms that a scraper may ask for say exactly what prometheus-client itself would say of the same values."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as library
from support_series import scrape_of

from sapwood_contract.metrics import BY_NAME, SERIES, Series
from sapwood_metrics.exposition import OPENMETRICS, TEXT, takes_openmetrics
from sapwood_metrics.registry import Registry

TRACE = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
ODD = 'a "model"\\of\nnobody é'
GAUGES = (0, -1.5, 1e-7, float("nan"), float("inf"), 123456789)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)

openmetrics_of: Callable[[CollectorRegistry], bytes] = library.generate_latest


@dataclass
class Both:
    """Every series of the contract, ours and the library's, with the same values of every kind."""

    ours: Registry = field(default_factory=Registry)
    theirs: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotations
        for number, series in zip(count(), SERIES, strict=False):
            self._fill(series, number, tuple(ODD for _ in series.labels))

    def _fill(self, series: Series, number: int, odd: tuple[str, ...]) -> None:
        name, about, theirs = series.name, series.help, self.theirs
        match series.type:
            case "info":
                for info in (self.ours.info(series), Info(name.removesuffix("_info"), about, registry=theirs)):
                    info.info({"model": ODD, "revision": "abc"})
            case "histogram":
                mine = self.ours.histogram(series).labels(*odd)
                whole = Histogram(name, about, series.labels, buckets=series.buckets, registry=theirs)
                other = whole.labels(*odd) if odd else whole
                for seconds in (0.0004, series.buckets[2], 0.3, 1e9):
                    mine.observe(seconds, TRACE if number % 2 else None)
                    other.observe(seconds, TRACE if number % 2 else None)
            case "counter":
                for counter in (self.ours.counter(name), Counter(name, about, series.labels, registry=theirs)):
                    (counter.labels(*odd) if odd else counter).inc(10.0 ** (number % 9))
            case "gauge":
                for gauge in (self.ours.gauge(name), Gauge(name, about, series.labels, registry=theirs)):
                    (gauge.labels(*odd) if odd else gauge).set(GAUGES[number % len(GAUGES)])


def test_the_text_form_is_that_of_the_library_at_every_scrape() -> None:
    both = Both()
    for _ in range(2):
        scraped = both.ours.render()
        assert scraped.content_type == TEXT
        assert scraped.body == generate_latest(both.theirs)


def test_openmetrics_is_that_of_the_library_with_its_exemplars() -> None:
    both = Both()
    scraped = both.ours.render(PROMETHEUS_2)
    assert scraped.content_type == OPENMETRICS
    now = re.compile(rb"(# \{trace_id=\"\w+\"\} [\d.e+-]+) [\d.]+$", re.MULTILINE)
    ours, theirs = (now.sub(rb"\1", text) for text in (scraped.body, openmetrics_of(both.theirs)))
    assert ours == theirs
    assert len(now.findall(scraped.body)) > 10


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain; version=0.0.4", False),
        ("application/json", False),
        ("application/openmetrics-text-like", False),
        ("application/openmetrics-text; q=0", False),
        ("application/openmetrics-text;q=0.000,text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text ; version=1.0.0", True),
        ("text/plain;q=0.5, application/openmetrics-text;q=0.01", True),
        ("application/openmetrics-text; version=x\x00;;;=", True),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
    ],
)
def test_openmetrics_goes_to_those_alone_who_name_it(accept: str, is_open: bool) -> None:
    assert takes_openmetrics(accept) == is_open


def test_a_series_that_goes_is_shown_no_longer() -> None:
    registry = Registry()
    queued = registry.gauge("sapwood_gateway_queued_requests")
    for service in ("team/a", "team/b"):
        queued.labels(service).set(1)
    assert scrape_of(registry.render().body.decode()).num_series() == {"sapwood_gateway_queued_requests": 2}
    queued.clear()
    assert scrape_of(registry.render().body.decode()).num_series() == {}


def test_what_is_not_declared_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        Registry().counter("sapwood_made_up_total")


def test_every_scrape_of_a_histogram_is_one_moment_of_it() -> None:
    registry = Registry()
    histogram = registry.histogram(BY_NAME["sapwood_gateway_overhead_seconds"])
    ended = threading.Event()

    def observe() -> None:
        for _ in range(20_000):
            histogram.observe(1.0)
        ended.set()

    threads = [threading.Thread(target=observe) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not ended.is_set():
        seen = scrape_of(registry.render().body.decode())
        assert seen.value("sapwood_gateway_overhead_seconds_count") == seen.value(
            "sapwood_gateway_overhead_seconds_sum"
        )
    for thread in threads:
        thread.join()
    assert scrape_of(registry.render().body.decode()).value("sapwood_gateway_overhead_seconds_sum") == 40_000
