"""The engine's settings: frozen groups, one a concern, made of `LaunchOptions` and checked once.

A value that exists is a value that can be used: everything out of range raises `ConfigError` naming option,
value and what to do. Environment and argv are read in `cli`, not here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sapwood_contract.launch import (
    AttentionBackendName,
    ConsoleName,
    CpuStepName,
    DtypeName,
    EvictionPolicyName,
    LaunchOptions,
    MetricsCompatName,
    QuantizationName,
    SamplingDefaultsName,
    SchedulerPolicy,
    ThreadBindingName,
    flag,
)
from sapwood_engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model, how its arithmetic is done, and how it is sampled where nobody says."""

    source: str
    """builtin:NAME, a folder, a ``.gguf`` file or a Hugging Face repository."""
    served_name: str | None
    """None: the model's own name."""
    dtype: DtypeName
    quantization: QuantizationName
    attention_backend: AttentionBackendName
    cpu_step: CpuStepName
    thread_binding: ThreadBindingName
    threads: int | None
    """Compute threads; None: one per physical core that this process may use."""
    context_length: int | None
    """Tokens; None: the model's own, or what fits."""
    sampling_defaults: SamplingDefaultsName
    """Whose values hold for the sampling fields that a request leaves out: those that the checkpoint recommends,
    because a small model is of no use at OpenAI's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The paged KV cache and what is kept in it."""

    page_size: int
    """Tokens a page."""
    kv_tokens: int | None
    """Capacity; None: from ``memory_fraction``."""
    memory_fraction: float
    prefix_cache: bool
    partial_pages: bool
    eviction_policy: EvictionPolicyName
    events_port: int | None
    """On which what is kept is published, on the admin address; None: on none."""
    events_token_ids: bool
    miss_ratio_curve: bool
    mrc_sample_rate: float
    """Share of the pages that the curve follows."""
    warm_wait_seconds: float
    """How long a loaded engine waits to be told what to compute before it is ready; 0: not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Who runs when, and how much of it in one step."""

    policy: SchedulerPolicy
    overlap: bool
    max_running: int
    """Requests."""
    max_queued: int
    """Requests waiting; beyond it 429."""
    max_step_tokens: int
    chunk_tokens: int
    itl_target_seconds: float
    ttft_target_seconds: float
    step_timeout_seconds: float
    """After which a worker that has work, and says nothing, is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The two ports and how they close."""

    host: str
    port: int
    """0 takes a free one."""
    admin_host: str
    admin_port: int
    drain_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilitySettings:
    """What is shown of the engine, and where."""

    otlp_endpoint: str | None
    """Base address of an OTLP receiver over HTTP; None: no traces are kept."""
    trace_sampling_ratio: float
    metrics_compat: MetricsCompatName
    console: ConsoleName


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All of it."""

    model: ModelSettings
    cache: CacheSettings
    scheduler: SchedulerSettings
    http: HttpSettings
    observability: ObservabilitySettings
    seed: int | None
    """Seed of the seeds drawn for requests that bring none; None: from the system."""


@dataclass(frozen=True, slots=True)
class _Range:
    """A closed interval that an option must lie in."""

    least: float
    most: float
    fix: str


_MOST_PORT = 65_535
_RANGES: dict[str, _Range] = {
    "port": _Range(0, _MOST_PORT, "take a port from 1 to 65535, or 0 for a free one"),
    "admin_port": _Range(0, _MOST_PORT, "take a port from 1 to 65535, or 0 for a free one"),
    "kv_events_port": _Range(
        0, _MOST_PORT - 1, "take a port from 1 to 65534 (the next is used too), or 0 for free ones"
    ),
    "threads": _Range(1, 4096, "give at least 1 thread"),
    "context_length": _Range(2, math.inf, "give at least 2 tokens, one of prompt and one of answer"),
    "page_size": _Range(1, 4096, "take 1 to 4096 tokens a page; 16 suits most models"),
    "kv_tokens": _Range(1, math.inf, "give at least one page of tokens"),
    "memory_fraction": _Range(0.01, 0.95, "take a share from 0.01 to 0.95"),
    "mrc_sample_rate": _Range(0.001, 1, "take a share from 0.001 to 1; 0.05 suits most loads"),
    "trace_sampling_ratio": _Range(0, 1, "take a share from 0 to 1"),
    "max_running": _Range(1, 65536, "allow at least 1 request"),
    "max_queued": _Range(1, math.inf, "allow at least 1 request to wait"),
    "max_step_tokens": _Range(1, 1 << 20, "take 1 to 1048576 tokens a step"),
    "chunk_tokens": _Range(1, 1 << 20, "take 1 to 1048576 tokens of one request"),
    "itl_target_seconds": _Range(0.001, 3600, "take 0.001 to 3600 seconds"),
    "ttft_target_seconds": _Range(0.001, 3600, "take 0.001 to 3600 seconds"),
    "step_timeout_seconds": _Range(0.1, 86400, "take 0.1 to 86400 seconds"),
    "warm_wait_seconds": _Range(0, 3600, "take 0 to 3600 seconds; 0 waits for nothing"),
    "drain_seconds": _Range(0, 86400, "take 0 to 86400 seconds"),
}


def engine_config(options: LaunchOptions) -> EngineConfig:
    """Return ``options`` as checked groups; raises `ConfigError` for the first that cannot be used."""
    for name, bounds in _RANGES.items():
        value = getattr(options, name)
        # written so that NaN is out of range too
        if value is not None and not bounds.least <= value <= bounds.most:
            raise ConfigError(flag(name), value, bounds.fix)
    _check_together(options)
    return EngineConfig(
        model=ModelSettings(
            source=options.model,
            served_name=options.served_model_name,
            dtype=options.dtype,
            quantization=options.quantization,
            attention_backend=options.attention_backend,
            cpu_step=options.cpu_step,
            thread_binding=options.thread_binding,
            threads=options.threads,
            context_length=options.context_length,
            sampling_defaults=options.sampling_defaults,
        ),
        cache=CacheSettings(
            page_size=options.page_size,
            kv_tokens=options.kv_tokens,
            memory_fraction=options.memory_fraction,
            prefix_cache=options.prefix_cache == "on",
            partial_pages=options.partial_pages == "on",
            eviction_policy=options.eviction_policy,
            events_port=options.kv_events_port,
            events_token_ids=options.kv_events_token_ids == "on",
            miss_ratio_curve=options.miss_ratio_curve == "on",
            mrc_sample_rate=options.mrc_sample_rate,
            warm_wait_seconds=options.warm_wait_seconds,
        ),
        scheduler=SchedulerSettings(
            policy=options.scheduler_policy,
            overlap=options.overlap == "on",
            max_running=options.max_running,
            max_queued=options.max_queued,
            max_step_tokens=options.max_step_tokens,
            chunk_tokens=options.chunk_tokens,
            itl_target_seconds=options.itl_target_seconds,
            ttft_target_seconds=options.ttft_target_seconds,
            step_timeout_seconds=options.step_timeout_seconds,
        ),
        http=HttpSettings(
            host=options.host,
            port=options.port,
            admin_host=options.admin_host,
            admin_port=_admin_port(options),
            drain_seconds=options.drain_seconds,
        ),
        observability=ObservabilitySettings(
            otlp_endpoint=options.otlp_endpoint,
            trace_sampling_ratio=options.trace_sampling_ratio,
            metrics_compat=options.metrics_compat,
            console=options.console,
        ),
        seed=options.seed,
    )


def _admin_port(options: LaunchOptions) -> int:
    """The port asked for, or the one after the OpenAI API's, so that engines of different ports get along."""
    if options.admin_port is not None:
        return options.admin_port
    if options.port == _MOST_PORT:
        raise ConfigError(flag("port"), options.port, "there is no port after it for the admin API: give --admin-port")
    return options.port + 1 if options.port else 0


def _check_together(options: LaunchOptions) -> None:
    if not options.model:
        raise ConfigError(flag("model"), options.model, "name a model, for example builtin:smollm2-135m")
    if options.served_model_name == "":
        raise ConfigError(flag("served_model_name"), "", "give a name, or leave the option out")
    endpoint = options.otlp_endpoint
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(flag("otlp_endpoint"), endpoint, "give an address such as http://127.0.0.1:4318")
    if options.max_running > options.max_step_tokens:
        raise ConfigError(
            flag("max_running"),
            options.max_running,
            f"each needs a token a step: keep it within --max-step-tokens ({options.max_step_tokens})",
        )
    if options.kv_tokens is not None and options.kv_tokens < options.page_size:
        raise ConfigError(flag("kv_tokens"), options.kv_tokens, f"give at least one page ({options.page_size} tokens)")
    if options.port == options.admin_port != 0 and options.host == options.admin_host:
        raise ConfigError(flag("admin_port"), options.admin_port, "it is the OpenAI API's port too: take another, or 0")
