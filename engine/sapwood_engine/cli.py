"""``sapwood serve``: puts the engine together, in two processes.

The only module that sees every layer. What is heavy is imported where it is needed: torch in the worker
alone, everything of HTTP in the other process alone, while a thread starts the worker and reads the
tokenizer.

Exit codes of ``sapwood serve``: 0 after a drain; 1 when the engine could not start or its worker died; 2
for options that cannot be used; 128 + n when a second signal n cut the drain short.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

from sapwood_contract import launch
from sapwood_contract.launch import LaunchOptions
from sapwood_engine.checkpoint.source import open_checkpoint
from sapwood_engine.config import engine_config
from sapwood_engine.errors import ConfigError
from sapwood_engine.service import ipc
from sapwood_engine.service.logs import configure_logging
from sapwood_engine.service.start import Start
from sapwood_engine.service.supervisor import WorkerProcess

API_KEY_VARIABLE = "SAPWOOD_API_KEY"
EXIT_USAGE = 2

_WORKER_CODE = "import sys; from sapwood_engine.cli import worker; sys.exit(worker(sys.argv[1:]))"
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What a server listens on -> what a client on this machine connects to."""


def serve(argv: Sequence[str]) -> int:
    """Serve until told to stop; return the exit code."""
    begin = time.monotonic()
    options = launch.parse(argv)
    try:
        config = engine_config(options)
        api_keys = read_api_keys(options.api_key_file, os.environ)
        api_socket = _listen(config.http.host, config.http.port, option="port")
        admin_socket = _listen(config.http.admin_host, config.http.admin_port, option="admin_port")
    except ConfigError as error:
        print(f"sapwood: {error}", file=sys.stderr)
        return EXIT_USAGE
    configure_logging(options.log_level, program="http")
    channel = ipc.HttpChannel()
    start = _start(options, channel.addresses)
    # What follows imports for the better part of a second, in which the worker is on its way already.
    import uvloop

    from sapwood_engine.api.admin import build_admin_app
    from sapwood_engine.api.app import build_app
    from sapwood_engine.service.client import EngineClient
    from sapwood_engine.service.console import Console
    from sapwood_engine.service.http_server import HttpServer
    from sapwood_engine.service.lifecycle import Addresses, Lifecycle

    console = Console()
    client = EngineClient(
        channel,
        model_name=config.model.served_name or _own_name(config.model.source),
        max_queued=config.scheduler.max_queued,
        drain_seconds=config.http.drain_seconds,
        seed=config.seed,
        on_progress=console.progress,
    )
    lifecycle = Lifecycle(
        client=client,
        channel=channel,
        start=start,
        servers=(
            HttpServer(build_app(client, api_keys=api_keys), api_socket),
            HttpServer(build_admin_app(client), admin_socket),
        ),
        addresses=Addresses(api_url=_url(api_socket), admin_url=_url(admin_socket), needs_key=bool(api_keys)),
        console=console,
        drain_seconds=config.http.drain_seconds,
        begin=begin,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(lifecycle.run())
    finally:
        if start.worker.done() and not start.worker.exception():
            start.worker.result().end(channel)
        channel.close()


def worker(argv: Sequence[str]) -> int:
    """The worker process; ``argv``: the directory of the pipes, then launch options with ``--model`` as
    a path.
    """
    directory, *rest = argv
    options = launch.parse(rest)
    config = engine_config(options)
    configure_logging(options.log_level, program="worker")
    channel = ipc.WorkerChannel(ipc.Addresses(Path(directory)))

    from sapwood_engine.service.worker import BuiltExecutor, Report, run_worker

    def build(report: Report) -> BuiltExecutor:
        # Imports torch: said first, because it is the longest silence of a start.
        report("load", "importing torch")
        from sapwood_engine.runtime.start import build_executor

        started = build_executor(
            config, open_checkpoint(options.model), kernel_cache=_kernel_cache(os.environ), progress=report
        )
        return BuiltExecutor(started.executor, started.facts, started.seconds)

    return run_worker(config, channel, build)


def _kernel_cache(environment: Mapping[str, str]) -> Path:
    """Where compiled kernels are kept from one start to the next."""
    home = environment.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sapwood" / "kernels"


def read_api_keys(path: str | None, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the keys of the file at ``path``, one a line, and the one in the environment; `ConfigError`
    if unusable.
    """
    keys = {environment.get(API_KEY_VARIABLE, "").strip()}
    if path is not None:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("--api-key-file", path, f"it cannot be read ({error})") from error
        keys |= {line.strip() for line in lines}
        if not any(line.strip() for line in lines):
            raise ConfigError("--api-key-file", path, "it holds no key; leave the option out to ask for none")
    return frozenset(keys - {""})


def _start(options: LaunchOptions, addresses: ipc.Addresses) -> Start:
    """Find the checkpoint, start the worker on it and read its tokenizer, on a thread."""
    start = Start()
    # A daemon: a download that is no longer wanted does not keep the program from ending.
    Thread(target=_prepare, args=(start, options, addresses), name="start", daemon=True).start()
    return start


def _prepare(start: Start, options: LaunchOptions, addresses: ipc.Addresses) -> None:
    try:
        checkpoint = open_checkpoint(options.model)
        start.checkpoint.set_result(checkpoint)
        path = checkpoint.weights[0] if checkpoint.kind == "gguf" else checkpoint.folder
        worker_options = launch.to_argv(replace(options, model=str(path)))
        command = [sys.executable, "-P", "-c", _WORKER_CODE, str(addresses.directory), *worker_options]
        start.worker.set_result(WorkerProcess(command))
        from sapwood_engine.service.tokenizer_files import load_tokenizer

        start.tokenizer.set_result(load_tokenizer(checkpoint))
    except BaseException as error:
        for future in (start.checkpoint, start.worker, start.tokenizer):
            if not future.done():
                future.set_exception(error)


def _own_name(model: str) -> str:
    """The model's name before it is found: what `open_checkpoint` will call it."""
    path = Path(model).expanduser()
    if path.exists():
        return path.stem if path.is_file() else path.resolve().name
    return model.removeprefix("builtin:").partition("@")[0]


def _listen(host: str, port: int, *, option: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        fix = (
            f"{host} port {port} cannot be listened on ({error.strerror}); take another, or 0 for a free one"
        )
        raise ConfigError(launch.flag(option), port, fix) from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
