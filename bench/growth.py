"""How costs grow with the batch, the context, the cached share of a prompt and a prefix that sequences share.

``make bench-growth``; options of ``sapwood serve`` may follow. JSON lines to stdout, plots to docs/growth. Ends with 1
where there is a cliff: a token or key that costs more than 1.3 times what it does at the next smaller size, see
`curves`. The points of a curve are measured in rounds, so that a slow minute falls on all of them. Run it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import steps
from curves import MOST_RISE, Curve, Point, cliffs
from figures import Bar, Spread, judge, milliseconds, say, spread
from plot import Line, Mark, Plot, svg
from sapwood_engine.core.ports import Capacity
from sapwood_engine.runtime.model_runner import ModelRunner
from sapwood_tools.bench.client import Answer, Failure, connect
from sapwood_tools.bench.cpu_use import available_cores
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import running

BATCHES = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
"""Powers of two, and the sizes behind which a tile or a phase is done another way."""
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
CONTEXT_BATCHES = (1, 8)
_BATCH_CONTEXT, _NO_CONTEXT = 256, 16
"""Keys of the curve of batches, and of a step that is measured for what it costs without any."""
SHARED = (0, 128, 256, 384, 512, 640, 768, 896, 1024)
_SHARING, _OWN_TOKENS = 16, 64
"""Sequences that share a prefix, and what each has behind the longest of them."""
PROMPT_TOKENS = 1024
COMPUTED = (1, 256, 512, 768, 1024)
"""Tokens of the prompt that are not in the cache. The last one is always computed: it yields the first token."""
_TOKEN_IDS = range(1000, 40000)
"""Ordinary ones."""
_PAGE_TOKENS = 16
_NO_CLIFFS = Bar(0, "at most")


def main(argv: Sequence[str]) -> int:
    """Measure, print, plot and judge; 1 where there is a cliff."""
    parser = argparse.ArgumentParser(prog="bench/growth.py", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--plots", type=Path, default=Path("docs/growth"), help="folder (default: %(default)s)")
    parser.add_argument("--logs", type=Path, default=Path(".bench/logs"), help="folder (default: %(default)s)")
    given, engine_options = parser.parse_known_args(list(argv))
    curves = step_curves(engine_options, given.rounds)
    curves["cached"] = [asyncio.run(cached_curve(engine_options, given.rounds, given.logs))]
    given.plots.mkdir(parents=True, exist_ok=True)
    for name, plot in plots(curves).items():
        (given.plots / f"{name}.svg").write_text(svg(plot), encoding="utf-8")
    verdicts = [tell(curve) for found in curves.values() for curve in found]
    return 0 if all(verdicts) else 1


def tell(curve: Curve) -> bool:
    """Print a curve's points and whether it has no cliffs."""
    for point in curve.points:
        cost = 1e6 * curve.cost_seconds(point)
        say(f"{curve.name}, {point.x:g}", "ms", milliseconds(point.seconds), **{f"us_a_{curve.unit}": round(cost, 2)})
    found = [dataclasses.asdict(cliff) for cliff in cliffs(curve)]
    return judge(f"{curve.name}: cliffs", len(found), _NO_CLIFFS, most_rise=MOST_RISE, cliffs=found)


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences of one length that decode."""

    pages: Sequence[Sequence[int]]
    """Of each sequence"""
    context: int


def step_curves(engine_options: Sequence[str], num_rounds: int) -> dict[str, list[Curve]]:
    """Return the curves of whole steps, sampling included, as the engine's runner takes them."""
    longest = max(SHARED) + _OWN_TOKENS
    kv_tokens = max(max(CONTEXT_BATCHES) * max(CONTEXTS), max(BATCHES) * _BATCH_CONTEXT, _SHARING * longest)
    loaded = steps.load(engine_options, num_seats=max(BATCHES), kv_tokens=kv_tokens, max_context_tokens=max(CONTEXTS))
    steps.fill_pages(loaded.pool)

    def case(num_sequences: int, context: int, num_shared: int = 0) -> Case:
        return Case(own_pages(loaded.capacity, num_sequences, context, num_shared), context)

    runner = loaded.runner()
    batch = measure(runner, {size: case(size, _BATCH_CONTEXT) for size in BATCHES}, num_rounds)
    context = {
        size: measure(runner, {length: case(size, length) for length in (_NO_CONTEXT, *CONTEXTS)}, num_rounds)
        for size in CONTEXT_BATCHES
    }
    shared = measure(runner, {length: case(_SHARING, longest, length) for length in SHARED}, num_rounds)
    steps.keep_kernels(loaded)
    return {
        "batch": [Curve("batch", "token", [Point(size, size, batch[size]) for size in BATCHES])],
        "context": [context_curve(size, context[size]) for size in CONTEXT_BATCHES],
        "shared": [Curve("shared prefix", "token", [Point(length, _SHARING, shared[length]) for length in SHARED])],
    }


def context_curve(num_sequences: int, seconds: Mapping[int, Spread]) -> Curve:
    """Return what keys cost on top of a step that hardly reads any."""
    points = [Point(length, num_sequences * (length - _NO_CONTEXT), seconds[length]) for length in CONTEXTS]
    return Curve(f"context, batch {num_sequences}", "key", points, base_seconds=seconds[_NO_CONTEXT].median)


def own_pages(capacity: Capacity, num_sequences: int, context: int, num_shared: int) -> list[list[int]]:
    """Return the pages of each sequence, of which those of the first ``num_shared`` tokens are the same."""
    pages = iter(steps.shuffled_pages(capacity))
    of_prefix = list(islice(pages, num_shared // capacity.page_size))
    num_own = -(-context // capacity.page_size) - len(of_prefix)
    return [[*of_prefix, *islice(pages, num_own)] for _ in range(num_sequences)]


def measure(runner: ModelRunner, cases: Mapping[int, Case], num_rounds: int) -> dict[int, Spread]:
    """Return the seconds of a decode step of every case, after one round that does not count."""
    seconds: dict[int, list[float]] = {key: [] for key in cases}
    for number in range(num_rounds + 1):
        for key, case in cases.items():
            for seat, pages in enumerate(case.pages):
                runner.run(steps.opening(seat, pages))
            begin = time.perf_counter()
            runner.run(steps.decode(len(case.pages), case.context - 1))
            if number > 0:
                seconds[key].append(time.perf_counter() - begin)
    return {key: spread(values) for key, values in seconds.items()}


async def cached_curve(engine_options: Sequence[str], num_rounds: int, log_folder: Path) -> Curve:
    """Return the time to the first token of a prompt of which parts are in the cache, over HTTP."""
    command = our_command(
        "builtin:smollm2-135m", num_threads=available_cores(), options=["--kv-tokens=65536", *engine_options]
    )
    draw = random.Random(0)
    seconds: dict[int, list[float]] = {num_computed: [] for num_computed in COMPUTED}
    async with running(command, log_folder) as server, connect(server.url) as client:
        prompt = draw.choices(_TOKEN_IDS, k=PROMPT_TOKENS)
        await first_token(client, prompt, num_cached=0)
        for number in range(num_rounds + 1):
            for num_computed in COMPUTED:
                num_cached = PROMPT_TOKENS - num_computed
                tail = prompt[num_cached:] if num_computed == 1 else draw.choices(_TOKEN_IDS, k=num_computed)
                took = await first_token(client, prompt[:num_cached] + tail, num_cached=num_cached)
                if number > 0:
                    seconds[num_computed].append(took)
    spreads = {num_computed: spread(values) for num_computed, values in seconds.items()}
    points = [Point(cached_share(n), n, spreads[n]) for n in COMPUTED]
    return Curve("cached share", "token", points, base_seconds=spreads[1].median)


def cached_share(num_computed: int) -> int:
    """Return the rest of the prompt in percent."""
    return round(100 * (1 - num_computed / PROMPT_TOKENS))


class AsksIds(Protocol):
    """What a curve over HTTP needs of a client."""

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Answer | Failure:
        """See `sapwood_tools.bench.client.Client.complete`."""


async def first_token(client: AsksIds, prompt: Sequence[int], *, num_cached: int) -> float:
    """Return the seconds to the first token; `RuntimeError` where the answer or the cache is not as expected."""
    answer = await client.complete(prompt, 1)
    if isinstance(answer, Failure):
        raise RuntimeError(answer.reason)
    # The cache may keep whole pages only.
    if answer.num_cached_tokens is None or answer.num_cached_tokens <= num_cached - _PAGE_TOKENS:
        raise RuntimeError(f"{answer.num_cached_tokens} tokens were found in the cache where {num_cached} were put")
    return answer.ttft_seconds


def plots(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Plot]:
    """Return a plot for each group of curves, by file name."""
    batch, shared, cached = (curves[name][0] for name in ("batch", "shared", "cached"))
    a_token = Line("a token", [_mark(point, 1 / point.units) for point in batch.points])
    contexts = [_line(curve, f"batch {size}") for size, curve in zip(CONTEXT_BATCHES, curves["context"], strict=True)]
    return {
        "batch": Plot(
            f"Decode, context {_BATCH_CONTEXT}", "sequences", "ms", [_line(batch, "a step"), a_token], logarithmic=True
        ),
        "context": Plot("Decode step", "keys a sequence", "ms", contexts, logarithmic=True),
        "shared": Plot(
            f"Decode step of {_SHARING} sequences, context {max(SHARED) + _OWN_TOKENS}",
            "tokens of a prefix that all share",
            "ms",
            [_line(shared, "a step")],
        ),
        "cached": Plot(
            f"Prompt of {PROMPT_TOKENS} tokens, over HTTP",
            "found in the cache, %",
            "ms",
            [_line(cached, "first token")],
        ),
    }


def _line(curve: Curve, name: str) -> Line:
    return Line(name, [_mark(point) for point in sorted(curve.points, key=lambda point: point.x)])


def _mark(point: Point, factor: float = 1.0) -> Mark:
    values = milliseconds(point.seconds)
    return Mark(point.x, factor * values.lower, factor * values.median, factor * values.upper)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
