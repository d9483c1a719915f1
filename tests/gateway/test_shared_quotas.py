"""Several gateways, each a process, that count in one real Redis; it dies, and comes back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from support_gateway import MODEL, Upstream
from support_gateway_process import Running, engine, gateway_process
from support_redis import RedisServer, redis_server

from sapwood_gateway.core.tenants import key_digest
from sapwood_tools.bench.servers import free_port

PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [], "max_tokens": 5}
NUM_CLIENTS = 50
NUM_TURNS = 3
"""Requests of each."""
NUM_GATEWAYS = 2
USAGE = {"prompt_tokens": 10, "total_tokens": 15, "completion_tokens": 5}
"""Less than what such a request is charged before it is sent: the body is longer than the prompt."""
AWAY = '"the quota store does not answer'
BACK = '"the quota store answers again"'


def tenant(name: str, quotas: dict[str, int]) -> dict[str, object]:
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"apiKeys": [{"name": "first", "sha256": key_digest(f"sk-{name}").hex()}], "quotas": quotas},
    }


async def answer(_: web.Request) -> web.StreamResponse:
    """Answer as an engine does, and say what was used."""
    return web.json_response({"choices": [], "usage": USAGE})


@asynccontextmanager
async def gateways(
    files: Path,
    server: Upstream,
    url: str,
    failure: str,
    quotas: dict[str, dict[str, int]],
    *,
    num_gateways: int = NUM_GATEWAYS,
) -> AsyncIterator[list[Running]]:
    """Run gateways with a tenant for each of ``quotas``."""
    (files / "tenants.yaml").write_text("\n---\n".join(json.dumps(tenant(*each)) for each in quotas.items()))
    (files / "credential").write_text("of-the-engines")
    options = (
        f"--tenants={files / 'tenants.yaml'}",
        f"--engine-credential-file={files / 'credential'}",
        f"--quota-store={url}",
        f"--quota-store-failure={failure}",
        "--log-level=warning",  # nobody reads the log while the gateway runs
    )
    async with AsyncExitStack() as stack:
        starts = [gateway_process(server, options=options) for _ in range(num_gateways)]
        running = [await stack.enter_async_context(start) for start in starts]
        async with asyncio.timeout(60):
            for each in running:
                while not await knows_model(each, next(iter(quotas))):  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.05)  # what is waited for needs the processor
        yield running


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


async def knows_model(running: Running, name: str) -> bool:
    """Whether the gateway has heard of the engine: on a busy machine its first question may have come to nothing."""
    async with running.client.get("/v1/models", headers=key(name)) as response:
        return response.status == 200 and len((await response.json())["data"]) == 1


async def ask(running: Running, name: str) -> tuple[int, str]:
    """Return the status and the code of the error, empty where there is none."""
    async with running.client.post(PATH, json=BODY, headers=key(name)) as response:
        return response.status, (await response.json()).get("error", {}).get("code", "")


async def storm(running: list[Running], name: str) -> Counter[int]:
    """Let many clients ask as often as they can, over all gateways; who is told that nobody can count asks again."""
    counts: Counter[int] = Counter()

    async def client(number: int) -> None:
        for turn in range(NUM_TURNS):
            while (status := (await ask(running[(number + turn) % len(running)], name))[0]) == 503:
                pass
            counts[status] += 1

    await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))
    return counts


async def failures(running: Running) -> float:
    async with running.client.get(running.admin_url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    [line] = [each for each in lines if each.startswith("sapwood_gateway_quota_store_failures_total ")]
    return float(line.split()[1])


async def ended(running: Running) -> str:
    """End a gateway, and return what it has logged."""
    running.process.terminate()
    assert await running.process.wait() == 0
    assert running.process.stderr is not None
    return (await running.process.stderr.read()).decode()


@dataclass
class Sharing:
    """Gateways that share a Redis, and the engine behind them."""

    server: Upstream
    running: list[Running]
    most_at_once: int = 0


LIMITS = {"by-day": ("requestsPerDay", 60, 86_400, 1), "by-minute": ("requestsPerMinute", 60, 60, 1)} | {
    "by-tokens": ("tokensPerDay", 900, 86_400, 15)
}
"""Tenant -> quota, limit, seconds of its window, what an answer uses."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sharing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sharing]:
    """Two gateways, for several tests: they take seconds to start."""

    async def slow(request: web.Request) -> web.StreamResponse:
        shared.most_at_once = max(shared.most_at_once, server.num_running)
        for _ in range(100):
            await asyncio.sleep(0)
        return await answer(request)

    quotas = {name: {quota: limit} for name, (quota, limit, _, _) in LIMITS.items()} | {
        "at-once": {"concurrentRequests": 4}
    }
    files = tmp_path_factory.mktemp("sharing")
    async with (
        redis_server() as redis,
        engine(slow) as server,
        gateways(files, server, redis.url, "closed", quotas) as running,
    ):
        shared = Sharing(server, running)
        yield shared


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", LIMITS)
async def test_two_gateways_let_no_more_through_than_the_limit_and_one_request_each(
    sharing: Sharing, name: str
) -> None:
    _, limit, seconds, use = LIMITS[name]
    num_before, failed_before = len(sharing.server.bodies), await num_failures(sharing)
    first = time.time() // seconds
    counts = await storm(sharing.running, name)
    # What was put by for those under way, and not used, is there again for one who asks alone.
    while (await ask(sharing.running[0], name))[0] == 200:
        counts[200] += 1
    num_windows = time.time() // seconds - first + 1
    let_through = len(sharing.server.bodies) - num_before
    assert set(counts) == {200, 429}
    assert counts[200] == let_through
    assert let_through * use <= num_windows * (limit + NUM_GATEWAYS * use)
    if await num_failures(sharing) == failed_before:  # what a store on a busy machine is late with is lost
        # One whose price does not fit is refused, though what it would use may: so near to the limit at least.
        assert let_through * use >= limit - 2 * use


@pytest.mark.asyncio(loop_scope="module")
async def test_two_gateways_let_no_more_run_at_once_than_may(sharing: Sharing) -> None:
    sharing.most_at_once = 0
    counts = await storm(sharing.running, "at-once")
    assert set(counts) == {200, 429}
    assert 0 < sharing.most_at_once <= 4 + NUM_GATEWAYS


async def num_failures(sharing: Sharing) -> float:
    return sum([await failures(each) for each in sharing.running])


@pytest.mark.parametrize(("failure", "meanwhile"), [("open", (200, "")), ("closed", (503, "quota_store_unavailable"))])
async def test_a_redis_that_dies_changes_what_is_let_in_as_the_options_say_and_nothing_else(
    tmp_path: Path, redis: RedisServer, failure: str, meanwhile: tuple[int, str]
) -> None:
    quotas = {"acme": {"requestsPerDay": 3, "tokensPerMinute": 10**6, "concurrentRequests": 100}, "free": {}}
    async with engine(answer) as server, gateways(tmp_path, server, redis.url, failure, quotas) as running:
        for each in running:
            assert await ask(each, "acme") == (200, "")
        asking = [asyncio.create_task(ask(each, "acme")) for each in running for _ in range(NUM_CLIENTS)]
        await asking[0]
        await redis.kill()
        assert {status for status, _ in await asyncio.gather(*asking)} <= {200, 429, 503}
        for each in running:
            assert await ask(each, "acme") == meanwhile
            assert await ask(each, "free") == (200, "")
            assert await failures(each) > 0
        await redis.start()  # empty: it has forgotten what was counted
        async with asyncio.timeout(60):
            while not await limited(running):  # noqa: ASYNC110  # they tell nobody
                await asyncio.sleep(0.05)  # what is waited for needs the processor
        logs = [await ended(each) for each in running]
        for log in logs:  # each change is told once
            assert log.count(AWAY) == log.count(BACK) > 0
        assert not [log for log in logs if "acme" in log or "Traceback" in log]


async def limited(running: list[Running]) -> bool:
    """Whether every gateway counts again."""
    return all([await ask(each, "acme") == (429, "quota_exceeded") for each in running])


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
async def test_a_redis_that_is_not_there_at_the_start_keeps_no_gateway_from_starting(tmp_path: Path, host: str) -> None:
    url = f"redis://user:hidden@{host}:{free_port()}/0"
    quotas = {"acme": {"requestsPerDay": 0}}
    async with (
        engine(answer) as server,
        gateways(tmp_path, server, url, "open", quotas, num_gateways=1) as [running],
    ):
        assert await ask(running, "acme") == (200, "")
        assert await ask(running, "acme") == (200, "")
        log = await ended(running)
        assert log.count(AWAY) == 1
        assert "hidden" not in log


async def test_a_gateway_on_its_own_counts_in_itself(tmp_path: Path) -> None:
    quotas = {"acme": {"requestsPerDay": 1}}
    async with engine(answer) as server, gateways(tmp_path, server, "memory", "open", quotas) as running:
        for each in running:
            assert [await ask(each, "acme") for _ in range(2)] == [(200, ""), (429, "quota_exceeded")]
