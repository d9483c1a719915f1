"""Whether a fitted latency model tells what a real engine does with a trace that the fit has not seen.

``make bench-fit``; options of ``sapwood serve`` may follow. Starts the engine, and for each slice of a trace fits a
model (`sapwood bench --fit`) and plays the slice to the engine and to a virtual engine of the model, at a
pace that keeps the engine busy for a share of the time. Each slice has a fit of its own because this is about the model
and not about the machine, whose speed changes within minutes. Ends with 1 where the median time to first token of all
slices together, or its 90th percentile, is told more than a tenth wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from figures import Bar, judge, say, spread
from sapwood_tools.bench import fit
from sapwood_tools.bench.client import Answer, Client, connect
from sapwood_tools.bench.cpu_use import CpuMeter, available_cores
from sapwood_tools.bench.fit_probes import times
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import free_port, running
from sapwood_tools.replay.latency import LatencyModel
from sapwood_tools.replay.one_engine import answers, paced
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest, read_trace

_HERE = Path(__file__).parent
_MODEL = "builtin:smollm2-135m"
_BAR = Bar(0.1, "at most")
_STEADY = ("--threads=1", "--thread-binding=off", "--kv-tokens=16384")
"""One thread computes alike whatever the other core does. So little room that some of what was cached is gone again."""
_TOKEN_IDS = range(300, 4000)


@dataclass(frozen=True, slots=True)
class Played:
    """One slice on the engine and on the virtual one; seconds to the first token, by request."""

    real: list[float]
    told: list[float]
    found_tokens: int
    """In the cache, of the model."""
    told_found_tokens: int
    foreign_cores: float
    """Of other programs, meanwhile."""


def main(argv: Sequence[str]) -> int:
    """Fit, play and judge; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/fit_check.py", allow_abbrev=False)
    add = parser.add_argument
    add("--trace", type=Path, default=_HERE / "workloads" / "conversation_slice.jsonl", help="default: %(default)s")
    add("--shrink", type=int, default=32, help="lengths of the trace are divided by (default: %(default)s)")
    add("--requests", type=int, default=80, help="in a slice (default: %(default)s)")
    add("--slices", type=int, nargs="+", default=[0, 1, 2], help="numbers of slices (default: 0 1 2)")
    add("--busy", type=float, default=0.7, help="share of the time that the engine computes (default: %(default)s)")
    add("--fit-seconds", type=float, default=60.0, help="of each fit, one round at least (default: %(default)s)")
    add("--fit-longest", type=int, default=1536, help="tokens of a fit's longest prompt (default: %(default)s)")
    given, engine_options = parser.parse_known_args(list(argv))
    # Like an interrupt, so that the engine ends too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    played = asyncio.run(_run(given, [*_STEADY, *engine_options]))
    return 0 if _judge(played) else 1


async def _run(given: argparse.Namespace, engine_options: list[str]) -> list[Played]:
    requests = read_trace(given.trace)
    admin_port = free_port()
    command = our_command(
        _MODEL, num_threads=available_cores(), options=[*engine_options, f"--admin-port={admin_port}"]
    )
    folder = Path(".bench")
    async with running(command, folder / "logs") as server, connect(server.url) as client:
        results = []
        for number in given.slices:
            part = requests[number * given.requests : (number + 1) * given.requests]
            model = await _fit(client, f"http://127.0.0.1:{admin_port}", engine_options, given, folder)
            meter = CpuMeter(server.processes())
            pace = paced(model, part, busy=given.busy, shrink=given.shrink)
            results.append(await _play(client, model, pace, given.shrink, meter))
            _tell(number, results[-1])
        return results


async def _fit(
    client: Client, admin_url: str, engine_options: Sequence[str], given: argparse.Namespace, folder: Path
) -> LatencyModel:
    return await fit.fit_engine(
        client,
        fit.FitOptions(
            file=folder / "latency.json",
            seconds=given.fit_seconds,
            longest_tokens=given.fit_longest,
            admin_url=admin_url,
        ),
        admin_url=admin_url,
        model=client.model,
        engine_options=engine_options,
        seed=secrets.randbits(32),
        say=lambda text: print(text, file=sys.stderr),
    )


async def _play(
    client: Client, model: LatencyModel, requests: Sequence[TraceRequest], shrink: int, meter: CpuMeter
) -> Played:
    told = answers(model, requests, shrink=shrink)
    began = asyncio.get_running_loop().time() + 0.5
    got = await asyncio.gather(*(_send(client, request, began, shrink) for request in requests))
    return Played(
        real=[seconds for seconds, _ in got],
        told=told.ttft_seconds(requests),
        found_tokens=sum(cached for _, cached in got),
        told_found_tokens=sum(told.cached_tokens.values()) // shrink,
        foreign_cores=meter.read().foreign_cores,
    )


async def _send(client: Client, request: TraceRequest, began: float, shrink: int) -> tuple[float, int]:
    """Ask at the request's time; return the seconds to its first token, and how many tokens were cached."""
    block_tokens = BLOCK_TOKENS // shrink
    # A block's tokens are another slice's too: equal ids are equal content.
    prompt = [token for block in request.blocks for token in Random(block).choices(_TOKEN_IDS, k=block_tokens)]
    del prompt[-(-request.prompt.num_tokens // shrink) :]
    await asyncio.sleep(began + request.arrival_seconds - asyncio.get_running_loop().time())
    answer = await client.complete(prompt, max(1, -(-request.output_tokens // shrink)))
    if not isinstance(answer, Answer):
        raise SystemExit(f"a request was not answered: {answer.reason}")
    return times(answer)[0] - answer.sent_at, answer.num_cached_tokens or 0


def _quantile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _tell(number: int, played: Played) -> None:
    for percent in (50, 90):
        real, told = _quantile(played.real, percent), _quantile(played.told, percent)
        say(
            f"ttft_p{percent}",
            "s",
            spread(played.real),
            slice=number,
            measured=round(real, 4),
            told=round(told, 4),
            ratio=round(told / real, 4),
            found_tokens=played.found_tokens,
            told_found_tokens=played.told_found_tokens,
            foreign_cores=round(played.foreign_cores, 2),
        )


def _judge(results: Sequence[Played]) -> bool:
    """All slices together, beside the ratios of each."""
    holds = True
    real, told = ([seconds for each in results for seconds in getattr(each, side)] for side in ("real", "told"))
    for percent in (50, 90):
        ratios = spread([_quantile(each.told, percent) / _quantile(each.real, percent) for each in results])
        ratio = _quantile(told, percent) / _quantile(real, percent)
        say(f"ttft_p{percent}_ratio", "", ratios)
        holds &= judge(f"ttft_p{percent}_error", abs(ratio - 1), _BAR, ratio=round(ratio, 4), requests=len(real))
    return holds


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
