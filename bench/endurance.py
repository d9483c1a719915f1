"""Many short requests against a served engine, and how much memory its two processes hold meanwhile.

``make bench-endurance``; options of ``sapwood serve`` may follow. Prompts of many lengths, half of them with a
beginning that others share; a third of the answers whole, a third streamed, a third streams whose client leaves. Ends
with 1 where an answer is not as asked or a process grows: by more than 512 bytes a request, which over 18,000 requests
is 9 MB; what is smaller is lost between pages that come and go.

The cache is small, so that it is full, and evicts, long before counting begins: a cache that still fills is no leak.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp

from figures import Bar, judge, say, spread
from sapwood_tools.bench.client import connect, events
from sapwood_tools.bench.cpu_use import available_cores
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import RunningServer, running

Kind = Literal["whole", "streamed", "left"]
"""``left``: the client goes after the first event of an answer that would be long"""
KINDS: tuple[Kind, ...] = ("whole", "streamed", "left")
_AT_ONCE = 16
_MOST_TOKENS, _LEFT_TOKENS = 8, 64
"""Of an answer, and of one that nobody waits for"""
_SHORT, _LONG, _LONG_EVERY = range(1, 24), 400, 200
"""Tokens of prompts, and how often a long one comes"""
_TOKEN_IDS = range(1000, 40000)
"""Ordinary ones."""
_NUM_BEGINNINGS, _BEGINNING_TOKENS = 8, 24
_SAMPLE_EVERY = 100
_MOST_GROWTH = Bar(512, "at most")
"""Bytes a request"""
_NO_FAILURES = Bar(0, "at most")


@dataclass(frozen=True, slots=True)
class Request:
    """One completion."""

    kind: Kind
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes held when so many requests had ended."""

    num_ended: int
    resident_bytes: tuple[int, ...]
    """Of each process"""


@dataclass(slots=True)
class Run:
    """What came of the requests so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Reason -> how often"""
    samples: list[Sample] = field(default_factory=list)


def main(argv: Sequence[str]) -> int:
    """Run and judge; 1 where memory grows or an answer is not as asked."""
    parser = argparse.ArgumentParser(prog="bench/endurance.py", allow_abbrev=False)
    parser.add_argument("--requests", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument("--warm-up", type=int, help="requests before counting begins; default: a tenth")
    parser.add_argument("--logs", type=Path, default=Path(".bench/logs"), help="folder (default: %(default)s)")
    given, engine_options = parser.parse_known_args(list(argv))
    command = our_command(
        "builtin:smollm2-135m", num_threads=available_cores(), options=["--kv-tokens=8192", *engine_options]
    )
    warm_up = given.requests // 10 if given.warm_up is None else given.warm_up

    async def serve_and_ask() -> tuple[Run, list[str], float]:
        async with running(command, given.logs) as server, connect(server.url) as client:
            begin = time.perf_counter()
            waiting = requests(given.requests)
            run = await ask_all(server.url, client.model, waiting, lambda: resident_bytes(server))
            names = ["HTTP process", *(f"worker {n}" for n in range(1, len(server.processes())))]
            return run, names, time.perf_counter() - begin

    run, names, seconds = asyncio.run(serve_and_ask())
    say("requests a second", "1/s", spread([given.requests / seconds]), kinds=run.kinds)
    verdicts = [judge("failures", run.failures.total(), _NO_FAILURES, reasons=run.failures)]
    samples = [sample for sample in run.samples if sample.num_ended >= warm_up]
    for number, name in enumerate(names):
        verdicts.append(judge_growth(name, [(s.num_ended, s.resident_bytes[number]) for s in samples]))
    return 0 if all(verdicts) else 1


def requests(count: int) -> Iterator[Request]:
    """Yield the same ``count`` requests every time."""
    draw = random.Random(0)
    beginnings = [tuple(draw.choices(_TOKEN_IDS, k=_BEGINNING_TOKENS)) for _ in range(_NUM_BEGINNINGS)]
    for number in range(count):
        kind = draw.choice(KINDS)
        length = _LONG if number % _LONG_EVERY == _LONG_EVERY - 1 else draw.choice(_SHORT)
        beginning = draw.choice(beginnings) if draw.random() < 0.5 else ()
        max_tokens = _LEFT_TOKENS if kind == "left" else draw.randint(1, _MOST_TOKENS)
        prompt = (*beginning, *draw.choices(_TOKEN_IDS, k=length))
        yield Request(kind, prompt, max_tokens, draw.choice((0.0, 1.0)))


async def ask_all(url: str, model: str, waiting: Iterator[Request], resident: Callable[[], tuple[int, ...]]) -> Run:
    """Send the requests in order, 16 of them under way at once, and take a sample every 100 that have ended."""
    run = Run()
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout) as session:
        # One iterator shared by all: whoever is free takes the next request.
        await asyncio.gather(*(_lane(session, model, waiting, run, resident) for _ in range(_AT_ONCE)))
    return run


async def _lane(
    session: aiohttp.ClientSession,
    model: str,
    waiting: Iterator[Request],
    run: Run,
    resident: Callable[[], tuple[int, ...]],
) -> None:
    for request in waiting:
        try:
            problem = await _ask(session, model, request)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            problem = repr(error)
        if problem:
            run.failures[problem] += 1
        run.kinds[request.kind] += 1
        num_ended = run.kinds.total()
        if num_ended % _SAMPLE_EVERY == 0:
            run.samples.append(Sample(num_ended, resident()))


async def _ask(session: aiohttp.ClientSession, model: str, request: Request) -> str:
    """Return what was not as asked; empty where nothing."""
    body: dict[str, object] = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "ignore_eos": True,
        "stream": request.kind != "whole",
    }
    if request.kind == "streamed":
        body["stream_options"] = {"include_usage": True}
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            return f"status {response.status}"
        if request.kind == "whole":
            return _judge_usage((await response.json())["usage"], request)
        usage = None
        async for event in events(response.content):
            if "error" in event:
                return f"error event {event['error'].get('code')}"
            if request.kind == "left":
                response.close()
                return ""
            usage = event.get("usage") or usage
    return _judge_usage(usage, request)


def _judge_usage(usage: dict[str, int] | None, request: Request) -> str:
    if usage is None:
        return "no usage"
    wanted, got = (len(request.prompt), request.max_tokens), (usage["prompt_tokens"], usage["completion_tokens"])
    return "" if wanted == got else "another number of tokens"


def resident_bytes(server: RunningServer) -> tuple[int, ...]:
    """Return the resident memory of all its processes, the HTTP process first."""
    return tuple(process.memory_info().rss for process in server.processes())


def judge_growth(name: str, points: Sequence[tuple[int, int]]) -> bool:
    """Hold the slope of (requests ended, resident bytes) against the bar."""
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    say(f"{name}: resident", "MB", spread([resident / 1e6 for _, resident in points]), last=points[-1][1] / 1e6)
    return judge(f"{name}: bytes a request", slope, _MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
