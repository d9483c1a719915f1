"""What the gateway costs: time to the first token, tokens of 200 streams on one core, and how soon a leaving client is
known, each through the gateway and directly, in turns.

``make bench-gateway``; options of ``sapwood gateway`` may follow. Behind it is a stand-in (`stand_in`) that computes
nothing. The gateway has one core for itself; stand-in and client share another, or all others. Ends with 1 where a bar
is missed. How many tokens a second pass at most is told beside what stand-in and client manage without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import Bar, judge, milliseconds, ratios, say, spread
from sapwood_tools.bench.servers import free_port

_HERE = Path(__file__).parent
_FIRSTS = 100
"""Requests a round, one after the other."""
_SENTENCES, _MANY_SENTENCES = 10, 100
"""Of 20 tokens: a question, and a page."""
_STREAMS = 200
_RATE = 40.0
"""Tokens a second of a stream: an engine that decodes a batch in 25 ms."""
_MOST_RATE = 400.0
"""More than a core has time for."""
_LEFT = 20
_FIRST_BAR = Bar(2.0, "at most")
"""Milliseconds"""
_RATE_BAR = Bar(0.95, "at least")
_LEAVE_BAR = Bar(100.0, "at most")
"""Milliseconds"""
_POLICY = "--policy=prefix-affinity"
"""That of new services: each prompt is read and its blocks are named."""
_START_SECONDS = 60.0
_WAYS = ("directly", "through the gateway")
_PROGRAMS = ("gateway", "stand_in", "client")
_TOKENS = "tokens_per_second"


@dataclass(slots=True)
class Side:
    """What was measured of one way to the stand-in."""

    first_seconds: list[float] = field(default_factory=list)
    """To the first token of a question's answer: the median of each round."""
    page_seconds: list[float] = field(default_factory=list)
    """The same of a page's."""
    left_seconds: list[float] = field(default_factory=list)
    """From a client's leaving to the stand-in's knowing; of every stream."""
    steady: list[dict[str, float]] = field(default_factory=list)
    """Tokens a second and cores used, a round; where each stream has its rate."""
    most: list[dict[str, float]] = field(default_factory=list)
    """The same at `_MOST_RATE`."""


def main(argv: Sequence[str]) -> int:
    """Measure and judge; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/gateway.py", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each count of tokens (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=_RATE, help="tokens/s of each stream (default: %(default)s)")
    given, gateway_options = parser.parse_known_args(list(argv))
    with started(gateway_options) as bench:
        direct, through = measure(bench, given.rounds, given.rate, given.seconds)
    return 0 if judge_sides(direct, through, given.rate) else 1


@dataclass(frozen=True, slots=True)
class Bench:
    """The programs that run."""

    gateway_url: str
    engine_url: str
    client: subprocess.Popen[str]
    pids: dict[str, int]

    def ask(self, **order: object) -> Any:
        """Let the client do something."""
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        print(json.dumps(order), file=self.client.stdin, flush=True)
        answer = self.client.stdout.readline()
        if not answer:
            raise RuntimeError("the client has ended")
        return json.loads(answer)


@contextlib.contextmanager
def started(gateway_options: Sequence[str]) -> Iterator[Bench]:
    """Run stand-in, gateway and client until the end of the block."""
    *others, own = sorted(os.sched_getaffinity(0))
    engine_port, port, admin_port = free_port(), free_port(), free_port()
    engine_url, python = f"http://127.0.0.1:{engine_port}", sys.executable
    gateway = [python, "-m", "sapwood", "gateway", f"--port={port}", f"--admin-port={admin_port}", _POLICY]
    with contextlib.ExitStack() as stack:

        def run(command: Sequence[str], cores: Sequence[int], **pipes: Any) -> Any:
            process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, cores), **pipes)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        stand_in = run([python, str(_HERE / "stand_in.py"), f"--port={engine_port}"], others or [own])
        _await(f"{engine_url}/admin/load")
        measured = run(
            [*gateway, f"--engine={engine_url},{engine_url}", *gateway_options], [own], stderr=subprocess.DEVNULL
        )
        _await(f"http://127.0.0.1:{admin_port}/readyz")
        client = run(
            [python, str(_HERE / "stream_client.py")],
            others or [own],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        pids = {"gateway": measured.pid, "stand_in": stand_in.pid}
        yield Bench(f"http://127.0.0.1:{port}", engine_url, client, pids)


def _await(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer")


def measure(bench: Bench, num_rounds: int, rate: float, seconds: float) -> tuple[Side, Side]:
    """Return what was measured directly and through the gateway, after one round of each."""
    sides = Side(), Side()
    for number in range(num_rounds + 1):
        found = Side(), Side()
        # Whoever went first goes second the next time.
        for at in (0, 1) if number % 2 else (1, 0):
            _measure(bench, found[at], (bench.engine_url, bench.gateway_url)[at], rate, seconds)
        for side, new in zip(sides, found, strict=True) if number else ():
            for name in Side.__slots__:
                getattr(side, name).extend(getattr(new, name))
    return sides


def _measure(bench: Bench, side: Side, url: str, rate: float, seconds: float) -> None:
    for seconds_of, num in ((side.first_seconds, _SENTENCES), (side.page_seconds, _MANY_SENTENCES)):
        found = bench.ask(do="first", url=url, count=_FIRSTS, sentences=num)
        seconds_of.append(statistics.median(found))
    side.left_seconds.extend(bench.ask(do="leave", url=url, engine=bench.engine_url, count=_LEFT))
    for at, counted in ((rate, side.steady), (_MOST_RATE, side.most)):
        order = {"do": "rate", "url": url, "streams": _STREAMS, "rate": at, "seconds": seconds, "pids": bench.pids}
        counted.append(bench.ask(**order))


def judge_sides(direct: Side, through: Side, rate: float) -> bool:
    """Print and judge what was measured."""
    for what, seconds in (("a question", "first_seconds"), ("a page", "page_seconds")):
        for way, side in zip(_WAYS, (direct, through), strict=True):
            say(f"to the first token for {what}, {way}", "ms", milliseconds(spread(getattr(side, seconds))))
    added, added_to_page = (
        spread([1e3 * (b - a) for a, b in zip(before, behind, strict=True)])
        for before, behind in (
            (direct.first_seconds, through.first_seconds),
            (direct.page_seconds, through.page_seconds),
        )
    )
    say("to the first token for a page: added by the gateway", "ms", added_to_page)
    verdicts = [judge("to the first token for a question: added by the gateway, ms", added, _FIRST_BAR)]
    for name, runs in (
        (f"{_STREAMS} streams of {rate:g} tokens/s", "steady"),
        (f"{_STREAMS} streams of {_MOST_RATE:g} tokens/s", "most"),
    ):
        for way, side in zip(_WAYS, (direct, through), strict=True):
            found: list[dict[str, float]] = getattr(side, runs)
            cores = {f"{who}_cores": round(statistics.median(one[who] for one in found), 2) for who in _PROGRAMS}
            say(f"{name}, {way}", "tokens/s", spread([one[_TOKENS] for one in found]), **cores)
    kept = ratios([one[_TOKENS] for one in through.steady], [one[_TOKENS] for one in direct.steady])
    verdicts.append(judge(f"{_STREAMS} streams: token rate left", kept, _RATE_BAR))
    left = milliseconds(spread(through.left_seconds))
    say("a client leaves: known after, directly", "ms", milliseconds(spread(direct.left_seconds)))
    verdicts.append(
        judge("a client leaves: known behind the gateway after, most, ms", left.most, _LEAVE_BAR, median=left.median)
    )
    return all(verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
