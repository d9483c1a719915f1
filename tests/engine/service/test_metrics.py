"""Every series comes from the contract, is there from the start, and counts what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families

from sapwood_contract.http import LoadSnapshot
from sapwood_contract.metrics import SERIES, VLLM_SERIES
from sapwood_engine.core.request import RequestId
from sapwood_engine.core.step import Admitted, Evicted, Preempted
from sapwood_engine.service.cache_gauges import CACHE_GAUGES
from sapwood_engine.service.messages import Delta, StepStats, TokenBatch
from sapwood_engine.service.metrics import EngineMetrics, RequestTimes
from sapwood_engine.service.step_cost_gauge import STEP_COST_GAUGE
from sapwood_metrics.exposition import OPENMETRICS

MODEL = {"model": "m"}


def samples(metrics: EngineMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().body.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: EngineMetrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def batch(**changes: object) -> TokenBatch:
    return TokenBatch(**({"deltas": [], "load": LoadSnapshot()} | changes))  # type: ignore[arg-type]


def admitted(num_cached: int, *, resumed: bool = False, num_recomputed: int = 0, id_: str = "r#0.0") -> Admitted:
    return Admitted(RequestId(id_), 100, num_cached, num_recomputed, 0.25, resumed)


def sources(metrics: EngineMetrics) -> dict[str, float]:
    return {
        source: value(metrics, "sapwood_prompt_tokens_total", **MODEL, source=source)
        for source in ("device", "compute", "recompute")
    }


def of_the_cache(metrics: EngineMetrics) -> set[str]:
    prefixes = ("sapwood_kv_", "sapwood_radix_", "vllm:kv_", "vllm:cache_")
    return {name for name, _ in samples(metrics) if name.startswith(prefixes)}


def test_series_are_exactly_those_of_the_contract_and_there_before_any_request() -> None:
    families = {f.name: f for f in text_string_to_metric_families(EngineMetrics("m").render().body.decode())}
    wanted = {s.name.removesuffix("_total").removesuffix("_info"): s for s in SERIES if s.program == "engine"}
    got = {name.removesuffix("_info"): family for name, family in families.items()}
    assert got.keys() == wanted.keys()
    for name, family in got.items():
        for sample in family.samples:
            if not family.name.endswith("_info"):
                assert sample.labels.keys() - {"le"} == set(wanted[name].labels)
        assert family.documentation == wanted[name].help
        assert family.samples or name in ("sapwood_model", STEP_COST_GAUGE, *CACHE_GAUGES)


def test_a_pod_exports_far_fewer_series_than_allowed() -> None:
    assert len(samples(EngineMetrics("m"))) <= 1500


def test_prompt_tokens_are_counted_once_by_source_and_sum_to_the_prompts() -> None:
    metrics = EngineMetrics("m")
    again = admitted(0, resumed=True, num_recomputed=70)
    metrics.observe(batch(admitted=[admitted(60), again, admitted(0, id_="r#1.0")]))
    assert sources(metrics) == {"device": 60, "compute": 140, "recompute": 70}
    assert value(metrics, "sapwood_queue_time_seconds_count", **MODEL) == 2


def test_a_probe_that_hits_nothing_leaves_the_hit_rate_where_it_was() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(batch(admitted=[admitted(90)]))
    probe = replace(admitted(0, id_="r#1.0"), num_prompt_tokens=5)
    metrics.observe(batch(admitted=[probe]))
    assert sources(metrics) == {"device": 90, "compute": 15, "recompute": 0}


def test_the_prompt_of_several_choices_counts_with_the_first_admitted_even_after_its_caller_left() -> None:
    metrics = EngineMetrics("m")
    for index in range(3):
        metrics.submitted(f"r#0.{index}")
    metrics.observe(batch(deltas=[Delta("r#0.0", finish="abort")]))  # before it had a seat
    metrics.observe(batch(admitted=[admitted(40, id_="r#0.2")], deltas=[Delta("r#0.2", finish="length")]))
    metrics.observe(batch(admitted=[admitted(99, id_="r#0.1")], deltas=[Delta("r#0.1", finish="abort")]))
    assert sources(metrics) == {"device": 40, "compute": 60, "recompute": 0}
    metrics.observe(batch(admitted=[admitted(0, id_="r#1.0")]))
    assert sources(metrics)["compute"] == 160


def test_calls_are_counted_by_status_and_an_odd_one_makes_no_series() -> None:
    metrics = EngineMetrics("m")
    before = len(samples(metrics))
    for status in (200, 429, 499, 418, 599):
        metrics.call_ended(status)
    counts = {code: value(metrics, "sapwood_http_requests_total", **MODEL, code=code) for code in ("200", "429", "499")}
    assert counts == {"200": 1, "429": 1, "499": 1}
    assert value(metrics, "sapwood_http_requests_total", **MODEL, code="other") == 2
    assert len(samples(metrics)) == before


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = (
    "sapwood_time_to_first_token_seconds",
    "sapwood_inter_token_latency_seconds",
    "sapwood_request_duration_seconds",
)


@pytest.mark.parametrize("trace_id", [TRACE, None])
def test_a_traced_request_leaves_its_trace_as_exemplar_and_another_none(trace_id: str | None) -> None:
    metrics = EngineMetrics("m")
    times = RequestTimes(arrived=10.0, num_prompt_tokens=100, trace_id=trace_id)
    for now in (10.75, 11.0):
        metrics.tokens(times, 1, num_cached_tokens=0, now=now)
    metrics.ended(times, "stop", now=11.0)
    read: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
    families = read(metrics.render(OPENMETRICS).body.decode())
    found = {f.name: s.exemplar for f in families for s in f.samples if s.exemplar is not None}
    assert {name: (exemplar.labels, exemplar.value) for name, exemplar in found.items()} == (
        dict(zip(TRACED, (({"trace_id": TRACE}, seconds) for seconds in (0.75, 0.25, 1.0)), strict=True))
        if trace_id
        else {}
    )


def test_with_vllms_names_programs_made_for_vllm_know_the_engine() -> None:
    metrics = EngineMetrics("m", compat="vllm")
    families = {f.name for f in text_string_to_metric_families(metrics.render().body.decode())}
    assert "vllm:cache_config_info" in families
    assert not [name for name, _ in samples(metrics) if name == "vllm:cache_config_info"]  # not known yet
    load = LoadSnapshot(
        num_running=3, num_waiting=2, kv_capacity_tokens=1600, kv_page_tokens=16, kv_active_tokens=100,
        kv_protected_tokens=300, kv_evictable_tokens=200, kv_free_tokens=1000,
    )  # fmt: skip
    metrics.observe(batch(load=load))
    own = {"model_name": "m", "engine": "0"}
    assert value(metrics, "vllm:num_requests_running", **own) == 3
    assert value(metrics, "vllm:num_requests_waiting", **own) == 2
    assert value(metrics, "vllm:kv_cache_usage_perc", **own) == 0.25
    assert value(metrics, "vllm:cache_config_info", block_size="16", num_gpu_blocks="100", engine="0") == 1
    no_adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert value(metrics, "vllm:lora_requests_info", **no_adapters) > 0
    assert families >= {series.name for series in VLLM_SERIES}


def test_a_scrape_takes_as_many_lines_after_many_requests_as_after_none() -> None:
    metrics = EngineMetrics("m")
    before = metrics.render().body.count(b"\n")
    for number in range(1000):
        metrics.submitted(f"r#{number}.0")
        ended = [Delta(f"r#{number}.0", finish="stop")]
        metrics.observe(batch(admitted=[admitted(number % 100, id_=f"r#{number}.0")], deltas=ended))
        metrics.ended(RequestTimes(arrived=0.0, num_prompt_tokens=1), "stop", now=float(number))
    assert metrics.render().body.count(b"\n") == before


def test_of_the_cache_nothing_is_told_before_the_worker_has_said_something() -> None:
    metrics = EngineMetrics("m", compat="vllm")
    assert not of_the_cache(metrics)
    assert value(metrics, "sapwood_requests_running", **MODEL) == 0
    assert value(metrics, "sapwood_requests_waiting", **MODEL, reason="capacity") == 0
    metrics.observe(batch(load=LoadSnapshot(kv_capacity_tokens=160, kv_page_tokens=16, kv_free_tokens=160)))
    assert of_the_cache(metrics) == {*CACHE_GAUGES, "vllm:kv_cache_usage_perc", "vllm:cache_config_info"}
    assert value(metrics, "sapwood_kv_tokens", **MODEL, state="active") == 0
    assert value(metrics, "sapwood_radix_nodes", **MODEL) == 0
    metrics.worker_ended()
    assert not of_the_cache(metrics)


def test_counters_never_fall_over_a_workers_death_and_its_gauges_go() -> None:
    """Case I07: one process counts, and there are no files of others."""
    metrics = EngineMetrics("m")
    load = LoadSnapshot(num_running=3, kv_capacity_tokens=1600, kv_page_tokens=16, kv_active_tokens=1600)
    metrics.observe(batch(load=load, admitted=[admitted(60)]))
    counted = {key: number for key, number in samples(metrics).items() if key[0].endswith("_total")}
    metrics.worker_ended()
    after = samples(metrics)
    assert all(after[key] == number for key, number in counted.items())
    assert after["sapwood_requests_running", frozenset(MODEL.items())] == 0
    assert not of_the_cache(metrics)


def test_what_a_step_did_is_counted_by_kind() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(
        batch(
            step=StepStats("mixed", 40, 0.02),
            preempted=[Preempted(RequestId("r"), 33, "kv_full")],
            evicted=[Evicted(16, "capacity"), Evicted(32, "flush")],
            num_invariant_failures=1,
        )
    )
    assert value(metrics, "sapwood_step_seconds_sum", kind="mixed") == 0.02
    assert value(metrics, "sapwood_batch_tokens_sum", kind="mixed") == 40
    assert value(metrics, "sapwood_preempted_tokens_total", reason="kv_full") == 33
    assert value(metrics, "sapwood_evicted_tokens_total", **MODEL, reason="flush", to="dropped") == 32
    assert value(metrics, "sapwood_cache_invariant_failures_total") == 1


def test_kv_states_sum_to_the_capacity_and_usage_is_the_pinned_share() -> None:
    metrics = EngineMetrics("m")
    load = LoadSnapshot(
        kv_capacity_tokens=100,
        kv_active_tokens=10,
        kv_protected_tokens=15,
        kv_evictable_tokens=25,
        kv_free_tokens=50,
    )
    metrics.observe(batch(load=load))
    states = ("active", "protected", "evictable", "free")
    assert sum(value(metrics, "sapwood_kv_tokens", **MODEL, state=s) for s in states) == 100
    assert value(metrics, "sapwood_kv_usage_ratio", **MODEL) == 0.25


@pytest.mark.parametrize(("num_cached", "share"), [(0, "none"), (50, "part"), (51, "most"), (99, "most")])
def test_time_to_first_token_is_told_apart_by_how_much_was_cached(num_cached: int, share: str) -> None:
    metrics = EngineMetrics("m")
    times = RequestTimes(arrived=10.0, num_prompt_tokens=100)
    metrics.tokens(times, 1, num_cached_tokens=num_cached, now=10.5)
    assert value(metrics, "sapwood_time_to_first_token_seconds_sum", **MODEL, cached=share) == 0.5


def test_the_life_of_a_request_falls_into_phases() -> None:
    metrics = EngineMetrics("m")
    times = RequestTimes(arrived=10.0, num_prompt_tokens=100, queue_seconds=0.5)
    for now in (11.0, 11.25, 11.5):
        metrics.tokens(times, 1, num_cached_tokens=0, now=now)
    metrics.ended(times, "stop", now=11.5)
    phases = {
        phase: value(metrics, "sapwood_request_phase_seconds_sum", **MODEL, phase=phase)
        for phase in ("queue", "prefill", "decode")
    }
    assert phases == {"queue": 0.5, "prefill": 0.5, "decode": 0.5}
    assert value(metrics, "sapwood_inter_token_latency_seconds_count", **MODEL) == 2
    assert value(metrics, "sapwood_time_per_output_token_seconds_sum", **MODEL) == 0.25
    assert value(metrics, "sapwood_request_duration_seconds_sum", **MODEL) == 1.5
    assert value(metrics, "sapwood_requests_total", **MODEL, finish_reason="stop") == 1


def test_the_state_is_one_hot() -> None:
    metrics = EngineMetrics("m")
    metrics.set_state("ready")
    states = {s: value(metrics, "sapwood_engine_state", state=s) for s in ("loading", "warming", "ready", "draining")}
    assert states == {"loading": 0, "warming": 0, "ready": 1, "draining": 0}


def test_how_long_reused_and_evicted_tokens_had_been_idle_is_sampled() -> None:
    metrics = EngineMetrics("m")
    found = replace(admitted(60), reuse_gap_seconds=(12.0,))
    metrics.observe(
        batch(admitted=[found, admitted(0, id_="r#1.0")], evicted=[Evicted(16, "capacity", (90.0,)), Evicted(8, "ttl")])
    )
    assert value(metrics, "sapwood_reuse_gap_seconds_sum", **MODEL) == 12
    assert value(metrics, "sapwood_reuse_gap_seconds_count", **MODEL) == 1
    assert value(metrics, "sapwood_evicted_idle_seconds_sum", **MODEL) == 90
    assert value(metrics, "sapwood_evicted_idle_seconds_count", **MODEL) == 1


@pytest.mark.parametrize("checkpoint_first", [False, True])
def test_the_model_is_told_with_its_revision_whatever_is_known_first(checkpoint_first: bool) -> None:
    metrics = EngineMetrics("m")
    if checkpoint_first:
        metrics.checkpoint_found("abc")
    metrics.started({}, {"Attention": "cpu"})
    if not checkpoint_first:
        metrics.checkpoint_found("abc")
    assert value(metrics, "sapwood_model_info", **MODEL, revision="abc", attention="cpu") == 1


def test_only_phases_of_the_contract_are_published_of_a_start() -> None:
    metrics = EngineMetrics("m")
    metrics.started({"load": 1.5, "something": 2.0}, {"instruction set": "avx2"})
    assert value(metrics, "sapwood_model_info", **MODEL, instruction_set="avx2") == 1
    assert value(metrics, "sapwood_startup_seconds", phase="load") == 1.5
    assert ("sapwood_startup_seconds", frozenset({("phase", "something")})) not in samples(metrics)
