"""What two scrapes say of the time between them; what nothing is known of is None."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.request import RequestId
from sapwood_engine.core.step import Admitted, Evicted
from sapwood_engine.service.messages import TokenBatch
from sapwood_engine.service.metrics import EngineMetrics, RequestTimes
from sapwood_metrics.quantiles import Quantile
from sapwood_tools.top.figures import Figures, Latency, interval, read_figures, was_restarted
from sapwood_tools.top.gateway_figures import GatewayFigures, read_gateway_figures

INF = math.inf
NOTHING = Figures(0, 0, 0, 0, 0, 0, ((1.0, 0.0), (INF, 0.0)), ((1.0, 0.0), (INF, 0.0)))


def test_what_an_engine_counts_is_read_from_its_own_metrics() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(
        TokenBatch(
            deltas=[],
            load=LoadSnapshot(),
            admitted=[
                Admitted(RequestId("a"), 100, 60, 0, 0.0, resumed=False),
                Admitted(RequestId("a"), 100, 0, 30, 0.0, resumed=True),
            ],
            evicted=[Evicted(48, "capacity")],
        )
    )
    times = RequestTimes(arrived=10.0, num_prompt_tokens=100)
    metrics.tokens(times, 1, num_cached_tokens=60, now=10.5)
    metrics.tokens(times, 3, num_cached_tokens=60, now=10.8)
    metrics.ended(times, "stop", now=10.8)
    figures = read_figures(metrics.render().body.decode())
    assert figures is not None
    assert (figures.prompt_tokens, figures.cached_tokens, figures.output_tokens) == (100, 60, 4)
    assert (figures.requests, figures.evicted_tokens, figures.preemptions) == (1, 48, 0)
    assert (figures.ttft[-1], figures.itl[-1]) == ((INF, 1), (INF, 3))


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", "sapwood_prompt_tokens_total 5\n", "{{{"])
def test_what_is_no_engines_says_nothing(text: str) -> None:
    assert read_figures(text) is None
    assert read_gateway_figures(text) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "9" * 400])
def test_a_count_that_is_none_says_nothing(value: str) -> None:
    text = EngineMetrics("m").render().body.decode()
    for name in ("sapwood_preemptions_total", "sapwood_time_to_first_token_seconds_bucket"):
        line = next(line for line in text.splitlines() if line.startswith(name))
        assert read_figures(text.replace(line, f"{line.rpartition(' ')[0]} {value}")) is None
    for name in ("requests_running", 'replicas{state="ready"}', 'route_total{result="load"}'):
        line = f"sapwood_gateway_{name} {value}\n"
        assert read_gateway_figures(f"sapwood_gateway_requests_running 1\n{line}") is None


def test_a_gateways_words_are_shown_without_orders_to_the_terminal() -> None:
    told = read_gateway_figures('sapwood_gateway_requests_running 1\nsapwood_gateway_replicas{state="\x1b[2J"} 1\n')
    assert told == GatewayFigures(1, 0, (("'\\x1b[2J'", 1),), ())


def test_what_a_gateway_counts_is_read() -> None:
    text = """
sapwood_gateway_requests_running 3
sapwood_gateway_queued_requests{inference_service="a"} 1
sapwood_gateway_queued_requests{inference_service="b"} 2
sapwood_gateway_replicas{state="ready"} 2
sapwood_gateway_route_total{result="prefix"} 8
"""
    assert read_gateway_figures(text) == GatewayFigures(3, 3, (("ready", 2),), (("prefix", 8.0),))


def test_rates_and_the_hit_rate_are_of_the_time_between() -> None:
    first = replace(NOTHING, prompt_tokens=1000, cached_tokens=1000, output_tokens=10, requests=5)
    last = replace(first, prompt_tokens=1500, cached_tokens=1100, output_tokens=30, requests=9, evicted_tokens=7)
    found = interval(first, last, 2.0)
    assert (found.prompt_tokens_per_second, found.output_tokens_per_second) == (250, 10)
    assert (found.hit_rate, found.evicted_tokens) == (0.2, 7)


def test_of_an_idle_engine_rates_are_zero_and_what_has_no_cases_is_unknown() -> None:
    found = interval(NOTHING, NOTHING, 1.0)
    assert (found.prompt_tokens_per_second, found.output_tokens_per_second) == (0, 0)
    assert (found.hit_rate, found.ttft, found.itl) == (None, None, None)


def test_latencies_are_of_the_time_between() -> None:
    first = replace(NOTHING, ttft=((1.0, 1000.0), (2.0, 1000.0), (INF, 1000.0)))
    last = replace(NOTHING, ttft=((1.0, 1000.0), (2.0, 1010.0), (INF, 1010.0)))
    assert interval(first, last, 1.0).ttft == Latency(Quantile(1.5), Quantile(1.95))


RESTARTS: list[tuple[str, Figures, bool]] = [
    ("the same", NOTHING, False),
    ("more of everything", replace(NOTHING, prompt_tokens=9, requests=1, ttft=((1.0, 1.0), (INF, 1.0))), False),
    ("a counter fell", replace(NOTHING, output_tokens=-1), True),
    ("a bucket fell", replace(NOTHING, itl=((1.0, -1.0), (INF, 0.0))), True),
    ("other buckets", replace(NOTHING, itl=((2.0, 0.0), (INF, 0.0))), True),
]


@pytest.mark.parametrize(("last", "expected"), [row[1:] for row in RESTARTS], ids=[row[0] for row in RESTARTS])
def test_a_restart_is_seen_by_what_can_only_rise(last: Figures, expected: bool) -> None:
    assert was_restarted(NOTHING, last) is expected
