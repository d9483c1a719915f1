"""The engine's metrics: a registry made of `sapwood_contract.metrics`, fed with what the worker reports.

One process holds the registry; the worker sends deltas. Series exist from the first scrape on, at 0, with
every value of their closed labels that this engine can reach, but for `CACHE_GAUGES` and the costs of steps, which are
absent until the worker has said what they are; a series that is not in the contract cannot be made.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from prometheus_client import Counter, Gauge, Info

from sapwood_contract.curve import Curve, hit_ratio_at, no_curve
from sapwood_contract.http import EngineState, LoadSnapshot
from sapwood_contract.launch import MetricsCompatName
from sapwood_contract.metrics import ENGINE_STATES, HTTP_CODES, MRC_CAPACITIES, SERIES, STARTUP_PHASES, Series
from sapwood_engine.service.cache_gauges import CACHE_GAUGES, CacheGauges
from sapwood_engine.service.messages import TokenBatch
from sapwood_engine.service.prompt_counts import PromptCounts
from sapwood_engine.service.step_cost_gauge import STEP_COST_GAUGE, StepCostGauge
from sapwood_engine.service.vllm_metrics import NoVllmMetrics, VllmMetrics
from sapwood_metrics.exposition import Scraped
from sapwood_metrics.histogram import Buckets
from sapwood_metrics.registry import Registry

CachedShare = Literal["none", "part", "most"]
Ending = Literal["stop", "length", "abort", "error"]
Phase = Literal["tokenize", "queue", "prefill", "decode", "detokenize"]

_CODES = tuple(code for code in HTTP_CODES if code not in ("408", "422", "502", "504"))
_REACHED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("sapwood_http_requests_total", "code"): _CODES,
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
    trace_id: str | None = None
    """Of the trace that its call belongs to, 32 hexadecimal digits; None where it is not sampled."""


class EngineMetrics:
    """All series of one engine."""

    def __init__(self, model: str, *, compat: MetricsCompatName = "none") -> None:
        """``model``: the one value that the ``model`` label ever has."""
        self.recent_duration_seconds = 1.0
        self._model = model
        self._model_facts = {"model": model}
        self._registry = Registry()
        self._prompts = PromptCounts()
        self._counters: dict[_Key, Counter] = {}
        self._gauges: dict[_Key, Gauge] = {}
        self._histograms: dict[_Key, Buckets] = {}
        self._infos: dict[_Key, Info] = {}
        for series in SERIES:
            if series.program == "engine" and series.name not in (*CACHE_GAUGES, STEP_COST_GAUGE):
                self._create(series)
        self._cache = CacheGauges(model, self._registry)
        self._step_costs = StepCostGauge(self._registry)
        self._vllm = VllmMetrics(model, self._registry) if compat == "vllm" else NoVllmMetrics()
        self._infos["sapwood_build_info",].info({"version": version("sapwood"), "python": platform.python_version()})
        for phase in STARTUP_PHASES:
            self._gauge("sapwood_startup_seconds", phase).set(math.nan)
        self.set_state("loading")
        self._set_load(LoadSnapshot())
        self._curve = no_curve(0)
        self._set_curve(self._curve)

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
            self._histogram("sapwood_queue_time_seconds").observe(admitted.queue_seconds)
            if not self._prompts.counts(admitted.request_id):
                continue
            computed = admitted.num_prompt_tokens - admitted.num_cached_tokens
            self._count("sapwood_prompt_tokens_total", admitted.num_cached_tokens, "device")
            self._count("sapwood_prompt_tokens_total", computed, "compute")
            for seconds in admitted.reuse_gap_seconds:
                self._histogram("sapwood_reuse_gap_seconds").observe(seconds)
        for preempted in batch.preempted:
            self._count("sapwood_preemptions_total", 1, preempted.reason)
            self._count("sapwood_preempted_tokens_total", preempted.num_tokens, preempted.reason)
        for evicted in batch.evicted:
            self._count("sapwood_evicted_tokens_total", evicted.num_tokens, evicted.reason, "dropped")
            for seconds in evicted.idle_seconds:
                self._histogram("sapwood_evicted_idle_seconds").observe(seconds)
        for delta in batch.deltas:
            if delta.finish is not None:
                self._prompts.ended(delta.request_id)
        self._count("sapwood_cache_invariant_failures_total", batch.num_invariant_failures)
        if batch.curve is not None:
            self._set_curve(batch.curve)
        if batch.step_costs is not None:
            self._step_costs.set(batch.step_costs)

    def submitted(self, choice_id: str) -> None:
        """A choice goes to the worker, which ends it some day by a delta with a finish, or by refusing it."""
        self._prompts.submitted(choice_id)

    def refused(self, choice_id: str) -> None:
        """The worker has refused a choice: in no series does it count as a request."""
        self._prompts.ended(choice_id)

    def tokens(self, times: RequestTimes, num_tokens: int, *, num_cached_tokens: int, now: float) -> None:
        """Record that a choice got ``num_tokens`` more at ``now``."""
        if num_tokens == 0:
            return
        self._count("sapwood_generation_tokens_total", num_tokens)
        if times.first_token is None or times.last_token is None:
            times.first_token = now
            share = _cached_share(num_cached_tokens, times.num_prompt_tokens)
            first = self._histogram("sapwood_time_to_first_token_seconds", share)
            first.observe(now - times.arrived, _exemplar(times))
        else:
            between = (now - times.last_token) / num_tokens
            for _ in range(num_tokens):
                self._histogram("sapwood_inter_token_latency_seconds").observe(between, _exemplar(times))
        times.last_token = now
        times.num_output_tokens += num_tokens

    def ended(self, times: RequestTimes, how: Ending, *, now: float) -> None:
        """Record that a choice has ended."""
        self._count("sapwood_requests_total", 1, how)
        duration = now - times.arrived
        self._histogram("sapwood_request_duration_seconds").observe(duration, _exemplar(times))
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

    def worker_ended(self) -> None:
        """The worker is gone, and what it held with it; what was counted stays counted."""
        self._set_load(LoadSnapshot())
        self._step_costs.clear()
        for capacity in MRC_CAPACITIES:
            self._gauge("sapwood_mrc_hit_ratio", capacity).set(math.nan)
        self._gauge("sapwood_working_set_tokens").set(math.nan)

    def call_ended(self, status: int) -> None:
        """Record that a call of the OpenAI API has ended."""
        code = str(status)
        self._count("sapwood_http_requests_total", 1, code if code in _CODES else "other")

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

    def render(self, accept: str = "") -> Scraped:
        """Return every series, in the form that an Accept header of ``accept`` asks for."""
        return self._registry.render(accept)

    # --- series

    def _create(self, series: Series) -> None:
        """Make every reachable series at once, so that a rate is right from its first increment on."""
        keyed = [
            (values, (series.name, *(v for v, label in zip(values, series.labels, strict=True) if label != "model")))
            for values in _label_values(series, self._model)
        ]
        match series.type:
            case "counter":
                counter = self._registry.counter(series)
                self._counters |= {key: counter.labels(*values) if values else counter for values, key in keyed}
            case "gauge":
                gauge = self._registry.gauge(series)
                self._gauges |= {key: gauge.labels(*values) if values else gauge for values, key in keyed}
            case "histogram":
                histogram = self._registry.histogram(series)
                self._histograms |= {key: histogram.labels(*values) for values, key in keyed}
            case "info":
                self._infos[series.name,] = self._registry.info(series)

    def _count(self, name: str, amount: float, *values: str) -> None:
        self._counters[name, *values].inc(amount)

    def _gauge(self, name: str, *values: str) -> Gauge:
        return self._gauges[name, *values]

    def _histogram(self, name: str, *values: str) -> Buckets:
        return self._histograms[name, *values]

    def _set_curve(self, curve: Curve) -> None:
        """Publish a later curve than the last one; what is not known is NaN."""
        for capacity in MRC_CAPACITIES:
            num_tokens = float(capacity.removesuffix("x")) * curve.capacity_tokens
            self._gauge("sapwood_mrc_hit_ratio", capacity).set(hit_ratio_at(curve, num_tokens))
        self._gauge("sapwood_mrc_sample_rate").set(curve.sample_rate)
        self._gauge("sapwood_working_set_tokens").set(curve.working_set_tokens)
        self._count("sapwood_mrc_samples_total", curve.num_samples - self._curve.num_samples)
        self._count("sapwood_regret_tokens_total", curve.regret_tokens - self._curve.regret_tokens)
        self._curve = curve

    def _set_load(self, load: LoadSnapshot) -> None:
        self._gauge("sapwood_requests_running").set(load.num_running)
        self._gauge("sapwood_requests_waiting", "capacity").set(load.num_waiting)
        self._gauge("sapwood_requests_waiting_tokens").set(load.num_waiting_tokens)
        self._cache.set_load(load)
        self._vllm.set_load(load)


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


def _exemplar(times: RequestTimes) -> dict[str, str] | None:
    return None if times.trace_id is None else {"trace_id": times.trace_id}


def _cached_share(num_cached_tokens: int, num_prompt_tokens: int) -> CachedShare:
    if num_cached_tokens == 0:
        return "none"
    return "most" if 2 * num_cached_tokens > num_prompt_tokens else "part"
