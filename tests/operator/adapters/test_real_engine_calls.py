"""Real engines with a credential: a new one is warmed and gets ready, and what a victim holds goes to who stays."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sapwood_contract.http import READYZ
from sapwood_contract.trust import CREDENTIAL_HEADER
from sapwood_operator.adapters.asking import client_session
from sapwood_operator.adapters.engine_admin import Address, EngineAdmin
from sapwood_operator.adapters.service_engines import ServiceEngines
from sapwood_operator.autoscaling.engines import CacheSeen, Engine, HandOver, LoadSeen, Warm
from sapwood_operator.autoscaling.movement import move
from sapwood_operator.autoscaling.pods import PodSeen, Seen
from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

START_SECONDS = 480.0
DEADLINE_SECONDS = 60.0
CREDENTIAL = "credential-of-the-gateway"
HEADERS = {CREDENTIAL_HEADER: CREDENTIAL}
OLD, NEW = Engine("chat-old", "u-old"), Engine("chat-new", "u-new")
FIRST, SECOND = list(range(100, 164)), list(range(300, 364))
NUM_BLOCKS = len(SECOND) // 16


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[bytes]
    url: str
    admin_url: str

    def complete(self, prompt: list[int]) -> int:
        """Return how many tokens of ``prompt`` it held."""
        body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 1}
        asked = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), HEADERS)
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return int(json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.admin_url + READYZ, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class Stand:
    old: Served
    new: Served


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One engine that serves, and one that waits for an hour to be told what to compute first."""
    credential = tmp_path_factory.mktemp("credential") / "credential"
    credential.write_text(CREDENTIAL)
    served = [_start(credential), _start(credential, "--warm-wait-seconds=3600")]
    try:
        deadline = time.monotonic() + START_SECONDS
        while not served[0].is_ready():
            assert all(each.process.poll() is None for each in served), "an engine did not start"
            assert time.monotonic() < deadline, "the engine is not ready in time"
            time.sleep(0.05)  # what is waited for needs the processor
        yield Stand(*served)
    finally:
        for each in served:
            each.process.kill()
            each.process.wait()


def _start(credential: Path, *options: str) -> Served:
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "sapwood", "serve", f"--port={port}", f"--admin-port={admin_port}"]
    command += ["--kv-tokens=4096", "--threads=1", "--thread-binding=off", f"--gateway-credential-file={credential}"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Served(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")


@asynccontextmanager
async def engines_of(stand: Stand) -> AsyncIterator[ServiceEngines]:
    async with client_session() as session:
        admin = EngineAdmin(session)
        service = ServiceEngines("team", "chat", admin, asyncio.Semaphore(4), time.time)
        service.know({OLD.uid: Address(stand.old.admin_url, HEADERS), NEW.uid: Address(stand.new.admin_url, HEADERS)})
        yield service


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = DEADLINE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)  # what is waited for needs the processor


async def is_warming(service: ServiceEngines) -> bool:
    await service.look_at_load(NEW)
    load = service.seen[NEW.uid].load
    return isinstance(load, LoadSeen) and load.state == "warming"


async def blocks_of(service: ServiceEngines, engine: Engine) -> set[int]:
    await service.look_at_cache(engine)
    cache = service.seen[engine.uid].cache
    assert isinstance(cache, CacheSeen), cache
    return {block for blocks, _ in cache.cache.nodes for block in blocks}


def a_pod(engine: Engine, *, ready: bool) -> PodSeen:
    progress = "ready" if ready else "running"
    return PodSeen(name=engine.pod, uid=engine.uid, created=0.0, progress=progress, has_served=ready)  # type: ignore[arg-type]


async def test_a_new_engine_is_warmed_and_a_victim_is_chosen_and_handed_over(stand: Stand) -> None:
    for number in range(4):
        await asyncio.to_thread(stand.old.complete, [*FIRST, number])
    async with engines_of(stand) as service:
        await until(lambda: is_warming(service), START_SECONDS)
        pods = (a_pod(OLD, ready=True), a_pod(NEW, ready=False))
        seen = Seen(pods=pods, asked=2, engines=service.seen)
        (call,) = move(seen, wanted=2, drain_seconds=60.0, warms=True, now=time.time()).calls
        assert call == Warm(NEW, (OLD,))
        assert not stand.new.is_ready()
        await until(lambda: service.warm(call))  # no answer within its time is asked for again
        await until(lambda: asyncio.to_thread(stand.new.is_ready))
        assert await asyncio.to_thread(stand.new.complete, [*FIRST, 1]) == len(FIRST)

        # What only the victim holds goes to who stays.
        for number in range(4):
            await asyncio.to_thread(stand.old.complete, [*SECOND, number])
        held = await blocks_of(service, OLD)
        assert len(held - await blocks_of(service, NEW)) == NUM_BLOCKS
        pods = (a_pod(OLD, ready=True), a_pod(NEW, ready=True))
        seen = Seen(pods=pods, asked=2, engines=service.seen)
        movement = move(seen, wanted=1, drain_seconds=60.0, warms=True, now=time.time())
        assert movement.cordoned == (NEW.pod,), "the old one holds more that is nowhere else"
        assert "nowhere else" in movement.news[0]
        await until(lambda: service.hand_over(HandOver(OLD, 1.0, (NEW,))))
        assert service.seen[OLD.uid].handed_over == 1.0

        async def is_handed_over() -> bool:
            return held <= await blocks_of(service, NEW)

        await until(is_handed_over)
        assert await asyncio.to_thread(stand.new.complete, [*SECOND, 1]) == len(SECOND)


async def test_without_the_credential_nothing_is_said(stand: Stand) -> None:
    async with client_session() as session:
        service = ServiceEngines("team", "chat", EngineAdmin(session), asyncio.Semaphore(4), lambda: 7.0)
        service.know({OLD.uid: Address(stand.old.admin_url, {})})
        await service.look_at_cache(OLD)
        told = service.seen[OLD.uid]
        assert "401" in getattr(told.load, "why", "")
        assert "401" in getattr(told.cache, "why", "")
