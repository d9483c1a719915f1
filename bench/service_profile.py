"""Where a served engine's time goes while 16 streams decode: py-spy looks at its two processes many times a second.

``make bench-profile``; options of ``sapwood serve`` may follow. Prints, for each part of each process, its share of the
processor time that both take. Only threads that run are counted; one that waits for the other process, a socket or a
lock is not. Of what all compute threads do, the model and the draw, py-spy sees the one thread that Python knows.
Ends with 1 where everything but the model's own arithmetic takes more than a tenth. Needs the right to look into
processes of one's own, as root or without ptrace restrictions.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from figures import Bar, judge, say, spread
from interference import answer_of
from sapwood_tools.bench.client import connect
from sapwood_tools.bench.cpu_use import available_cores
from sapwood_tools.bench.measure import Asks
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import RunningServer, running

_STREAMS = 16
_TOKENS = 400
"""Of each stream: longer than py-spy looks."""
_SECONDS = 5
_LOOKS_PER_SECOND = 200
_BAR = Bar(0.1, "at most")
_MODEL = "model"
_ON_EVERY_THREAD = (_MODEL, "sampling")
"""What py-spy sees on one thread, and all compute."""
_ELSEWHERE = "elsewhere"

PARTS: Final[Sequence[tuple[str, str]]] = (
    ("models/", _MODEL),
    ("kernels/cpu_sampling", "sampling"),
    ("runtime/sampler", "sampling"),
    ("kernels/sampling", "sampling"),
    ("runtime/executor", "hand-over"),
    ("runtime/", "tensors"),
    ("layers/", "tensors"),
    ("core/", "planning"),
    ("service/ipc", "ipc"),
    ("service/messages", "ipc"),
    ("tokenizer", "detokenising"),
    ("service/generation", "detokenising"),
    ("service/engine_loop", "engine loop"),
    ("service/metrics", "metrics"),
    ("service/", "client"),
    ("api/", "sse"),
)
"""Where a frame's file begins below ``sapwood_engine/`` or ``sapwood_text/`` -> the part that its time belongs to; the
first that fits."""
_FRAME = re.compile(r"sapwood_(?:engine|text)/(\S+?):\d+\)")


def main(argv: Sequence[str]) -> int:
    """Profile and judge; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/service_profile.py", allow_abbrev=False)
    parser.add_argument("--logs", type=Path, default=Path(".bench/logs"), help="folder (default: %(default)s)")
    given, engine_options = parser.parse_known_args(list(argv))
    num_threads = available_cores()
    command = our_command("builtin:smollm2-135m", num_threads=num_threads, options=engine_options)

    async def serve_and_look() -> dict[str, Counter[str]]:
        async with running(command, given.logs) as server, connect(server.url) as client:
            return await profile(server, client)

    return 0 if judge_parts(asyncio.run(serve_and_look()), num_threads) else 1


async def profile(server: RunningServer, client: Asks) -> dict[str, Counter[str]]:
    """Return process -> part -> looks that found it there, while streams decode."""
    http, worker = server.processes()[:2]
    streams = asyncio.gather(*(client.complete(f"Story {n}: Once upon a time", _TOKENS) for n in range(_STREAMS)))
    await asyncio.sleep(1.0)  # past the prompts
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, name) for name in ("worker", "http")}
        looks = [look(pid, paths[name]) for name, pid in (("worker", worker.pid), ("http", http.pid))]
        await asyncio.gather(*(asyncio.to_thread(process.wait) for process in looks))
        found = {name: count_parts(path.read_text().splitlines()) for name, path in paths.items()}
    for result in await streams:
        answer_of(result)
    return found


def look(pid: int, output: Path) -> subprocess.Popen[bytes]:
    """Start py-spy on a process for a while; it writes stacks with counts to ``output``."""
    return subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("py-spy")), "record", f"--pid={pid}", "--format=raw", "--nonblocking"),
            *(f"--duration={_SECONDS}", f"--rate={_LOOKS_PER_SECOND}", f"--output={output}"),
        ],
        stdout=subprocess.DEVNULL,
    )


def count_parts(lines: Iterable[str]) -> Counter[str]:
    """Return part -> looks of py-spy's raw lines, each ``frame;frame;… count``, the innermost frame last."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        found[part_of(stack)] += int(count)
    return found


def part_of(stack: str) -> str:
    """Return the part that the innermost frame of ours belongs to."""
    ours = _FRAME.findall(stack)
    if not ours:
        return _ELSEWHERE
    return next((part for beginning, part in PARTS if ours[-1].startswith(beginning)), _ELSEWHERE)


def judge_parts(found: dict[str, Counter[str]], num_threads: int) -> bool:
    """Print every part's share of the processor time, and judge all but the model's, which ``num_threads`` compute."""
    looks = {
        f"{process}: {part}": (count * num_threads if part in _ON_EVERY_THREAD else count, part)
        for process, parts in found.items()
        for part, count in parts.most_common()
    }
    total = sum(count for count, _ in looks.values())
    for name, (count, _) in looks.items():
        say(name, "share of processor time", spread([count / total]))
    return judge("all but the model", sum(count for count, part in looks.values() if part != _MODEL) / total, _BAR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
