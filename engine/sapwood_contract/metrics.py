"""Every exported series as data: the one place where a series gets its name, type, labels and buckets.

Prometheus naming: base units, ``_total`` on counters, ratios 0-1, closed label sets. No label ever holds a
user, tenant, request id or prompt. Dashboards, rules, autoscaler and documents are checked against this table.

Long because it is a table: one entry a series, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricType = Literal["counter", "gauge", "histogram", "info"]
Program = Literal["engine", "gateway", "operator"]

FINISH_REASONS = ("stop", "length", "tool_calls", "abort", "error")
TOKEN_SOURCES = ("device", "host", "disk", "remote", "compute", "recompute")
KV_STATES = ("active", "protected", "evictable", "free")
STEP_KINDS = ("prefill", "decode", "mixed", "verify")
PHASES = ("tokenize", "queue", "kv_load", "prefill", "decode", "detokenize")
ENGINE_STATES = ("loading", "warming", "ready", "draining")
EVICTION_REASONS = ("capacity", "ttl", "flush", "lora_unload", "admin")
EVICTION_TARGETS = ("dropped", "host", "disk")
PREEMPTION_REASONS = ("kv_full", "priority")
WAIT_REASONS = ("capacity", "grammar", "lora", "kv_load")
MRC_CAPACITIES = ("0.5x", "1x", "2x", "4x", "8x", "inf")
STARTUP_PHASES = ("resolve", "load", "compile", "warm")
HTTP_CODES = (
    *("200", "400", "401", "403", "404", "405", "408", "413", "415", "422", "429"),
    *("499", "500", "502", "503", "504", "other"),
)
"""How a call ended. The status; of a stream that broke off after its first byte what its error event stands for (500,
502 or 503), though its status was 200; 499: the client left before its answer's end."""
GATEWAY_ROUTES = ("prefix", "least_load", "round_robin", "sticky", "spill", "none")
GATEWAY_UNREAD = ("unnamed", "unreadable", "large", "late")
"""Why prefix affinity did not decide. unnamed: the replica has not said how it names blocks; unreadable: the prompt's
tokens cannot be known; large: it is not looked at; late: it took too long, or those of its service rest because one
did."""
GATEWAY_PREDICTIONS = ("within_page", "less", "more")
"""Prompt tokens found in the cache, against those expected there; less and more: by more than a page."""
GATEWAY_REJECTIONS = ("rate", "quota", "overload", "auth")
"""rate: a tenant's limit a minute or at once; quota: one a day, or nobody could count; overload: no room to wait, or
the wait was over; auth: no key, or one that may not."""
GATEWAY_EVENT_GAPS = ("missed", "snapshot", "broken")
GATEWAY_ATTEMPT_FAILURES = ("connect", "broken", "timeout", "busy", "unavailable", "cut")
GATEWAY_REPLICA_STATES = ("fit", "terminating", "not_ready", "draining", "cordoned", "resting")
STEP_COSTS = ("prefill_token", "prefill_key", "decode", "decode_key", "base")
"""What a step's time is made of: each prefill token, each key that such a token reads, each decode, each key that a
decode reads, and what any step takes."""
SCALING_DIRECTIONS = ("up", "down", "hold")
SCALING_REASONS = (
    *("PrefillSpeed", "TimeToFirstToken", "KvMemory", "DecodeSpeed", "PromisedLatency", "CacheGain"),
    *("LoadFell", "Idle", "Demand", "DemandGone", "Minimum", "Maximum", "Fallback"),
    *("AsNeeded", "MetricsMissing", "Stabilizing", "StepLimit", "Settling", "ReplicasPending", "RoutingSkew"),
    *("HitLoss", "InsufficientCapacity", "ReplicasNotReady", "Paused"),
)
"""Why there are as many replicas as there are: what asked for another number, and what held it."""
SCALING_SIGNALS = (
    *("arrivals_per_second", "prompt_tokens_per_second", "prefill_tokens_per_second", "hit_ratio", "affinity"),
    *("ttft_p90_seconds", "itl_p90_seconds", "pinned_kv_ratio", "waiting_tokens", "coverage_ratio", "skew_ratio"),
)
RECONCILED_KINDS = ("InferenceService", "Tenant", "AutoscalingPolicy")
WRITTEN_KINDS = (
    "InferenceService",
    "AutoscalingPolicy",
    "Pod",
    "Tenant",
    "ServiceAccount",
    "ConfigMap",
    "Service",
    "Deployment",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Ingress",
    "PodMonitor",
    "PrometheusRule",
    "HTTPRoute",
    "Secret",
    "Event",
)
WRITE_VERBS = ("apply", "delete", "create")

_LATENCY_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0, 600.0)
_ITL_SECONDS = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 1.0, 10.0, 300.0)
_DURATION_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_IDLE_SECONDS = (0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0, 300.0)
_RECONCILE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUEUE_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_BATCH_TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One exported series."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> its closed set; a label that is absent here is bounded by configuration (``model``)."""
    buckets: tuple[float, ...] = ()
    program: Program = "engine"
    """Which program exports it."""


SERIES: tuple[Series, ...] = (
    Series(
        "sapwood_http_requests_total",
        "counter",
        "Calls of the OpenAI API ended, by HTTP status, a broken stream by its error's.",
        ("model", "code"),
        {"code": HTTP_CODES},
    ),
    Series(
        "sapwood_requests_total",
        "counter",
        "Requests ended that the scheduler had taken, by how; a call with n choices is n requests.",
        ("model", "finish_reason"),
        {"finish_reason": FINISH_REASONS},
    ),
    Series("sapwood_requests_running", "gauge", "Requests being computed.", ("model",)),
    Series(
        "sapwood_requests_waiting",
        "gauge",
        "Requests waiting, by what for.",
        ("model", "reason"),
        {"reason": WAIT_REASONS},
    ),
    Series(
        "sapwood_requests_waiting_tokens",
        "gauge",
        "Tokens that waiting requests will have to compute, less what was cached when each was last looked at.",
        ("model",),
    ),
    Series(
        "sapwood_prompt_tokens_total",
        "counter",
        "Prompt tokens by where their KV came from, counted once, at admission.",
        ("model", "source"),
        {"source": TOKEN_SOURCES},
    ),
    Series("sapwood_generation_tokens_total", "counter", "Tokens produced.", ("model",)),
    Series(
        "sapwood_time_to_first_token_seconds",
        "histogram",
        "From arrival to the first token.",
        ("model", "cached"),
        {"cached": ("none", "part", "most")},
        _LATENCY_SECONDS,
    ),
    Series(
        "sapwood_inter_token_latency_seconds",
        "histogram",
        "Between two tokens of one stream.",
        ("model",),
        buckets=_ITL_SECONDS,
    ),
    Series(
        "sapwood_time_per_output_token_seconds",
        "histogram",
        "Mean time per token after the first, a request.",
        ("model",),
        buckets=_ITL_SECONDS,
    ),
    Series(
        "sapwood_request_duration_seconds",
        "histogram",
        "From arrival to the last token.",
        ("model",),
        buckets=_DURATION_SECONDS,
    ),
    Series(
        "sapwood_queue_time_seconds",
        "histogram",
        "From arrival to the first admission.",
        ("model",),
        buckets=_LATENCY_SECONDS,
    ),
    Series(
        "sapwood_request_phase_seconds",
        "histogram",
        "Time in each phase of a request; tokenize once a prompt, where it came as text.",
        ("model", "phase"),
        {"phase": PHASES},
        _LATENCY_SECONDS,
    ),
    Series(
        "sapwood_kv_tokens",
        "gauge",
        "KV capacity by state; the states sum to capacity.",
        ("model", "state"),
        {"state": KV_STATES},
    ),
    Series("sapwood_kv_capacity_tokens", "gauge", "KV capacity.", ("model",)),
    Series("sapwood_kv_page_tokens", "gauge", "Tokens a KV page.", ("model",)),
    Series("sapwood_kv_usage_ratio", "gauge", "Pinned share of the KV capacity.", ("model",)),
    Series(
        "sapwood_evicted_tokens_total",
        "counter",
        "Cached tokens dropped.",
        ("model", "reason", "to"),
        {"reason": EVICTION_REASONS, "to": EVICTION_TARGETS},
    ),
    Series(
        "sapwood_evicted_idle_seconds",
        "histogram",
        "How long cached tokens that went for room had not been used; one sample an eviction.",
        ("model",),
        buckets=_IDLE_SECONDS,
    ),
    Series(
        "sapwood_reuse_gap_seconds",
        "histogram",
        "How long a cached prefix had not been used when a request found it; one sample a request.",
        ("model",),
        buckets=_IDLE_SECONDS,
    ),
    Series(
        "sapwood_regret_tokens_total",
        "counter",
        "Prompt tokens computed that a cache of twice the capacity would have held: they were evicted of late.",
        ("model",),
    ),
    Series(
        "sapwood_mrc_hit_ratio",
        "gauge",
        "The miss-ratio curve: hit ratio of prompt tokens as it would be with so many times the KV capacity; NaN while"
        " too little is known.",
        ("model", "capacity"),
        {"capacity": MRC_CAPACITIES},
    ),
    Series("sapwood_mrc_sample_rate", "gauge", "Share of the pages that the miss-ratio curve follows.", ("model",)),
    Series("sapwood_mrc_samples_total", "counter", "Page uses that the miss-ratio curve has counted.", ("model",)),
    Series(
        "sapwood_working_set_tokens",
        "gauge",
        "KV capacity at which nine tenths of the hits that any capacity could give are had; NaN while too little is"
        " known.",
        ("model",),
    ),
    Series("sapwood_radix_nodes", "gauge", "Nodes of the radix tree.", ("model",)),
    Series(
        "sapwood_radix_depth_max",
        "gauge",
        "Most nodes on a path of the radix tree: found by the last integrity check, or longer ones taken since.",
        ("model",),
    ),
    Series("sapwood_radix_locked_nodes", "gauge", "Nodes of the radix tree in use.", ("model",)),
    Series(
        "sapwood_step_seconds",
        "histogram",
        "Time of one step on the device.",
        ("kind",),
        {"kind": STEP_KINDS},
        _STEP_SECONDS,
    ),
    Series(
        "sapwood_batch_tokens",
        "histogram",
        "Tokens computed in one step.",
        ("kind",),
        {"kind": STEP_KINDS},
        _BATCH_TOKENS,
    ),
    Series(
        "sapwood_step_cost_seconds",
        "gauge",
        "Fitted cost of a step's parts; absent until steps of that kind were seen.",
        ("part",),
        {"part": STEP_COSTS},
    ),
    Series(
        "sapwood_preemptions_total",
        "counter",
        "Running requests sent back to wait.",
        ("reason",),
        {"reason": PREEMPTION_REASONS},
    ),
    Series(
        "sapwood_preempted_tokens_total",
        "counter",
        "Tokens of the requests sent back to wait.",
        ("reason",),
        {"reason": PREEMPTION_REASONS},
    ),
    Series(
        "sapwood_engine_state",
        "gauge",
        "1 for the state that the engine is in, 0 for the others.",
        ("state",),
        {"state": ENGINE_STATES},
    ),
    Series(
        "sapwood_startup_seconds", "gauge", "Time of each phase of the start.", ("phase",), {"phase": STARTUP_PHASES}
    ),
    Series("sapwood_build_info", "info", "Version of Sapwood and of Python."),
    Series("sapwood_model_info", "info", "Model, revision, arithmetic, attention backend."),
    Series("sapwood_cache_invariant_failures_total", "counter", "Failed integrity checks of the prefix cache."),
    Series(
        "sapwood_gateway_requests_total",
        "counter",
        "Requests ended, by HTTP status, a broken stream by its error's; service (namespace/name) and model are empty"
        " where none that is served was named.",
        ("inference_service", "model", "code"),
        {"code": HTTP_CODES},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_requests_running", "gauge", "Requests on their way to replicas or back.", program="gateway"
    ),
    Series(
        "sapwood_gateway_route_total",
        "counter",
        "Requests by what their replica was chosen for; none: no replica could take them.",
        ("result",),
        {"result": GATEWAY_ROUTES},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_queued_requests",
        "gauge",
        "Requests that wait for a replica, of services that let them wait; also where a service has none yet.",
        ("inference_service",),
        program="gateway",
    ),
    Series(
        "sapwood_gateway_queue_time_seconds",
        "histogram",
        "How long requests waited for a replica, of those that had to; also of those that got none.",
        buckets=_QUEUE_SECONDS,
        program="gateway",
    ),
    Series(
        "sapwood_gateway_rejected_total",
        "counter",
        "Requests that the gateway refused for what a caller may do, or for lack of room.",
        ("reason",),
        {"reason": GATEWAY_REJECTIONS},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_quota_store_failures_total",
        "counter",
        "Failed questions to the store in which gateways count what tenants use.",
        program="gateway",
    ),
    Series(
        "sapwood_gateway_unread_prompts_total",
        "counter",
        "Requests that prefix affinity was to decide and that were routed by load, by why.",
        ("reason",),
        {"reason": GATEWAY_UNREAD},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_predicted_match_tokens_total",
        "counter",
        "Prompt tokens expected in the cache of the replica chosen, of answers that say how many were.",
        ("model",),
        program="gateway",
    ),
    Series(
        "sapwood_gateway_actual_match_tokens_total",
        "counter",
        "Prompt tokens found there, of the same answers.",
        ("model",),
        program="gateway",
    ),
    Series(
        "sapwood_gateway_match_predictions_total",
        "counter",
        "The same answers, by whether what was found is within a page of what was expected.",
        ("result",),
        {"result": GATEWAY_PREDICTIONS},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_event_lag_seconds",
        "gauge",
        "The longest time, in the last minute, from an engine's telling of blocks to their being known; 0 for none.",
        program="gateway",
    ),
    Series(
        "sapwood_gateway_index_blocks",
        "gauge",
        "Blocks that replicas are known to hold, each once a holder.",
        program="gateway",
    ),
    Series(
        "sapwood_gateway_event_gaps_total",
        "counter",
        "Gaps in engines' cache events: batches missed, all blocks asked for (snapshot), not to be followed (broken).",
        ("reason",),
        {"reason": GATEWAY_EVENT_GAPS},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_attempt_failures_total",
        "counter",
        "Attempts on a replica that gave no answer, or not the whole of it.",
        ("reason",),
        {"reason": GATEWAY_ATTEMPT_FAILURES},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_overhead_seconds",
        "histogram",
        "From a request's last byte to its sending to a replica, but for its wait for one and for the quota store.",
        buckets=_OVERHEAD_SECONDS,
        program="gateway",
    ),
    Series(
        "sapwood_gateway_replicas",
        "gauge",
        "Replicas by whether they can take requests; resting: after failures in a row.",
        ("state",),
        {"state": GATEWAY_REPLICA_STATES},
        program="gateway",
    ),
    Series(
        "sapwood_gateway_discovery_failures_total",
        "counter",
        "Failed questions to the cluster's API about services and replicas.",
        program="gateway",
    ),
    Series("sapwood_gateway_build_info", "info", "Version of the gateway.", program="gateway"),
    Series(
        "sapwood_operator_reconcile_seconds",
        "histogram",
        "Time of one turn of reconciling an object.",
        ("kind",),
        {"kind": RECONCILED_KINDS},
        _RECONCILE_SECONDS,
        program="operator",
    ),
    Series(
        "sapwood_operator_reconcile_errors_total",
        "counter",
        "Turns that left something to try again.",
        ("kind",),
        {"kind": RECONCILED_KINDS},
        program="operator",
    ),
    Series(
        "sapwood_operator_queue_depth",
        "gauge",
        "Objects that wait for a turn.",
        ("kind",),
        {"kind": RECONCILED_KINDS},
        program="operator",
    ),
    Series(
        "sapwood_operator_api_writes_total",
        "counter",
        "Writes sent to the API server.",
        ("kind", "verb"),
        {"kind": WRITTEN_KINDS, "verb": WRITE_VERBS},
        program="operator",
    ),
    Series(
        "sapwood_operator_leader", "gauge", "1 for the operator that leads, 0 for one that waits.", program="operator"
    ),
    Series(
        "sapwood_autoscaler_desired_replicas",
        "gauge",
        "Replicas that the autoscaler wants.",
        ("namespace", "name"),
        program="operator",
    ),
    Series(
        "sapwood_autoscaler_ready_replicas",
        "gauge",
        "Replicas that were ready at its last decision.",
        ("namespace", "name"),
        program="operator",
    ),
    Series(
        "sapwood_autoscaler_signal",
        "gauge",
        "What its last decision was made from; absent while unknown.",
        ("namespace", "name", "signal"),
        {"signal": SCALING_SIGNALS},
        program="operator",
    ),
    Series(
        "sapwood_autoscaler_decisions_total",
        "counter",
        "Decisions, by where they went and why.",
        ("namespace", "name", "direction", "reason"),
        {"direction": SCALING_DIRECTIONS, "reason": SCALING_REASONS},
        program="operator",
    ),
    Series(
        "sapwood_autoscaler_last_decision_timestamp_seconds",
        "gauge",
        "Unix time of the last decision made from measurements; one without them leaves it.",
        ("namespace", "name"),
        program="operator",
    ),
    Series(
        "sapwood_autoscaler_cache_lost_tokens_total",
        "counter",
        "Cached tokens of worth that left with replicas and were on no other one.",
        ("namespace", "name"),
        program="operator",
    ),
)

VLLM_SERIES: tuple[Series, ...] = (
    Series("vllm:num_requests_running", "gauge", "Requests being computed.", ("model_name", "engine")),
    Series("vllm:num_requests_waiting", "gauge", "Requests waiting.", ("model_name", "engine")),
    Series("vllm:kv_cache_usage_perc", "gauge", "Pinned share of the KV capacity, 0 to 1.", ("model_name", "engine")),
    Series(
        "vllm:cache_config_info",
        "gauge",
        "1, with the pages that the KV capacity has and their size in tokens; absent until they are known.",
        ("block_size", "num_gpu_blocks", "engine"),
    ),
    Series(
        "vllm:lora_requests_info",
        "gauge",
        "Unix time of the last change of which adapters run and wait; this engine has none.",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
)
"""What ``--metrics-compat vllm`` exports besides, under the names and labels of vLLM's V1 engine (0.10): what the
endpoint picker of the Gateway API inference extension and dashboards made for vLLM read."""

BY_NAME: Mapping[str, Series] = {series.name: series for series in SERIES}
