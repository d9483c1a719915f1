"""`python -m sapwood_tools.bench_core`: the core's speed, one JSON object a line, beside baselines."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sapwood_tools import bench_core_cache, bench_core_gateway, bench_core_scheduler
from sapwood_tools.bench.cpu_use import available_cores
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import running
from sapwood_tools.bench_figures import Figure

BENCHES: tuple[Callable[..., Iterable[Figure]], ...] = (
    bench_core_cache.match_131072_page16,
    bench_core_cache.walk_per_page,
    bench_core_cache.curve_request_4000,
    bench_core_cache.evict_page_1000000,
    bench_core_scheduler.plan_commit_64_running,
    bench_core_scheduler.no_sharing_loss,
    bench_core_gateway.route_decision,
    bench_core_gateway.request_noted,
)

WORST_CASES: tuple[Callable[..., Iterable[Figure]], ...] = (bench_core_cache.evict_leaf_1000000,)
"""Shapes that no workload has, slow to set up; shown on demand."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and print their figures as they come."""
    parser = argparse.ArgumentParser(prog="python -m sapwood_tools.bench_core", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; default: all but the worst cases")
    parser.add_argument("--worst-cases", action="store_true", help="run the worst cases too")
    parser.add_argument(
        "--address",
        help="no_sharing_loss: the OpenAI server, http://HOST:PORT, whose requests it is compared with; "
        "default: an engine of our own, started for it",
    )
    options = parser.parse_args(arguments)
    known = {bench.__name__: bench for bench in (*BENCHES, *WORST_CASES)}
    for name in options.names:
        if name not in known:
            parser.error(f"{name!r} is no benchmark; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(BENCHES)
    if options.worst_cases:
        chosen += [bench for bench in WORST_CASES if bench not in chosen]
    for bench in chosen:
        figures = bench() if bench is not bench_core_scheduler.no_sharing_loss else _no_sharing_loss(options)
        for figure in figures:
            print(figure.line(), flush=True)
    return 0


def _no_sharing_loss(options: argparse.Namespace) -> Iterable[Figure]:
    if options.address:
        seconds = bench_core_scheduler.measure_request_seconds(options.address)
    else:
        seconds = asyncio.run(_request_seconds_of_our_engine())
    return bench_core_scheduler.no_sharing_loss(seconds)


async def _request_seconds_of_our_engine() -> float:
    command = our_command("builtin:smollm2-135m", num_threads=available_cores(), options=())
    with tempfile.TemporaryDirectory() as logs:
        async with running(command, Path(logs)) as server:
            return await asyncio.to_thread(bench_core_scheduler.measure_request_seconds, server.url)


if __name__ == "__main__":
    raise SystemExit(main())
