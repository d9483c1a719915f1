"""`sapwood serve` with its real model, as a whole: how a stream fares when processes are told to end, or die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse

import psutil
import pytest

from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

_START_SECONDS = 240


@dataclass
class Served:
    """A running engine."""

    process: subprocess.Popen[bytes]
    url: str

    def open_stream(self, *, max_tokens: int) -> HTTPResponse:
        """Begin a streamed completion; returns once its first event is there."""
        body = {"model": "smollm2-135m", "prompt": "Once", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        response: HTTPResponse = urllib.request.urlopen(request, timeout=120)
        assert response.readline().startswith(b"data: ")
        return response

    def worker(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child


@pytest.fixture(scope="module")
def engines() -> Iterator[Iterator[Served]]:
    """One for each test, for none outlives its own."""
    started = [_start() for _ in range(2)]
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not all(_is_ready(each.url) for each in started):
            assert all(each.process.poll() is None for each in started), "an engine did not start"
            assert time.monotonic() < deadline, "an engine is not ready in time"
            time.sleep(0.05)  # what is waited for needs the processor
        yield iter(started)
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()


def _start() -> Served:
    port = free_port()
    command = [sys.executable, "-m", "sapwood", "serve", f"--port={port}", "--admin-port=0", "--kv-tokens=8192"]
    command += ["--threads=1", "--thread-binding=off"]
    return Served(subprocess.Popen(command, stdout=subprocess.DEVNULL), f"http://127.0.0.1:{port}")


@pytest.fixture
def served(engines: Iterator[Served]) -> Served:
    return next(engines)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_signal_to_every_process_at_once_drains(served: Served) -> None:
    worker = served.worker()
    with served.open_stream(max_tokens=40) as stream:
        worker.send_signal(signal.SIGTERM)
        served.process.send_signal(signal.SIGTERM)
        events = stream.read()
    assert b"[DONE]" in events
    assert b'"error"' not in events
    assert served.process.wait(60) == 0


def test_the_worker_killed_under_load_ends_every_stream_with_an_error_and_the_program_with_a_failure(
    served: Served,
) -> None:
    streams = [served.open_stream(max_tokens=4000) for _ in range(4)]
    served.worker().kill()
    for stream in streams:
        with stream:
            events = stream.read()
        assert b'"error"' in events
        assert b"[DONE]" not in events
    assert served.process.wait(60) == 1
