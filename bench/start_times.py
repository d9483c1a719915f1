"""How long ``sapwood serve`` takes to its first answer: with nothing compiled yet, and at every start after that.

``make bench-start``; options of ``sapwood serve`` may follow. One start fills a new cache of kernels; the starts after
it read that, in turns with a program that imports torch and does nothing else, which every start has to pay. Ends with
1 where compiling takes more than a minute, reading the kernels more than a second, or a start with kernels more than
three to its first answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from figures import Bar, judge, ratios, say, spread
from sapwood_contract.http import METRICS, READYZ
from sapwood_tools.bench.cpu_use import available_cores
from sapwood_tools.bench.peers import our_command
from sapwood_tools.bench.servers import free_port

_MODEL = "smollm2-135m"
_COLD_BAR = Bar(60.0, "at most")
_KERNELS_BAR = Bar(1.0, "at most")
_ANSWER_BAR = Bar(3.0, "at most")
"""All three: seconds"""
_LONGEST_SECONDS = 300.0
_POLL_SECONDS = 0.01
_SAMPLE = re.compile(r'^sapwood_startup_seconds\{.*phase="(\w+)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds from the start of the program."""

    ready: float
    first_answer: float
    """One token, over HTTP"""
    phases: Mapping[str, float]
    """How long each took in the worker"""


def main(argv: Sequence[str]) -> int:
    """Measure and judge; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench/start_times.py", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    given, engine_options = parser.parse_known_args(list(argv))
    with tempfile.TemporaryDirectory() as caches:
        environment = {**os.environ, "XDG_CACHE_HOME": caches}
        cold = time_start(engine_options, environment)
        warm, imports = [], []
        for _ in range(given.rounds):
            imports.append(time_torch())
            warm.append(time_start(engine_options, environment))
    return 0 if judge_starts(cold, warm, imports) else 1


def time_start(engine_options: Sequence[str], environment: Mapping[str, str]) -> StartTimes:
    """Start, ask for one token, stop; `RuntimeError` where it ends early or does not come up in 300 s."""
    admin_port = free_port()
    options = [f"--admin-port={admin_port}", "--log-level=warning", *engine_options]
    command = our_command(f"builtin:{_MODEL}", num_threads=available_cores(), options=options)
    begin = time.monotonic()
    process = subprocess.Popen(command.argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        admin = f"http://127.0.0.1:{admin_port}"
        while not _is_ready(admin + READYZ):
            if process.poll() is not None or time.monotonic() > begin + _LONGEST_SECONDS:
                raise RuntimeError(f"sapwood serve did not come up (exit code {process.returncode})")
            time.sleep(_POLL_SECONDS)
        ready = time.monotonic() - begin
        _ask(f"http://127.0.0.1:{command.port}/v1/completions")
        first_answer = time.monotonic() - begin
        with urllib.request.urlopen(admin + METRICS, timeout=10) as answer:
            return StartTimes(ready, first_answer, phases_of(answer.read().decode()))
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except OSError:  # nobody listens yet, or it says that it loads
        return False
    return True


def _ask(url: str) -> None:
    body = json.dumps({"model": _MODEL, "prompt": "Hello", "max_tokens": 1}).encode()
    urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=30).read()


def phases_of(metrics: str) -> dict[str, float]:
    """Return phase -> seconds from an engine's metrics."""
    return {phase: float(seconds) for phase, seconds in _SAMPLE.findall(metrics)}


def time_torch() -> float:
    """Return the seconds of a program that imports torch."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-P", "-c", "import torch"], check=True)
    return time.monotonic() - begin


def judge_starts(cold: StartTimes, warm: Sequence[StartTimes], imports: Sequence[float]) -> bool:
    """Print and judge the first start, and those after it beside ``imports`` of torch in the same turns."""
    say("a program that imports torch", "s", spread(imports))
    for phase in warm[0].phases:
        say(f"a start with kernels: {phase}", "s", spread([start.phases[phase] for start in warm]))
    answers = [start.first_answer for start in warm]
    say("a start with kernels: to its first answer, over importing torch", "ratio", ratios(answers, imports))
    verdicts = (
        judge("a start without kernels: compiling", cold.phases["compile"], _COLD_BAR, ready=round(cold.ready, 2)),
        judge("a start with kernels: reading them", spread([s.phases["compile"] for s in warm]), _KERNELS_BAR),
        judge("a start with kernels: to its first answer", spread(answers), _ANSWER_BAR),
    )
    return all(verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
