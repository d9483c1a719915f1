"""The engine's launch options: one typed value, and argv for it and back.

The operator renders a pod's argv with `to_argv`, the engine reads it with `parse`, and
``parse(to_argv(options)) == options`` for every value (but the text ``--``, which argv cannot carry). Anything unknown
or malformed is refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args, get_origin

SchedulerPolicy = Literal["sapwood", "fcfs", "lpm", "dfs-weight", "lof", "random", "routing-key", "priority"]
EvictionPolicyName = Literal["lru", "lfu", "slru", "fifo", "mru", "filo", "priority", "ttl", "cost"]
AttentionBackendName = Literal["auto", "cpu", "reference"]
DtypeName = Literal["auto", "bfloat16", "float16", "float32"]
QuantizationName = Literal["none", "int8"]
SamplingDefaultsName = Literal["checkpoint", "openai"]
CpuStepName = Literal["auto", "on", "off"]
ConsoleName = Literal["auto", "on", "off"]
MetricsCompatName = Literal["none", "vllm"]
ThreadBindingName = Literal["auto", "off"]
Switch = Literal["on", "off"]


def _option(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options of ``sapwood serve``; ``None`` means "decide at start", as each help text says."""

    model: str = _option(
        "builtin:smollm2-135m",
        "builtin:NAME, a folder with safetensors, a .gguf file, or a Hugging Face repository (owner/name[@revision])",
    )
    served_model_name: str | None = _option(None, "name in the OpenAI API; default: the model's own name")
    host: str = _option("127.0.0.1", "address of the OpenAI API")
    port: int = _option(8000, "port of the OpenAI API; 0 takes a free one")
    admin_host: str = _option("127.0.0.1", "address of the admin API")
    admin_port: int | None = _option(
        None, "port of the admin API; 0 takes a free one; default: one more than --port, or 0 with it"
    )
    api_key_file: str | None = _option(
        None, "file with API keys, one a line; SAPWOOD_API_KEY in the environment adds one; none: no authentication"
    )
    gateway_credential_file: str | None = _option(
        None,
        "file with the credential by which the gateway is known; nobody calls either API without it or a key, and of"
        " the admin API it opens only what routing needs; none: the gateway is a caller like others",
    )
    admin_key_file: str | None = _option(
        None,
        "file with keys of the admin API, one a line; none: whoever reaches it may use it, and with"
        " --gateway-credential-file nobody",
    )
    dtype: DtypeName = _option("auto", "arithmetic of the model; auto: the fastest that this device computes natively")
    quantization: QuantizationName = _option(
        "none",
        "int8: keep the matrices of the compiled step in 8 bits, quantised at load: half the memory, a small loss",
    )
    attention_backend: AttentionBackendName = _option(
        "auto", "attention of the torch operators; naming one means --cpu-step=off; auto: the fastest that runs here"
    )
    cpu_step: CpuStepName = _option(
        "auto", "compute a step as one compiled function; auto: where model and processor allow; off: torch operators"
    )
    threads: int | None = _option(None, "compute threads; default: one per physical core that this process may use")
    thread_binding: ThreadBindingName = _option(
        "auto", "auto: where there is a core for every compute thread, bind each while nobody else wants its core"
    )
    context_length: int | None = _option(None, "most tokens of one request; default: the model's own, or what fits")
    sampling_defaults: SamplingDefaultsName = _option(
        "checkpoint",
        "sampling where a request does not say: as the checkpoint recommends, or as OpenAI (temperature 1, top_p 1)",
    )
    page_size: int = _option(16, "tokens a KV page")
    kv_tokens: int | None = _option(None, "KV cache in tokens; default: from --memory-fraction")
    memory_fraction: float = _option(0.5, "share of the memory still free after loading that the KV cache may take")
    prefix_cache: Switch = _option("on", "reuse computed prefixes between requests")
    partial_pages: Switch = _option("on", "reuse a prefix that ends inside a page, by copying its slots")
    eviction_policy: EvictionPolicyName = _option("lru", "which cached pages go first when memory is short")
    kv_events_port: int | None = _option(
        None,
        "publish which blocks are cached on this port of the admin address (ZeroMQ, vLLM's format), and answer for"
        " missed events on the next; 0 takes free ones; default: publish nothing",
    )
    kv_events_token_ids: Switch = _option("off", "on: events carry the token ids of blocks, which are prompts' content")
    miss_ratio_curve: Switch = _option(
        "on", "measure what the hit rate would be with more or less KV memory, and export it"
    )
    mrc_sample_rate: float = _option(0.05, "share of the pages, by their hash, that the miss-ratio curve follows")
    scheduler_policy: SchedulerPolicy = _option("sapwood", "which waiting request is admitted first")
    overlap: Switch = _option("on", "plan the next step while the current one computes")
    max_running: int = _option(64, "most requests computed at once")
    max_queued: int = _option(1024, "most requests waiting; beyond it 429 with Retry-After")
    max_step_tokens: int = _option(2048, "most tokens in one step, over all requests")
    chunk_tokens: int = _option(512, "most prompt tokens of one request in one step")
    itl_target_seconds: float = _option(
        0.08, "time between a stream's tokens that prefills beside it keep to, as far as measured step costs tell"
    )
    ttft_target_seconds: float = _option(2.0, "time to first token that the sapwood policy's ageing aims at")
    step_timeout_seconds: float = _option(
        300.0, "a worker that has work and ends no step for so long hangs: it is killed, the program ends"
    )
    warm_wait_seconds: float = _option(
        0.0,
        "before it is ready, how long a loaded engine waits to be told on the admin API which prefixes to compute first"
        " (/admin/warm); an autoscaler tells; 0: it does not wait",
    )
    drain_seconds: float = _option(30.0, "after SIGTERM, how long running requests may go on")
    otlp_endpoint: str | None = _option(
        None, "address of an OTLP receiver over HTTP, such as http://127.0.0.1:4318, where traces go; default: none"
    )
    trace_sampling_ratio: float = _option(
        0.01, "share of the requests without a trace of their own that are traced; a caller's own decision comes first"
    )
    metrics_compat: MetricsCompatName = _option(
        "none", "vllm: also export the series by which dashboards and endpoint pickers made for vLLM know an engine"
    )
    console: ConsoleName = _option(
        "auto", "serve the console at /ui of the OpenAI API's port; auto: where that listens on this machine alone"
    )
    seed: int | None = _option(None, "seed of the seeds drawn for requests that bring none; default: from the system")
    log_level: Literal["debug", "info", "warning", "error"] = _option("info", "least severe log line written")

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            check_choice(f.name, getattr(self, f.name), HINTS[f.name])


def flag(name: str) -> str:
    """``page_size`` -> ``--page-size``."""
    return "--" + name.replace("_", "-")


def check_choice(name: str, value: object, hint: Any) -> None:
    """Refuse a value outside a closed set, naming flag, value and the set."""
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise ValueError(f"{flag(name)}: {value!r} is not one of {', '.join(map(str, get_args(hint)))}")


def _bare(hint: Any) -> Any:
    """``int | None`` -> ``int``."""
    args = [a for a in get_args(hint) if a is not type(None)]
    return hint if get_origin(hint) is Literal or not args else args[0]


def to_argv(options: LaunchOptions) -> list[str]:
    """Return the shortest argv that `parse` reads back as ``options``: defaults are left out."""
    argv: list[str] = []
    for f in dataclasses.fields(options):
        value = getattr(options, f.name)
        if value != f.default:
            argv.append(f"{flag(f.name)}={value}")
    return argv


@dataclass(frozen=True, slots=True)
class Unusable:
    """Argv that `parse` refuses."""

    problem: str


class _Refused(Exception):
    """What `_ReadingParser` found, on its way to `read`."""


class _ReadingParser(argparse.ArgumentParser):
    """Raises where its base prints and exits."""

    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def parse(argv: Sequence[str], *, prog: str = "sapwood serve") -> LaunchOptions:
    """Read ``argv``; on anything unknown or malformed print what is wrong and exit with code 2."""
    description = "Serve a model over the OpenAI API."
    return _parse(argparse.ArgumentParser(prog=prog, allow_abbrev=False, description=description), argv)


def read(argv: Sequence[str]) -> LaunchOptions | Unusable:
    """Return what `parse` would, as a value also where that would print and exit: who renders argv can ask first."""
    try:
        return _parse(_ReadingParser(allow_abbrev=False, add_help=False), argv)
    except _Refused as refused:
        return Unusable(str(refused))


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> LaunchOptions:
    for f in dataclasses.fields(LaunchOptions):
        hint = _bare(HINTS[f.name])
        closed = get_origin(hint) is Literal
        parser.add_argument(
            flag(f.name),
            type=str if closed else hint,
            choices=get_args(hint) if closed else None,
            default=f.default,
            metavar=None if closed else f.name.upper(),
            help=f"{f.metadata['help']}" + ("" if f.default is None else f" (default: {f.default})"),
        )
    values = vars(parser.parse_args(list(argv)))
    for name, value in values.items():
        if value == []:  # what argparse makes of a `--` before Python 3.13
            parser.error(f"argument {flag(name)}: '--' is no value")
    return LaunchOptions(**values)


HINTS: dict[str, Any] = typing.get_type_hints(LaunchOptions)
