"""``sapwood bench``: reads the options, runs the workloads, prints JSON lines and tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from sapwood_tools.bench import measure, report, workloads
from sapwood_tools.bench.client import Client, connect
from sapwood_tools.bench.compare import turns
from sapwood_tools.bench.cpu_use import CpuMeter, available_cores, machine_facts
from sapwood_tools.bench.peers import PEERS, our_command, peer_command
from sapwood_tools.bench.report import Summary
from sapwood_tools.bench.servers import RunningServer, ServerCommand, ServerError, running
from sapwood_tools.bench.workloads import WorkloadError

_EXPECTED = (
    WorkloadError,
    ServerError,
    FileNotFoundError,
    subprocess.CalledProcessError,
    aiohttp.ClientError,
)
"""What ends a benchmark with a sentence instead of a stack."""
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


def main(argv: Sequence[str]) -> int:
    """Run the program; 0 when every answer came as asked, 1 when not, 2 for wrong options."""
    options = read_options(argv)
    try:
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
    return parser


async def _until_terminated(work: Coroutine[Any, Any, list[Summary]]) -> list[Summary]:
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


def _commands(options: BenchOptions) -> list[ServerCommand]:
    scripts = options.data / "peers"
    model = options.model or "builtin:smollm2-135m"
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
