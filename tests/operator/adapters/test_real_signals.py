"""A real engine, asked itself and through a real Prometheus: both say the same, and a Prometheus that is away says
nothing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from support_programs import needs

from sapwood_contract.http import READYZ
from sapwood_dashboards.stand import program
from sapwood_operator.adapters.asking import client_session
from sapwood_operator.adapters.engine_signals import EngineSignals
from sapwood_operator.adapters.prometheus_signals import PrometheusSignals
from sapwood_operator.adapters.sampler import Sampler, ScrapeSource
from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.demand import GatewaysHeard
from sapwood_operator.autoscaling.readings import STALE_SECONDS, reading
from sapwood_operator.autoscaling.scrapes import Scrape
from sapwood_operator.autoscaling.signals import EnginePod
from sapwood_operator.autoscaling.values import NoReading, Reading
from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

DEADLINE_SECONDS = 60.0
START_SECONDS = 240.0
NUM_REQUESTS, NUM_TOKENS, NUM_PROMPT = 6, 5, 200


@dataclass(frozen=True)
class Engine:
    url: str
    admin_url: str

    @property
    def service(self) -> Watched:
        pod = EnginePod(uid="uid-a", name="chat-a", url=self.admin_url, after=0.0)
        return Watched(namespace="team", name="chat", pods=(pod,), scales=True, is_urgent=False)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    needs("prometheus")
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "sapwood", "serve", f"--port={port}", f"--admin-port={admin_port}"]
    command += ["--kv-tokens=4096", "--threads=1", "--thread-binding=off"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        found = Engine(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
        deadline = time.monotonic() + START_SECONDS
        try:
            while not _is_ready(found.url):
                assert process.poll() is None, "the engine did not start"
                assert time.monotonic() < deadline, "the engine is not ready in time"
                time.sleep(0.05)  # what is waited for needs the processor
            yield found
        finally:
            process.kill()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + READYZ, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@asynccontextmanager
async def scraping(engine: Engine, folder: Path) -> AsyncIterator[program.Program]:
    """A Prometheus that asks the engine five times a second, and calls it as the PodMonitor does."""
    labels = {"namespace": "team", "pod": "chat-a", "inference_service": "chat"}
    target = {"targets": [engine.admin_url.partition("//")[2]], "labels": labels}
    timing = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
    job = {"job_name": "engines", "static_configs": [target]}
    running = program.prometheus(folder, {"global": timing, "scrape_configs": [job]})
    async with aiohttp.ClientSession() as http:
        await running.start()
        try:
            await running.until_ready(http)
            yield running
        finally:
            await running.end()


async def _scrapes(source: ScrapeSource, engine: Engine) -> tuple[Scrape, ...]:
    heard = (await source.ask(engine.service))["uid-a"]
    return heard.scrapes


async def _until(
    source: ScrapeSource, engine: Engine, holds: Callable[[tuple[Scrape, ...]], bool]
) -> tuple[Scrape, ...]:
    """Ask until what is said holds."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found = await _scrapes(source, engine)
            if holds(found):
                return found
            await asyncio.sleep(0.05)  # what is waited for needs the processor


async def _send(session: aiohttp.ClientSession, engine: Engine, number: int) -> None:
    prompt = [*range(100, 100 + NUM_PROMPT - 1), 100 + number]
    body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    async with session.post(f"{engine.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()


def _counts(found: Reading) -> list[float]:
    """What was counted within the window."""
    rates = (found.arrivals, found.admissions or 0.0, found.prompt_tokens, found.cached_tokens, found.generation_tokens)
    return [round(rate * found.window_seconds, 6) for rate in rates]


async def test_both_sources_say_the_same(engine: Engine, tmp_path: Path) -> None:
    async with client_session() as session, scraping(engine, tmp_path) as prometheus:
        direct, told = EngineSignals(session), PrometheusSignals(session, prometheus.url)
        early = await _until(told, engine, lambda found: len(found) > 0)
        before = await _scrapes(direct, engine)
        await asyncio.gather(*(_send(session, engine, number) for number in range(NUM_REQUESTS)))
        ended = before[0].totals.ended + NUM_REQUESTS
        after = await _until(direct, engine, lambda found: found[0].totals.ended == ended and found[0].running == 0)
        late = await _until(told, engine, lambda found: found[-1].at >= after[0].at)
    own = reading((*before, *after), after[0].at)
    window = tuple(each for each in late if each.at >= early[-1].at)
    other = reading(window, window[-1].at)
    assert isinstance(own, Reading)
    assert isinstance(other, Reading)
    assert _counts(own) == _counts(other)
    assert _counts(own)[1:] == [
        NUM_REQUESTS,
        NUM_REQUESTS * NUM_PROMPT,
        round(own.cached_tokens * own.window_seconds),
        NUM_REQUESTS * NUM_TOKENS,
    ]
    assert own.cached_tokens > 0
    assert (own.ttft, own.itl) == (other.ttft, other.itl)
    assert (own.waiting_tokens, own.capacity_tokens, own.cost) == (other.waiting_tokens, 4096, other.cost)
    assert (after[-1].state, after[-1].kv) == (window[-1].state, window[-1].kv)


@dataclass
class NoGatewaysHere:
    async def ask(self, _so_far: Callable[[GatewaysHeard], None]) -> GatewaysHeard:
        return GatewaysHeard(at=0.0)


async def test_a_prometheus_that_is_killed_leaves_pods_unknown_until_it_is_back(engine: Engine, tmp_path: Path) -> None:
    ahead = 0.0

    async def found(sampler: Sampler) -> Reading | NoReading:
        await sampler.sample()
        return sampler.of("team", "chat").reading_of("uid-a")

    async def until_read(sampler: Sampler) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                if isinstance(await found(sampler), Reading):
                    return
                await asyncio.sleep(0.05)  # what is waited for needs the processor

    async with client_session() as session, scraping(engine, tmp_path) as prometheus:
        sampler = Sampler(
            lambda: [engine.service],
            PrometheusSignals(session, prometheus.url),
            NoGatewaysHere(),
            wake=lambda _namespace, _name: None,
            clock=lambda: time.time() + ahead,
        )
        await until_read(sampler)
        await prometheus.end()
        assert isinstance(await found(sampler), Reading)
        ahead = STALE_SECONDS + 10
        unknown = await found(sampler)
        assert isinstance(unknown, NoReading)
        assert unknown.why.endswith("last, Prometheus does not answer: Connection refused")
        ahead = 0.0
        await prometheus.start()
        await until_read(sampler)
