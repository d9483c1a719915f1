"""A served engine beside a program that is busy on one core: what is left of its throughput, and its longest stall.

``make bench-interference``; options of ``sapwood serve`` may follow. Quiet and disturbed runs alternate. Ends with 1
where less than half of the throughput is left, or where a stream waits more than a second between two tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from figures import Bar, judge, ratios, say, spread
from sapwood_tools.bench.client import Answer, Failure, connect
from sapwood_tools.bench.cpu_use import available_cores
from sapwood_tools.bench.measure import Asks
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import running

TOKENS = {1: 256, 16: 96}
"""Streams -> tokens of each: about two seconds either way."""
_TURNS = 3
"""Of which the last counts: the engine takes up to 4 s to see that a neighbour came or went (`models.crew`)."""
_THROUGHPUT_BAR = Bar(0.5, "at least")
_STALL_BAR = Bar(1.0, "at most")
"""Seconds"""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of streams that ran at once."""

    tokens_per_second: float
    longest_gap_seconds: float


def main(argv: Sequence[str]) -> int:
    """Measure and judge; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/interference.py", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--logs", type=Path, default=Path(".bench/logs"), help="folder (default: %(default)s)")
    given, engine_options = parser.parse_known_args(list(argv))
    command = our_command("builtin:smollm2-135m", num_threads=available_cores(), options=engine_options)

    async def serve_and_measure() -> dict[int, dict[bool, list[Measured]]]:
        async with running(command, given.logs) as server, connect(server.url) as client:
            return await measure(client, given.rounds)

    verdicts = [judge_streams(n, found[False], found[True]) for n, found in asyncio.run(serve_and_measure()).items()]
    return 0 if all(verdicts) else 1


async def measure(client: Asks, num_rounds: int) -> dict[int, dict[bool, list[Measured]]]:
    """Return what was measured, by the number of streams and whether a neighbour was busy, after one round of each."""
    found: dict[int, dict[bool, list[Measured]]] = {n: {False: [], True: []} for n in TOKENS}
    for number in range(num_rounds + 1):
        for num_streams, by_busy in found.items():
            # Whoever went first goes second the next time.
            for busy in (False, True) if number % 2 else (True, False):
                with busy_neighbour() if busy else contextlib.nullcontext():
                    for turn in range(_TURNS):
                        name = f"{number} {num_streams} {busy} {turn}"
                        measured = await stream(client, num_streams, TOKENS[num_streams], name)
                if number > 0:
                    by_busy[busy].append(measured)
    return found


async def stream(client: Asks, num_streams: int, num_tokens: int, name: str) -> Measured:
    """Run streams of ``num_tokens`` each at once; `RuntimeError` where one does not come as asked."""
    prompts = [f"Story {name}.{number}: Once upon a time" for number in range(num_streams)]
    results = await asyncio.gather(*(client.complete(prompt, num_tokens) for prompt in prompts))
    answers = [answer_of(result) for result in results]
    seconds = max(answer.last_at for answer in answers) - min(answer.first_at for answer in answers)
    num_after_first = num_streams * (num_tokens - 1)
    return Measured(num_after_first / seconds, max(answer.longest_gap_seconds for answer in answers))


def answer_of(result: Answer | Failure) -> Answer:
    """Return the answer; `RuntimeError` where there is none."""
    if isinstance(result, Failure):
        raise RuntimeError(result.reason)
    return result


@contextlib.contextmanager
def busy_neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """Keep one core busy, the same all the time, with a process that ends with the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        if hasattr(os, "sched_getaffinity"):
            psutil.Process(process.pid).cpu_affinity([min(os.sched_getaffinity(0))])
        yield process
    finally:
        process.kill()
        process.wait()


def judge_streams(num_streams: int, quiet: Sequence[Measured], busy: Sequence[Measured]) -> bool:
    """Print and judge what ``num_streams`` streams made of it."""
    name = f"{num_streams} stream{'s' if num_streams > 1 else ''}"
    speeds = [[measured.tokens_per_second for measured in side] for side in (quiet, busy)]
    stalls = [max(measured.longest_gap_seconds for measured in side) for side in (quiet, busy)]
    for side, speed in zip(("quiet", "beside a busy program"), speeds, strict=True):
        say(f"{name}, {side}", "tokens/s", spread(speed))
    throughput = judge(f"{name}: throughput left", ratios(speeds[1], speeds[0]), _THROUGHPUT_BAR)
    stall = judge(f"{name}: longest stall, seconds", stalls[1], _STALL_BAR, quiet=round(stalls[0], 4))
    return throughput and stall


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
