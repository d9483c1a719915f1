"""Every exported series keeps the rules that dashboards, rules and the autoscaler count on."""

from __future__ import annotations

import math
import re

import pytest

from sapwood_contract.launch import LaunchOptions
from sapwood_contract.metrics import BY_NAME, SERIES, VLLM_SERIES, Series

every_series = pytest.mark.parametrize("series", SERIES, ids=lambda series: series.name)

FORBIDDEN_LABELS = {"user", "tenant", "request", "request_id", "prompt", "key", "api_key", "session"}
BOUNDED_BY_CONFIGURATION = {"model", "inference_service", "namespace", "name"}
"""Labels whose values are names that an engine is configured with, a handful each, or names of services."""
MAX_SERIES_PER_POD = 1500
MODELS_PER_POD = 2
SLO_SECONDS = {
    "sapwood_time_to_first_token_seconds": (0.5, 1.0, 2.0),
    "sapwood_inter_token_latency_seconds": (0.04, 0.1),
}
"""Series -> values that service-level objectives are stated in; each must be a bucket's border."""


TIMES_OF_REQUESTS = {
    "sapwood_time_to_first_token_seconds",
    "sapwood_request_duration_seconds",
    "sapwood_queue_time_seconds",
    "sapwood_request_phase_seconds",
    "sapwood_gateway_queue_time_seconds",
}
PATIENCE_SECONDS = 600.0
"""How long the official client waits for an answer by default."""


def test_no_name_is_declared_twice() -> None:
    assert len(BY_NAME) == len(SERIES)


@every_series
def test_names_follow_prometheus(series: Series) -> None:
    assert re.fullmatch(r"sapwood_[a-z][a-z0-9_]*[a-z0-9]", series.name)
    assert series.name.endswith("_total") == (series.type == "counter")
    assert series.name.endswith("_info") == (series.type == "info")
    assert not re.search(
        r"_(ms|milliseconds|microseconds|minutes|mb|kb|megabytes|percent|percentage)(_|$)", series.name
    )
    assert not series.name.endswith(("_count", "_sum", "_bucket", "_created"))


@every_series
def test_help_is_a_sentence(series: Series) -> None:
    assert not series.help[0].islower()
    assert series.help.endswith(".")
    assert not set(series.help) & set('\n\\"')  # the two forms of the exposition escape them differently


@every_series
def test_labels_are_closed_sets_and_name_nobody(series: Series) -> None:
    assert len(set(series.labels)) == len(series.labels)
    assert FORBIDDEN_LABELS.isdisjoint(series.labels)
    assert set(series.values) <= set(series.labels)
    assert set(series.labels) - set(series.values) <= BOUNDED_BY_CONFIGURATION
    for values in series.values.values():
        assert values
        assert len(set(values)) == len(values)


@every_series
def test_only_histograms_have_buckets_and_at_most_sixteen_rising_ones(series: Series) -> None:
    assert bool(series.buckets) == (series.type == "histogram")
    assert len(series.buckets) + 1 <= 16  # with the last, infinite one
    assert list(series.buckets) == sorted(set(series.buckets))
    assert all(0 < border < math.inf for border in series.buckets)


@pytest.mark.parametrize("name", SLO_SECONDS)
def test_objectives_lie_on_bucket_borders(name: str) -> None:
    assert set(SLO_SECONDS[name]) <= set(BY_NAME[name].buckets)


@pytest.mark.parametrize("series", [each for each in SERIES if each.name in TIMES_OF_REQUESTS], ids=lambda s: s.name)
def test_the_slowest_request_that_is_waited_for_falls_below_the_last_border(series: Series) -> None:
    """Case I03."""
    assert series.buckets[-1] >= max(PATIENCE_SECONDS, LaunchOptions().step_timeout_seconds)


def test_the_pause_before_a_token_that_a_step_is_given_up_after_has_a_bucket() -> None:
    for name in (
        "sapwood_inter_token_latency_seconds",
        "sapwood_time_per_output_token_seconds",
        "sapwood_step_seconds",
    ):
        assert BY_NAME[name].buckets[-1] >= LaunchOptions().step_timeout_seconds


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("sapwood_time_to_first_token_seconds", 100.0), ("sapwood_request_duration_seconds", 600.0)],
)
def test_a_long_wait_is_told_apart_from_an_endless_one(name: str, seconds: float) -> None:
    assert seconds <= BY_NAME[name].buckets[-1]


@every_series
def test_a_ratio_is_a_gauge(series: Series) -> None:
    if series.name.endswith("_ratio"):
        assert series.type == "gauge"


def test_vllms_series_keep_its_names_and_name_nobody() -> None:
    assert {series.name for series in VLLM_SERIES} == {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:lora_requests_info",
    }
    assert all(series.type == "gauge" and FORBIDDEN_LABELS.isdisjoint(series.labels) for series in VLLM_SERIES)


def test_a_pod_exports_no_more_series_than_agreed() -> None:
    total = 0
    for series in SERIES:
        combinations = math.prod(len(series.values.get(label, range(MODELS_PER_POD))) for label in series.labels)
        total += combinations * (len(series.buckets) + 3 if series.type == "histogram" else 1)
    assert total <= MAX_SERIES_PER_POD
