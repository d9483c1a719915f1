"""What one replica is started with: the service's spec as launch options of ``sapwood serve``, and as argv."""

from __future__ import annotations

import dataclasses
from typing import Any

from sapwood_contract.launch import LaunchOptions, Unusable, flag, read, to_argv
from sapwood_operator.domain.model import BuiltinModel, ClaimModel, HubModel, ModelSource, PathModel
from sapwood_operator.domain.observability import NoTracing, Tracing
from sapwood_operator.domain.spec import EngineSpec, ScaledReplicas, ServiceSpec
from sapwood_operator.errors import InvalidSpec
from sapwood_operator.settings import OperatorSettings

HTTP_PORT = 8000
ADMIN_PORT = 8001
KV_EVENTS_PORT = 8002
KV_REPLAY_PORT = KV_EVENTS_PORT + 1
"""The engine answers for missed events on the port after that of events."""
EVERY_ADDRESS = "0.0.0.0"
WARM_WAIT_SECONDS = 30.0
"""How long a new replica of a scaled service waits to be told what to compute before it is ready, should no operator
tell it."""
MODEL_FOLDER = "/models"
"""Where a volume with weights is mounted."""
CREDENTIAL_FOLDER = "/etc/sapwood"
CREDENTIAL_FILE = "gateway-credential"
"""By which the engine knows the gateway; a file of that folder."""

RENDERED_OPTIONS = (
    "host",
    "port",
    "admin_host",
    "admin_port",
    "api_key_file",
    "admin_key_file",
    "gateway_credential_file",
    "kv_events_port",
    "model",
    "served_model_name",
    "drain_seconds",
    "warm_wait_seconds",
    "context_length",
    "memory_fraction",
    "page_size",
    "prefix_cache",
    "eviction_policy",
    "miss_ratio_curve",
    "mrc_sample_rate",
    "scheduler_policy",
    "max_running",
    "max_queued",
    "chunk_tokens",
    "attention_backend",
    "otlp_endpoint",
    "trace_sampling_ratio",
)
"""Options that ``extraArgs`` may not name: the operator relies on them, or the spec has a field for them. The schema
refuses them too."""


def publishes_blocks(spec: ServiceSpec) -> bool:
    """Whether the replicas tell the gateway which blocks they hold."""
    return spec.routing.policy == "PrefixAffinity"


def has_credential(spec: ServiceSpec, settings: OperatorSettings) -> bool:
    """Whether the replicas answer only those who have the gateway's credential.

    Without a secret of the installation there is no credential, and the service gets no address.
    """
    return spec.tenancy.authentication == "ApiKey" and bool(settings.secret)


def ports(spec: ServiceSpec) -> dict[str, int]:
    """Return the ports of a replica by name."""
    blocks = {"kv-events": KV_EVENTS_PORT, "kv-replay": KV_REPLAY_PORT} if publishes_blocks(spec) else {}
    return {"http": HTTP_PORT, "admin": ADMIN_PORT, **blocks}


def args(spec: ServiceSpec, settings: OperatorSettings) -> list[str]:
    """Return the container's arguments; raises `InvalidSpec` for ``extraArgs`` that the engine would refuse."""
    return ["serve", *to_argv(launch_options(spec, settings))]


def launch_options(spec: ServiceSpec, settings: OperatorSettings) -> LaunchOptions:
    """Return what the engine is to parse; raises `InvalidSpec` for ``extraArgs`` that it would refuse."""
    options = LaunchOptions(
        model=_model(spec.model.source),
        served_model_name=spec.model.served_name,
        host=EVERY_ADDRESS,
        port=HTTP_PORT,
        admin_host=EVERY_ADDRESS,
        admin_port=ADMIN_PORT,
        gateway_credential_file=f"{CREDENTIAL_FOLDER}/{CREDENTIAL_FILE}" if has_credential(spec, settings) else None,
        kv_events_port=KV_EVENTS_PORT if publishes_blocks(spec) else None,
        drain_seconds=spec.rollout.drain_seconds,
        warm_wait_seconds=WARM_WAIT_SECONDS if isinstance(spec.replicas, ScaledReplicas) else 0.0,
        attention_backend=spec.engine.attention_backend,
        eviction_policy=spec.engine.eviction_policy,
        scheduler_policy=spec.engine.scheduler_policy,
        prefix_cache="on" if spec.engine.prefix_cache else "off",
        miss_ratio_curve="on" if spec.engine.miss_ratio_curve else "off",
        mrc_sample_rate=spec.engine.mrc_sample_rate,
    )
    options = _with_tracing(_with_engine(options, spec.engine), spec.observability.tracing)
    return _with_extra_args(options, spec.engine.extra_args)


def _model(source: ModelSource) -> str:
    match source:
        case BuiltinModel(name):
            return f"builtin:{name}"
        case HubModel(repository, revision):
            return f"{repository}@{revision}" if revision else repository
        case ClaimModel(_, path):
            return f"{MODEL_FOLDER}/{path}" if path else MODEL_FOLDER
        case PathModel(path):
            return path


def _with_engine(options: LaunchOptions, engine: EngineSpec) -> LaunchOptions:
    """Set the numbers that the spec gives; the engine has its own default for the rest."""
    given: dict[str, Any] = {
        "context_length": engine.context_length,
        "memory_fraction": engine.memory_fraction,
        "page_size": engine.page_size,
        "max_running": engine.max_running,
        "max_queued": engine.max_queued,
        "chunk_tokens": engine.chunk_tokens,
        # A chunk larger than a step would be cut to it, and the field would not do what it says.
        "max_step_tokens": max(options.max_step_tokens, engine.chunk_tokens or 0, engine.max_running or 0),
    }
    return dataclasses.replace(options, **{name: value for name, value in given.items() if value is not None})


def _with_tracing(options: LaunchOptions, tracing: Tracing | NoTracing) -> LaunchOptions:
    match tracing:
        case NoTracing():
            return options
        case Tracing(endpoint, ratio):
            return dataclasses.replace(options, otlp_endpoint=endpoint, trace_sampling_ratio=ratio)


def _with_extra_args(options: LaunchOptions, extra: tuple[str, ...]) -> LaunchOptions:
    reserved = {flag(name) for name in RENDERED_OPTIONS}
    for index, argument in enumerate(extra):
        if argument.partition("=")[0] in reserved:
            raise InvalidSpec(
                f"spec.engine.extraArgs[{index}]",
                argument,
                "this option is set by the operator or has a field in spec: remove it",
            )
    match read([*to_argv(options), *extra]):
        case Unusable(problem):
            raise InvalidSpec("spec.engine.extraArgs", list(extra), problem)
        case merged:
            return merged
