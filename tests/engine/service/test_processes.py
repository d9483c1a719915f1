"""Two real processes: a worker that is killed, a parent that is, signals, drains, and starts that fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from support_fake_executor import reference_tokens
from support_fake_worker import ENDLESS_MODEL, REFUSED_MODEL
from support_series import Scrape, scrape_of
from support_service import (
    DEADLINE_SECONDS,
    ENDLESS,
    VOCAB_SIZE,
    collect,
    generation,
    options,
    process_engine,
)

from sapwood_contract.launch import LaunchOptions, to_argv
from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.cache_gauges import CACHE_GAUGES
from sapwood_tools.bench.servers import free_port

SERVE = Path(__file__).parents[2] / "support" / "support_fake_serve.py"
DEATH_SECONDS = 5.0
"""Within which the program ends once its worker is dead: the promise, not a measurement."""


# --- client and worker


async def test_tokens_flow_between_two_processes() -> None:
    async with process_engine() as engine:
        deltas = await collect(engine.client, generation("two processes", max_tokens=20))
        ids = [token for delta in deltas for token in delta.token_ids]
        assert ids == reference_tokens(b"two processes", 20, vocab_size=VOCAB_SIZE)
    assert await engine.attending == 0


async def test_a_killed_worker_takes_its_gauges_along_and_no_counter_falls() -> None:
    async with process_engine() as engine:

        def scrape() -> Scrape:
            return scrape_of(engine.client.render_metrics().body.decode())

        await collect(engine.client, generation("before", max_tokens=4))
        stream = engine.client.generate(generation("during", max_tokens=ENDLESS))
        await anext(stream)
        before = scrape()
        assert before.total("sapwood_kv_tokens", state="free") > 0
        os.kill(engine.worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            async for _ in stream:
                pass
        for after in (scrape(), scrape()):
            assert [
                key for key, value in before.samples.items() if key[0].endswith("_total") and after.samples[key] < value
            ] == []
            assert after.by("sapwood_requests_total", "finish_reason") == {"length": 1, "error": 1}
            assert after.total("sapwood_requests_running") == 0
            assert after.num_series().keys() == before.num_series().keys() - set(CACHE_GAUGES)


async def test_a_killed_worker_ends_every_open_stream_at_once() -> None:
    async with process_engine() as engine:
        streams = [engine.client.generate(generation(f"{i}", max_tokens=ENDLESS)) for i in range(6)]
        for stream in streams[:4]:
            await anext(stream)
        os.kill(engine.worker.pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(WorkerDied) as death:
                async for _ in stream:
                    pass
            assert death.value.exit_code in (-signal.SIGKILL, None)
        with pytest.raises(WorkerDied):
            await engine.client.admin("check")
        assert await engine.attending == -signal.SIGKILL


async def test_a_worker_survives_no_parent() -> None:
    async with process_engine() as engine:
        child = psutil.Process(engine.worker.pid)
        engine.worker.let_go()
        assert await engine.attending == 1
        with pytest.raises(psutil.NoSuchProcess):
            child.status()


# --- the whole program


@dataclass(slots=True)
class Program:
    """A running ``sapwood serve``."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    printed: list[str]

    @property
    def worker(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        return self.process.wait(seconds)


@contextlib.contextmanager
def program(launch: LaunchOptions | None = None) -> Iterator[Program]:
    """Start the program and wait for its ready card."""
    with started(launch or options(port=0, admin_port=0)) as process:
        printed = read_until(process, "  try ")
        values = {line[:18].strip(): line[18:].strip() for line in printed}
        yield Program(process, values["address"].removesuffix("/v1"), values["admin"], printed)


@contextlib.contextmanager
def started(launch: LaunchOptions) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(SERVE), *to_argv(launch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], beginning: str) -> list[str]:
    """Lines of stdout up to the one that begins so."""
    assert process.stdout is not None
    lines: list[str] = []
    watchdog = threading.Timer(DEADLINE_SECONDS, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                return lines
    finally:
        watchdog.cancel()
    raise AssertionError(f"the program ended, or took too long, after {lines}")


@contextlib.contextmanager
def streaming(running: Program, *, max_tokens: int = ENDLESS) -> Iterator[Iterator[str]]:
    """Open a stream and hand out its events."""
    body = {"model": "fake", "prompt": "once", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=DEADLINE_SECONDS) as answer:
        assert answer.status_code == 200
        yield (line for line in answer.iter_lines() if line)


def serving() -> LaunchOptions:
    return options(port=0, admin_port=0, served_model_name="fake", drain_seconds=60.0)


def test_a_program_whose_worker_is_killed_under_load_tells_its_streams_and_ends_with_a_failure() -> None:
    with program(serving()) as running, streaming(running) as one, streaming(running) as two:
        next(one), next(two)
        running.worker.kill()
        for events in (one, two):
            *_, last = events
            assert '"error"' in last
            assert "worker" in last
            assert "[DONE]" not in last
        assert running.wait(DEATH_SECONDS) == 1
        assert running.process.stderr is not None
        assert "worker process ended (exit code -9)" in running.process.stderr.read()


def test_a_first_signal_drains_the_running_answers_and_refuses_new_ones() -> None:
    with program(serving()) as running, streaming(running, max_tokens=3000) as events:
        next(events)
        running.process.send_signal(signal.SIGTERM)
        # The signal is taken as soon as the probe says so; the stream goes on meanwhile.
        while get(f"{running.url}/readyz").status_code == 200:
            pass
        refused = httpx.post(f"{running.url}/v1/completions", json={"model": "fake", "prompt": "x"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        *_, last = events
        assert last == "data: [DONE]"
        assert running.wait() == 0


def test_a_second_signal_ends_the_program_at_once() -> None:
    with program(serving()) as running, streaming(running) as events:
        next(events)
        worker = running.worker
        running.process.send_signal(signal.SIGTERM)
        while get(f"{running.url}/readyz").status_code == 200:
            pass
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 128 + signal.SIGINT
        worker.wait(DEADLINE_SECONDS)


def test_a_drain_ends_at_its_deadline_with_an_error_in_the_stream() -> None:
    launch = options(port=0, admin_port=0, served_model_name="fake", drain_seconds=0.0)
    with program(launch) as running, streaming(running) as events:
        next(events)
        running.process.send_signal(signal.SIGTERM)
        *_, last = events
        assert '"error"' in last
        assert running.wait() == 0


def test_a_program_that_is_killed_takes_its_worker_along() -> None:
    with program(serving()) as running:
        worker = running.worker
        directory = Path(worker.cmdline()[2])
        assert directory.is_dir()
        running.process.kill()
        worker.wait(DEADLINE_SECONDS)
        assert not directory.exists()


def test_a_start_that_fails_says_why_in_one_line() -> None:
    with started(options(port=0, admin_port=0, model=REFUSED_MODEL)) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 2
    assert [line for line in err.splitlines() if line.startswith("sapwood:")] == [
        f"sapwood: --model: {REFUSED_MODEL!r} cannot be used: take another"
    ]
    assert "Traceback" not in out + err


def test_an_engine_that_loads_answers_probes_takes_no_requests_and_ends_at_the_first_signal() -> None:
    with started(options(port=0, admin_port=0, model=ENDLESS_MODEL)) as process:
        read_until(process, "load:")
        for connection in psutil.Process(process.pid).net_connections("tcp"):
            url = f"http://127.0.0.1:{connection.laddr.port}"
            assert get(f"{url}/livez").status_code == 200
            assert get(f"{url}/readyz").json() == {"state": "loading"}
            assert get(f"{url}/readyz").status_code == 503
            answer = httpx.post(f"{url}/v1/completions", json={"model": ENDLESS_MODEL, "prompt": "x"})
            assert answer.status_code in (503, 404)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0


def test_progress_and_the_ready_card_are_plain_lines_without_a_terminal() -> None:
    with program(serving()) as running:
        text = "\n".join(running.printed)
    assert running.printed[0] == "load: nothing to load"
    assert "\x1b" not in text
    for part in ("fake", "65,536 tokens", running.url, running.admin_url, "curl", "/v1/completions"):
        assert part in text
    assert "temperature 1, top_p 1" in text


def test_an_engine_whose_console_nobody_reads_serves_on() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    port = free_port()
    command = [sys.executable, str(SERVE), *to_argv(options(port=port, admin_port=0))]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not _is_ready(f"http://127.0.0.1:{port}"):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # what is waited for needs the processor
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert "BrokenPipe" not in errors


def get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=DEADLINE_SECONDS)


def _is_ready(url: str) -> bool:
    try:
        return get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_disconnected_clients_free_their_seats_for_the_next() -> None:
    with program(serving()) as running:
        for _ in range(3):
            with contextlib.ExitStack() as clients:
                for _ in range(4):
                    next(clients.enter_context(streaming(running)))
        body = {"model": "fake", "prompt": "after", "max_tokens": 3}
        answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=DEADLINE_SECONDS)
        assert answer.status_code == 200
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (load := get(f"{running.admin_url}/admin/load").json()["load"])["num_running"]:
            assert time.monotonic() < deadline
        assert (load["num_waiting"], load["kv_active_tokens"], load["kv_protected_tokens"]) == (0, 0, 0)
