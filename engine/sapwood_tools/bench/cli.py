"""``sapwood bench``: reads the options, runs the workloads, prints JSON lines and tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from sapwood_tools.bench import fit, measure, report, workloads
from sapwood_tools.bench.client import Client, connect
from sapwood_tools.bench.compare import turns
from sapwood_tools.bench.cpu_use import CpuMeter, available_cores, machine_facts
from sapwood_tools.bench.fit_probes import ProbeError
from sapwood_tools.bench.peers import PEERS, our_command, peer_command
from sapwood_tools.bench.report import Summary
from sapwood_tools.bench.servers import RunningServer, ServerCommand, ServerError, free_port, running
from sapwood_tools.bench.workloads import WorkloadError

_EXPECTED = (
    WorkloadError,
    ServerError,
    FileNotFoundError,
    subprocess.CalledProcessError,
    fit.FitError,
    ProbeError,
    aiohttp.ClientError,
)
"""What ends a benchmark with a sentence instead of a stack."""
T = TypeVar("T")
_OUR_MODEL = "builtin:smollm2-135m"
_ALONE, _WITH_PEERS = 1, 3
"""Repetitions where nothing is said: a ratio needs a spread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured, and where things are."""

    url: str
    model: str | None
    api_key: str | None
    launch: bool
    peers: tuple[str, ...]
    engine_options: tuple[str, ...]
    names: tuple[str, ...]
    """Workloads, in the order in which they run."""
    num_repetitions: int
    num_threads: int
    data: Path
    folder: Path
    fit: fit.FitOptions | None
    """None: the workloads are run."""


def main(argv: Sequence[str]) -> int:
    """Run the program; 0 when every answer came as asked, 1 when not, 2 for wrong options."""
    options = read_options(argv)
    try:
        if options.fit is not None:
            asyncio.run(_until_terminated(_fit(options, options.fit)))
            return 0
        summaries = asyncio.run(_until_terminated(_bench(options)))
    except _EXPECTED as error:
        print(f"sapwood bench: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    print(report.table(summaries), file=sys.stderr)
    for peer in options.peers:
        found = report.ratios(summaries, "sapwood", peer)
        for ratio in found:
            _emit({"ratio": dataclasses.asdict(ratio)})
        print("\n" + report.ratio_table(found), file=sys.stderr)
    return 1 if any(run.num_failures for run in summaries) else 0


def read_options(argv: Sequence[str]) -> BenchOptions:
    """Read the command line; on anything wrong print it and exit with code 2."""
    parser = _parser()
    given = parser.parse_args(list(argv))
    names = tuple(given.workloads.split(","))
    if unknown := [name for name in names if name not in workloads.CONCURRENCY]:
        parser.error(f"--workloads: {unknown[0]!r} is not one of {', '.join(workloads.CONCURRENCY)}")
    num_repetitions = given.repetitions
    if num_repetitions is None:
        num_repetitions = _WITH_PEERS if given.peer else _ALONE
    if not 1 <= num_repetitions <= workloads.NUM_VARIANTS:
        parser.error(f"--repetitions: {num_repetitions} is not between 1 and {workloads.NUM_VARIANTS}")
    return BenchOptions(
        url=given.url,
        model=given.model,
        api_key=given.api_key,
        launch=given.launch or bool(given.peer),
        peers=tuple(dict.fromkeys(given.peer)),
        engine_options=tuple(shlex.split(given.engine_options)),
        names=names,
        num_repetitions=num_repetitions,
        num_threads=given.threads or available_cores(),
        data=given.data,
        folder=given.folder,
        fit=_fit_options(parser, given) if given.fit else None,
    )


def _fit_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> fit.FitOptions:
    if given.peer:
        parser.error("--fit: peers have no latency model; leave --peer out")
    if given.admin_url is None and not given.launch:
        parser.error("--fit: --admin-url is needed beside --url, for the engine's limits")
    if given.fit_longest < fit.LEAST_LONGEST_TOKENS:
        parser.error(f"--fit-longest: {given.fit_longest} is less than {fit.LEAST_LONGEST_TOKENS}")
    return fit.FitOptions(
        file=given.fit_file,
        seconds=given.fit_seconds,
        longest_tokens=given.fit_longest,
        admin_url=given.admin_url,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sapwood bench",
        allow_abbrev=False,
        description="Measure an OpenAI address with six workloads: JSON lines on stdout, tables on stderr.",
        epilog="peers: " + "; ".join(f"{peer.name}: {peer.summary}" for peer in PEERS.values()),
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="a server that runs already (default: %(default)s)")
    add("--model", help="its model; default: the first that it lists, or the builtin model for --launch")
    add("--api-key", help="sent as a bearer token")
    add("--launch", action="store_true", help="start our own engine instead of asking --url")
    add("--peer", action="append", choices=sorted(PEERS), default=[], help="compare with it, and --launch")
    add("--engine-options", default="", help="options of 'sapwood serve' for --launch, as one text")
    names = ",".join(workloads.CONCURRENCY)
    add("--workloads", default=names, help="comma-separated (default: %(default)s)")
    repetitions = f"1 to {workloads.NUM_VARIANTS}; default: {_WITH_PEERS} with a peer, {_ALONE} without"
    add("--repetitions", type=int, help=repetitions)
    add("--threads", type=int, help="compute threads of every server started; default: one a physical core")
    add("--data", type=Path, default=Path("bench"), help="has workloads/ and peers/ (default: %(default)s)")
    add("--folder", type=Path, default=Path(".bench"), help="for peers and logs (default: %(default)s)")
    add("--fit", action="store_true", help="instead: fit the latency model that 'sapwood replay' takes")
    add("--fit-file", type=Path, default=Path("latency.json"), help="where it goes (default: %(default)s)")
    add("--fit-seconds", type=float, default=90.0, help="how long to ask, one round at least (default: %(default)s)")
    add("--fit-longest", type=int, default=1536, metavar="TOKENS", help="longest prompt asked (default: %(default)s)")
    add("--admin-url", help="with --fit --url: admin API of that engine; say its options with --engine-options")
    return parser


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``; SIGTERM cancels it, so that the servers it started end with it."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def _bench(options: BenchOptions) -> list[Summary]:
    _emit({"machine": machine_facts()})
    if not options.launch:
        async with connect(options.url, model=options.model, api_key=options.api_key) as client:
            await measure.run(workloads.load_warm_up(options.data / "workloads"), client)
            return await _measure_all(options, {options.url: client}, {})
    async with contextlib.AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        servers: dict[str, RunningServer] = {}
        for command in _commands(options):
            print(f"Starting {command.name}", file=sys.stderr)
            server = await stack.enter_async_context(running(command, options.folder / "logs"))
            client = await stack.enter_async_context(connect(server.url))
            await measure.run(workloads.load_warm_up(options.data / "workloads"), client)
            server.pause()
            servers[server.name], clients[server.name] = server, client
        return await _measure_all(options, clients, servers)


async def _fit(options: BenchOptions, fitting: fit.FitOptions) -> None:
    _emit({"machine": machine_facts()})
    async with contextlib.AsyncExitStack() as stack:
        url, admin_url = options.url, fitting.admin_url
        if admin_url is None:
            admin_port = free_port()
            print("Starting sapwood", file=sys.stderr)
            command = our_command(
                options.model or _OUR_MODEL,
                num_threads=options.num_threads,
                options=[*options.engine_options, f"--admin-port={admin_port}"],
            )
            server = await stack.enter_async_context(running(command, options.folder / "logs"))
            url, admin_url = server.url, f"http://127.0.0.1:{admin_port}"
        model = None if options.launch else options.model
        client = await stack.enter_async_context(connect(url, model=model, api_key=options.api_key))
        found = await fit.fit_engine(
            client,
            fitting,
            admin_url=admin_url.rstrip("/"),
            model=client.model,
            engine_options=options.engine_options,
            seed=random.getrandbits(32),
            say=lambda text: print(text, file=sys.stderr),
        )
        _emit({"fit": {"steps": dataclasses.asdict(found.steps), "requests": dataclasses.asdict(found.requests)}})


def _commands(options: BenchOptions) -> list[ServerCommand]:
    scripts = options.data / "peers"
    model = options.model or _OUR_MODEL
    ours = our_command(model, num_threads=options.num_threads, options=options.engine_options)
    theirs = [
        peer_command(PEERS[name], scripts=scripts, folder=options.folder, num_threads=options.num_threads)
        for name in options.peers
    ]
    return [ours, *theirs]


async def _measure_all(
    options: BenchOptions, clients: Mapping[str, Client], servers: Mapping[str, RunningServer]
) -> list[Summary]:
    """Run every turn; a server that was started here is paused but in its own turns."""
    summaries: list[Summary] = []
    for turn in turns(tuple(clients), options.names, options.num_repetitions):
        workload = workloads.load(options.data / "workloads", turn.workload, turn.variant)
        server = servers.get(turn.server)
        if server is None:
            outcome, cpu = await measure.run(workload, clients[turn.server]), None
        else:
            server.resume()
            meter = CpuMeter(server.processes())
            outcome = await measure.run(workload, clients[turn.server])
            server.check()
            cpu = meter.read()
            server.pause()
        summary = report.summarise(turn.server, outcome, cpu)
        _emit(summary.to_json())
        summaries.append(summary)
    return summaries


def _emit(fields: object) -> None:
    print(json.dumps(fields), flush=True)
