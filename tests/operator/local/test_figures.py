"""An engine's metrics become the few figures of the table."""

from __future__ import annotations

import pytest

from sapwood_contract.metrics import SERIES
from sapwood_operator.local.figures import Figures, Reading, read_figures

TEXT = """
# TYPE sapwood_requests_running gauge
sapwood_requests_running{model="m"} 3.0
# TYPE sapwood_requests_total counter
sapwood_requests_total{finish_reason="stop",model="m"} 4.0
sapwood_requests_total{finish_reason="length",model="m"} 1.0
# TYPE sapwood_prompt_tokens_total counter
sapwood_prompt_tokens_total{model="m",source="device"} 60.0
sapwood_prompt_tokens_total{model="m",source="compute"} 40.0
# TYPE sapwood_generation_tokens_total counter
sapwood_generation_tokens_total{model="m"} 500.0
# TYPE sapwood_time_to_first_token_seconds histogram
sapwood_time_to_first_token_seconds_bucket{cached="none",le="0.1",model="m"} 1.0
sapwood_time_to_first_token_seconds_bucket{cached="none",le="+Inf",model="m"} 2.0
sapwood_time_to_first_token_seconds_bucket{cached="most",le="0.1",model="m"} 3.0
sapwood_time_to_first_token_seconds_bucket{cached="most",le="+Inf",model="m"} 3.0
"""


def test_the_figures_are_read_from_the_metrics() -> None:
    assert read_figures(TEXT) == Reading(
        num_running=3,
        num_requests=5,
        cached_tokens=60,
        prompt_tokens=100,
        answer_tokens=500,
        ttft_buckets=((0.1, 4.0), (float("inf"), 5.0)),
    )


def test_every_series_that_is_read_is_one_that_engines_export() -> None:
    exported = {series.name for series in SERIES if series.program == "engine"}
    assert {line.split("{")[0].removesuffix("_bucket") for line in TEXT.splitlines() if "{" in line} <= exported


@pytest.mark.parametrize("text", ["", "sapwood_requests_running{model", "<html>"])
def test_what_is_no_metrics_is_nothing(text: str) -> None:
    assert read_figures(text) == Reading()


def test_tokens_a_second_are_those_of_the_last_ten() -> None:
    figures = Figures()
    assert figures.tokens_per_second("p") == 0
    for second in range(30):
        figures.take("p", Reading(answer_tokens=1000 if second < 15 else 1000 + 20 * (second - 14)), float(second))
    assert figures.tokens_per_second("p") == pytest.approx(20)
    for second in range(30, 45):
        figures.take("p", Reading(answer_tokens=1300), float(second))
    assert figures.tokens_per_second("p") == 0


def test_an_engine_that_began_anew_counts_from_there() -> None:
    figures = Figures()
    figures.take("p", Reading(answer_tokens=1000), 0.0)
    figures.take("p", Reading(answer_tokens=10), 1.0)
    figures.take("p", Reading(answer_tokens=30), 2.0)
    assert figures.tokens_per_second("p") == 20


def test_one_that_is_gone_is_forgotten() -> None:
    figures = Figures()
    figures.take("p", Reading(num_requests=4), 0.0)
    figures.keep({"q"})
    assert figures.last("p") == Reading()
