"""The engine's metrics: a registry made of `sapwood_contract.metrics`, fed with what the worker reports.

One process holds the registry; the worker sends deltas. Series exist from the first scrape on, at 0, with
every value of their closed labels that this engine can reach; a series that is not in the contract cannot
be made.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

from sapwood_contract.http import EngineState, LoadSnapshot
from sapwood_contract.metrics import ENGINE_STATES, SERIES, STARTUP_PHASES, Series
from sapwood_engine.service.messages import TokenBatch

CachedShare = Literal["none", "part", "most"]
Ending = Literal["stop", "length", "abort", "error"]
Phase = Literal["tokenize", "queue", "prefill", "decode", "detokenize"]

_REACHED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("sapwood_requests_total", "finish_reason"): ("stop", "length", "abort", "error"),
    ("sapwood_requests_waiting", "reason"): ("capacity",),
    ("sapwood_prompt_tokens_total", "source"): ("device", "compute", "recompute"),
    ("sapwood_request_phase_seconds", "phase"): ("tokenize", "queue", "prefill", "decode", "detokenize"),
    ("sapwood_step_seconds", "kind"): ("prefill", "decode", "mixed"),
    ("sapwood_batch_tokens", "kind"): ("prefill", "decode", "mixed"),
    ("sapwood_evicted_tokens_total", "reason"): ("capacity", "ttl", "flush", "admin"),
    ("sapwood_evicted_tokens_total", "to"): ("dropped",),
}
"""(series, label) -> the values that this engine can reach, where the contract's set is larger."""
_Key = tuple[str, ...]
"""Name of a series, then its label values but for ``model``."""
_SMOOTHING = 0.1
"""Weight of the latest request in the running mean of durations."""


@dataclass(slots=True)
class RequestTimes:
    """When things happened to one choice; seconds of the monotonic clock."""

    arrived: float
    num_prompt_tokens: int
    queue_seconds: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    num_output_tokens: int = 0
    detokenize_seconds: float = 0.0


class EngineMetrics:
    """All series of one engine."""

    def __init__(self, model: str) -> None:
        """``model``: the one value that the ``model`` label ever has."""
        # Twice the series, for a time that nobody looks at. (The library has no annotations.)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.recent_duration_seconds = 1.0
        self._model = model
        self._model_facts = {"model": model}
        self._registry = CollectorRegistry()
        self._counters: dict[_Key, Counter] = {}
        self._gauges: dict[_Key, Gauge] = {}
        self._histograms: dict[_Key, Histogram] = {}
        self._infos: dict[_Key, Info] = {}
        for series in SERIES:
            if series.program == "engine":
                self._create(series)
        self._infos["sapwood_build_info",].info({"version": version("sapwood"), "python": platform.python_version()})
        self.set_state("loading")
        self._set_load(LoadSnapshot())

    # --- what the service tells

    def observe(self, batch: TokenBatch) -> None:
        """Record what one turn of the worker's loop did."""
        self._set_load(batch.load)
        if batch.step is not None:
            self._histogram("sapwood_step_seconds", batch.step.kind).observe(batch.step.seconds)
            self._histogram("sapwood_batch_tokens", batch.step.kind).observe(batch.step.num_tokens)
        for admitted in batch.admitted:
            if admitted.resumed:
                self._count("sapwood_prompt_tokens_total", admitted.num_recomputed_tokens, "recompute")
                continue
            computed = admitted.num_prompt_tokens - admitted.num_cached_tokens
            self._count("sapwood_prompt_tokens_total", admitted.num_cached_tokens, "device")
            self._count("sapwood_prompt_tokens_total", computed, "compute")
            self._histogram("sapwood_queue_time_seconds").observe(admitted.queue_seconds)
            for seconds in admitted.reuse_gap_seconds:
                self._histogram("sapwood_reuse_gap_seconds").observe(seconds)
        for preempted in batch.preempted:
            self._count("sapwood_preemptions_total", 1, preempted.reason)
            self._count("sapwood_preempted_tokens_total", preempted.num_tokens, preempted.reason)
        for evicted in batch.evicted:
            self._count("sapwood_evicted_tokens_total", evicted.num_tokens, evicted.reason, "dropped")
            for seconds in evicted.idle_seconds:
                self._histogram("sapwood_evicted_idle_seconds").observe(seconds)
        self._count("sapwood_cache_invariant_failures_total", batch.num_invariant_failures)

    def tokens(self, times: RequestTimes, num_tokens: int, *, num_cached_tokens: int, now: float) -> None:
        """Record that a choice got ``num_tokens`` more at ``now``."""
        if num_tokens == 0:
            return
        self._count("sapwood_generation_tokens_total", num_tokens)
        if times.first_token is None or times.last_token is None:
            times.first_token = now
            share = _cached_share(num_cached_tokens, times.num_prompt_tokens)
            self._histogram("sapwood_time_to_first_token_seconds", share).observe(now - times.arrived)
        else:
            between = (now - times.last_token) / num_tokens
            for _ in range(num_tokens):
                self._histogram("sapwood_inter_token_latency_seconds").observe(between)
        times.last_token = now
        times.num_output_tokens += num_tokens

    def ended(self, times: RequestTimes, how: Ending, *, now: float) -> None:
        """Record that a choice has ended."""
        self._count("sapwood_requests_total", 1, how)
        duration = now - times.arrived
        self._histogram("sapwood_request_duration_seconds").observe(duration)
        self.recent_duration_seconds += _SMOOTHING * (duration - self.recent_duration_seconds)
        if times.first_token is None or times.last_token is None:
            return
        decode = times.last_token - times.first_token
        if times.num_output_tokens > 1:
            per_token = decode / (times.num_output_tokens - 1)
            self._histogram("sapwood_time_per_output_token_seconds").observe(per_token)
        self.phase("queue", times.queue_seconds)
        self.phase("prefill", max(0.0, times.first_token - times.arrived - times.queue_seconds))
        self.phase("decode", decode)
        self.phase("detokenize", times.detokenize_seconds)

    def phase(self, phase: Phase, seconds: float) -> None:
        """Record the time that one request spent in a phase; tokenizing is that of the call, whose choices share it."""
        self._histogram("sapwood_request_phase_seconds", phase).observe(seconds)

    def set_state(self, state: EngineState) -> None:
        """Publish the state, one-hot."""
        for each in ENGINE_STATES:
            self._gauge("sapwood_engine_state", each).set(each == state)

    def started(self, seconds: Mapping[str, float], facts: Mapping[str, str]) -> None:
        """Publish how long each phase of the start took, and what was started."""
        for phase in STARTUP_PHASES:
            if phase in seconds:
                self._gauge("sapwood_startup_seconds", phase).set(seconds[phase])
        self._tell_model({name.lower().replace(" ", "_"): fact for name, fact in facts.items()})

    def checkpoint_found(self, revision: str) -> None:
        """Publish the revision of the model's checkpoint."""
        self._tell_model({"revision": revision})

    def _tell_model(self, facts: Mapping[str, str]) -> None:
        """Publish ``facts`` beside those told before: they come from two processes, in either order."""
        self._model_facts.update(facts)
        self._infos["sapwood_model_info",].info(self._model_facts)

    def render(self) -> bytes:
        """Return every series in Prometheus' text format."""
        return generate_latest(self._registry)

    # --- series

    def _create(self, series: Series) -> None:
        """Make every reachable series at once, so that a rate is right from its first increment on."""
        metric = _metric(series, self._registry)
        for values in _label_values(series, self._model):
            child = metric.labels(*values) if values else metric
            key = (
                series.name,
                *(v for v, label in zip(values, series.labels, strict=True) if label != "model"),
            )
            match child:
                case Counter():
                    self._counters[key] = child
                case Gauge():
                    self._gauges[key] = child
                case Histogram():
                    self._histograms[key] = child
                case Info():
                    self._infos[key] = child

    def _count(self, name: str, amount: float, *values: str) -> None:
        self._counters[name, *values].inc(amount)

    def _gauge(self, name: str, *values: str) -> Gauge:
        return self._gauges[name, *values]

    def _histogram(self, name: str, *values: str) -> Histogram:
        return self._histograms[name, *values]

    def _set_load(self, load: LoadSnapshot) -> None:
        pinned = load.kv_active_tokens + load.kv_protected_tokens
        self._gauge("sapwood_requests_running").set(load.num_running)
        self._gauge("sapwood_requests_waiting", "capacity").set(load.num_waiting)
        self._gauge("sapwood_kv_tokens", "active").set(load.kv_active_tokens)
        self._gauge("sapwood_kv_tokens", "protected").set(load.kv_protected_tokens)
        self._gauge("sapwood_kv_tokens", "evictable").set(load.kv_evictable_tokens)
        self._gauge("sapwood_kv_tokens", "free").set(load.kv_free_tokens)
        self._gauge("sapwood_kv_capacity_tokens").set(load.kv_capacity_tokens)
        self._gauge("sapwood_kv_page_tokens").set(load.kv_page_tokens)
        self._gauge("sapwood_kv_usage_ratio").set(pinned / load.kv_capacity_tokens if load.kv_capacity_tokens else 0)
        self._gauge("sapwood_radix_nodes").set(load.radix_nodes)
        self._gauge("sapwood_radix_depth_max").set(load.radix_depth_max)
        self._gauge("sapwood_radix_locked_nodes").set(load.radix_locked_nodes)


def _metric(series: Series, registry: CollectorRegistry) -> Counter | Gauge | Histogram | Info:
    if series.type == "histogram":
        return Histogram(series.name, series.help, series.labels, buckets=series.buckets, registry=registry)
    if series.type == "counter":
        return Counter(series.name, series.help, series.labels, registry=registry)
    if series.type == "gauge":
        return Gauge(series.name, series.help, series.labels, registry=registry)
    return Info(series.name.removesuffix("_info"), series.help, series.labels, registry=registry)


def _label_values(series: Series, model: str) -> list[tuple[str, ...]]:
    """Return every combination of label values that this engine can reach; ``[()]`` for a series without
    labels.
    """
    combinations: list[tuple[str, ...]] = [()]
    for label in series.labels:
        if label == "model":
            values: tuple[str, ...] = (model,)
        else:
            values = _REACHED.get((series.name, label), series.values[label])
        combinations = [(*chosen, value) for chosen in combinations for value in values]
    return combinations


def _cached_share(num_cached_tokens: int, num_prompt_tokens: int) -> CachedShare:
    if num_cached_tokens == 0:
        return "none"
    return "most" if 2 * num_cached_tokens > num_prompt_tokens else "part"
