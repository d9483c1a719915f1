"""``sapwood serve``: puts the engine together, in two processes.

The only module that sees every layer. What is heavy is imported where it is needed: torch in the worker
alone, everything of HTTP in the other process alone, while a thread starts the worker and reads the
tokenizer.

Exit codes of ``sapwood serve``: 0 after a drain, or when a signal ended the start; 1 when the engine could not
start or its worker died; 2 for options that cannot be used; 128 + n when a second signal n cut the drain short.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from sapwood_contract import launch
from sapwood_contract.launch import ConsoleName, LaunchOptions
from sapwood_engine.config import EngineConfig, HttpSettings, engine_config
from sapwood_engine.errors import ConfigError, WorkerDied
from sapwood_engine.service.exit_codes import EXIT_DRAINED, EXIT_USAGE
from sapwood_engine.service.pipe_folder import new_pipe_folder
from sapwood_engine.service.signals import StopSignals
from sapwood_engine.service.worker_process import WorkerProcess

if TYPE_CHECKING:
    from sapwood_engine.checkpoint.spec import ModelSpec
    from sapwood_engine.service.call_trace import CallTraces
    from sapwood_engine.service.ipc import HttpChannel
    from sapwood_engine.service.start import Start
    from sapwood_tracing.setup import Tracing

API_KEY_VARIABLE = "SAPWOOD_API_KEY"

_log = logging.getLogger(__name__)

_PHASES = {"weights": "load", "kernels": "compile", "warm": "warm"}
"""What the runtime calls a phase of the start -> what `sapwood_contract.metrics` does."""
_LEAST_KV_BYTES = {"float32": 4}
"""A key's or a value's bytes where they are known before torch is; else 16 bits are the least."""
_BACKLOG = 2048
_BUILTIN = "builtin:"

_WORKER_CODE = "import sys; from sapwood_engine.cli import worker; sys.exit(worker(sys.argv[1:]))"
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What a server listens on -> what a client on this machine connects to."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Two listening sockets."""

    api: socket.socket
    admin: socket.socket


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerKeys:
    """What callers must show, of each kind any one; a kind that is empty is asked of nobody."""

    api: frozenset[str] = frozenset()
    admin: frozenset[str] = frozenset()
    gateway: frozenset[str] = frozenset()


def serve(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the exit code."""
    begin = time.monotonic()
    signals = StopSignals()
    options = launch.parse(argv)
    try:
        config = engine_config(options)
        keys = CallerKeys(
            api=read_api_keys(options.api_key_file, os.environ),
            admin=read_keys("--admin-key-file", options.admin_key_file),
            gateway=read_keys("--gateway-credential-file", options.gateway_credential_file),
        )
        ports = listen(config.http)
        if signals.came:
            return EXIT_DRAINED
        directory = new_pipe_folder()
    except ConfigError as error:
        print(f"sapwood: {error}", file=sys.stderr)
        return EXIT_USAGE
    # What is on this machine the worker finds by itself: it is on its way before anything else is imported.
    worker = _spawn(options, directory) if _is_local(options.model) else None

    from sapwood_engine.service.ipc import HttpChannel
    from sapwood_engine.service.start import Start
    from sapwood_logs.structured import configure_logging

    configure_logging(options.log_level, program="http")
    if not keys.api and not keys.gateway and not _is_loopback(ports.api):
        _log.warning("no API key is asked for: every machine that reaches this address may use the OpenAI API")
    channel = HttpChannel(directory)
    start = Start()
    # A daemon: a download that is no longer wanted does not keep the program from ending.
    Thread(target=_prepare, args=(start, worker, config, options, directory), name="start", daemon=True).start()
    return run_http_process(config, channel, start, ports=ports, keys=keys, signals=signals, begin=begin)


def run_http_process(
    config: EngineConfig,
    channel: HttpChannel,
    start: Start,
    *,
    ports: Ports,
    keys: CallerKeys,
    signals: StopSignals,
    begin: float,
) -> int:
    """Serve what ``start`` brings up until told to stop; return the exit code.

    ``begin``: the monotonic time at which the program began.
    """
    import asyncio

    import uvloop

    from sapwood_engine.api.admin import build_admin_app
    from sapwood_engine.api.app import build_app
    from sapwood_engine.service.client import EngineClient
    from sapwood_engine.service.console import Console
    from sapwood_engine.service.http_server import HttpServer
    from sapwood_engine.service.lifecycle import Addresses, Lifecycle
    from sapwood_engine.service.messages import Shutdown

    console = Console()
    tracing = _tracing(config, ports)
    client = EngineClient(
        channel,
        model_name=config.model.served_name or _own_name(config.model.source),
        max_queued=config.scheduler.max_queued,
        drain_seconds=config.http.drain_seconds,
        seed=config.seed,
        warm_wait_seconds=config.cache.warm_wait_seconds,
        on_progress=console.progress,
        metrics_compat=config.observability.metrics_compat,
    )
    traces = _call_traces(tracing, client.model_name)
    has_console = is_console_on(config.observability.console, ports.api)
    lifecycle = Lifecycle(
        client=client,
        channel=channel,
        start=start,
        servers=(
            HttpServer(
                build_app(
                    client,
                    api_keys=keys.api,
                    admin_keys=keys.admin,
                    credentials=keys.gateway,
                    traces=traces,
                    has_console=has_console,
                ),
                ports.api,
            ),
            HttpServer(build_admin_app(client, admin_keys=keys.admin, credentials=keys.gateway), ports.admin),
        ),
        addresses=Addresses(
            api_url=_url(ports.api), admin_url=_url(ports.admin), needs_key=bool(keys.api), has_console=has_console
        ),
        console=console,
        signals=signals,
        drain_seconds=config.http.drain_seconds,
        step_timeout_seconds=config.scheduler.step_timeout_seconds,
        begin=begin,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(lifecycle.run())
    finally:
        if start.worker.done() and not start.worker.exception():
            if client.capacity is None:
                start.worker.result().kill()  # it loads, and does not listen yet
            with contextlib.suppress(WorkerDied):
                channel.send(Shutdown())
            start.worker.result().end()
        channel.close()
        if tracing is not None:
            tracing.close()


def _tracing(config: EngineConfig, ports: Ports) -> Tracing | None:
    """Return what sends traces to the receiver; None where there is none, and opentelemetry is not even loaded."""
    settings = config.observability
    if settings.otlp_endpoint is None:
        return None
    from sapwood_tracing.setup import Tracing, TracingSettings

    return Tracing(
        TracingSettings(
            endpoint=settings.otlp_endpoint,
            sampling_ratio=settings.trace_sampling_ratio,
            service_name="sapwood-engine",
            service_version=version("sapwood"),
            instance_id=f"{socket.gethostname()}:{ports.api.getsockname()[1]}",
        )
    )


def _call_traces(tracing: Tracing | None, model: str) -> CallTraces | None:
    if tracing is None:
        return None
    from sapwood_engine.service.call_trace import CallTraces

    return CallTraces(tracing, model=model)


def worker(argv: Sequence[str]) -> int:
    """The worker process; ``argv``: the directory of the pipes, then launch options of a model on this
    machine.
    """
    # Signals are the parent's to act on, even those sent to the whole group: it drains, then says when to end. Its
    # own end closes this process's standard input.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    directory, *rest = argv
    options = launch.parse(rest)
    config = engine_config(options)

    from sapwood_engine.checkpoint.source import open_checkpoint
    from sapwood_engine.service.ipc import Addresses, WorkerChannel
    from sapwood_engine.service.worker import BuiltExecutor, Report, run_worker
    from sapwood_logs.structured import configure_logging

    configure_logging(options.log_level, program="worker", holds_requests=False)

    def build(report: Report) -> BuiltExecutor:
        marks = [time.monotonic()]
        checkpoint = open_checkpoint(options.model)
        marks.append(time.monotonic())
        # Said now, because it is the longest silence of a start.
        report("load", "importing torch")
        from sapwood_engine.runtime.threads import NEEDED_ENVIRONMENT, SPIN_ENVIRONMENT

        os.environ.update(NEEDED_ENVIRONMENT)

        for name, value in SPIN_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from sapwood_engine.runtime.start import build_executor

        marks.append(time.monotonic())
        started = build_executor(
            config,
            checkpoint,
            kernel_cache=_kernel_cache(os.environ),
            progress=lambda phase, detail, done: report(_PHASES[phase], detail, done),
        )
        seconds = {_PHASES[phase]: took for phase, took in started.seconds.items()}
        seconds |= {"resolve": marks[1] - marks[0], "load": marks[2] - marks[1] + seconds["load"]}
        return BuiltExecutor(started.executor, started.facts, seconds, checkpoint.name)

    return run_worker(config, WorkerChannel(Addresses(Path(directory))), build)


def _check_it_can_fit(config: EngineConfig, spec: ModelSpec) -> None:
    """Raise `ConfigError` for a context or a KV cache that cannot be, whatever the weights will leave free."""
    from sapwood_engine.runtime.memory_plan import plan_memory, read_free_bytes

    plan_memory(
        spec,
        config.cache,
        context_length=config.model.context_length,
        element_bytes=_LEAST_KV_BYTES.get(config.model.dtype, 2),
        free_bytes=read_free_bytes(),
    )


def _kernel_cache(environment: Mapping[str, str]) -> Path:
    """Where compiled kernels are kept from one start to the next, if it can be written."""
    home = environment.get("XDG_CACHE_HOME")
    try:
        caches = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an entry in the user database, as under `docker run --user 12345`
        # No folder can be made below it, so `use_cache` takes a temporary one of its own.
        caches = Path(os.devnull)
    return caches / "sapwood" / "kernels"


def read_api_keys(path: str | None, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the keys of the file at ``path``, one a line, and the one in the environment; `ConfigError`
    if unusable.
    """
    own = environment.get(API_KEY_VARIABLE, "").strip()
    if not _can_be_sent(own):
        raise ConfigError(API_KEY_VARIABLE, "…", "the key is not printable ASCII: change it")
    return (read_keys("--api-key-file", path) | {own}) - {""}


def read_keys(option: str, path: str | None) -> frozenset[str]:
    """Return the keys of the file that ``option`` names, one a line; none without a file. `ConfigError` if unusable."""
    if path is None:
        return frozenset()
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        # Of bytes that are no text the error would quote one: the file is known by its name.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(option, path, f"it cannot be read ({reason})") from error
    for number, line in enumerate(lines, start=1):
        if not _can_be_sent(line):
            raise ConfigError(option, path, f"the key in line {number} is not printable ASCII: change it")
    if not any(lines):
        raise ConfigError(option, path, "it holds no key; leave the option out to ask for none")
    return frozenset(lines) - {""}


def _can_be_sent(key: str) -> bool:
    """Clients disagree on how other characters go into a header, so such a key would match for some or for none."""
    return key.isascii() and key.isprintable()


def _spawn(options: LaunchOptions, directory: Path) -> WorkerProcess:
    return WorkerProcess([sys.executable, "-P", "-c", _WORKER_CODE, str(directory), *launch.to_argv(options)])


def _prepare(
    start: Start, worker: WorkerProcess | None, config: EngineConfig, options: LaunchOptions, directory: Path
) -> None:
    """Find or fetch the checkpoint, see that it can fit, start the worker on it if it does not run yet, and read the
    tokenizer.
    """
    from sapwood_engine.checkpoint.source import open_checkpoint, read_sampling_defaults, read_spec

    if worker is not None:
        start.worker.set_result(worker)
    try:
        checkpoint = open_checkpoint(options.model)
        start.checkpoint.set_result(checkpoint)
        _check_it_can_fit(config, read_spec(checkpoint))
        if worker is None:
            start.worker.set_result(_spawn(replace(options, model=str(checkpoint.folder)), directory))
        start.sampling.set_result(read_sampling_defaults(checkpoint, config.model.sampling_defaults))
        from sapwood_engine.service.tokenizer_files import load_tokenizer

        start.tokenizer.set_result(load_tokenizer(checkpoint))
    except BaseException as error:
        for future in (start.checkpoint, start.worker, start.sampling, start.tokenizer):
            if not future.done():
                future.set_exception(error)


def _is_local(model: str) -> bool:
    return model.startswith(_BUILTIN) or Path(model).expanduser().exists()


def _own_name(model: str) -> str:
    """The model's name before it is found: what `open_checkpoint` will call it."""
    path = Path(model).expanduser()
    if path.exists():
        return path.stem if path.is_file() else path.resolve().name
    return model.removeprefix(_BUILTIN).partition("@")[0]


def listen(settings: HttpSettings) -> Ports:
    """Bind both ports, before anything else takes its time; `ConfigError` where one cannot be had."""
    return Ports(
        api=_listen(settings.host, settings.port, option="port"),
        admin=_listen(settings.admin_host, settings.admin_port, option="admin_port"),
    )


def _listen(host: str, port: int, *, option: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        fix = f"{host} port {port} cannot be listened on ({reason}); take another, or 0 for a free one"
        raise ConfigError(launch.flag(option), port, fix) from error


def is_console_on(name: ConsoleName, listening: socket.socket) -> bool:
    """Whether ``--console`` wants the page on a port: ``auto`` where this machine alone reaches it."""
    return name == "on" or (name == "auto" and _is_loopback(listening))


def _is_loopback(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
