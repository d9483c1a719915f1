"""Every series comes from the contract, is there from the start, and counts what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sapwood_contract.http import LoadSnapshot
from sapwood_contract.metrics import SERIES
from sapwood_engine.core.request import RequestId
from sapwood_engine.core.step import Admitted, Evicted, Preempted
from sapwood_engine.service.messages import StepStats, TokenBatch
from sapwood_engine.service.metrics import EngineMetrics, RequestTimes

MODEL = {"model": "m"}


def samples(metrics: EngineMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: EngineMetrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def batch(**changes: object) -> TokenBatch:
    return TokenBatch(**({"deltas": [], "load": LoadSnapshot()} | changes))  # type: ignore[arg-type]


def admitted(num_cached: int, *, resumed: bool = False, num_recomputed: int = 0) -> Admitted:
    return Admitted(RequestId("r"), 100, num_cached, num_recomputed, 0.25, resumed)


def test_series_are_exactly_those_of_the_contract_and_there_before_any_request() -> None:
    families = {f.name: f for f in text_string_to_metric_families(EngineMetrics("m").render().decode())}
    wanted = {s.name.removesuffix("_total").removesuffix("_info"): s for s in SERIES if s.program == "engine"}
    got = {name.removesuffix("_info"): family for name, family in families.items()}
    assert got.keys() == wanted.keys()
    for name, family in got.items():
        for sample in family.samples:
            if not family.name.endswith("_info"):
                assert sample.labels.keys() - {"le"} == set(wanted[name].labels)
        assert family.documentation == wanted[name].help
        assert family.samples or name == "sapwood_model"


def test_a_pod_exports_far_fewer_series_than_allowed() -> None:
    assert len(samples(EngineMetrics("m"))) <= 1500


def test_prompt_tokens_are_counted_once_by_source_and_sum_to_the_prompts() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(batch(admitted=[admitted(60), admitted(0, resumed=True, num_recomputed=70), admitted(0)]))
    counts = {
        source: value(metrics, "sapwood_prompt_tokens_total", **MODEL, source=source)
        for source in ("device", "compute", "recompute")
    }
    assert counts == {"device": 60, "compute": 140, "recompute": 70}
    assert value(metrics, "sapwood_queue_time_seconds_count", **MODEL) == 2


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
    metrics.observe(batch(admitted=[found, admitted(0)], evicted=[Evicted(16, "capacity", (90.0,)), Evicted(8, "ttl")]))
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
