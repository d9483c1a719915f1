"""``sapwood gateway`` in a process of its own, and engines in the test's loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import aiohttp
from aiohttp import web
from support_gateway import MODEL, Answer, Upstream, serving

from sapwood_contract.http import EngineLoad, LoadSnapshot
from sapwood_tools.bench.servers import free_port

GATEWAY = [sys.executable, "-m", "sapwood", "gateway"]


@dataclass
class Running:
    """A gateway in a process of its own, ready."""

    process: Process
    port: int
    client: aiohttp.ClientSession
    admin_url: str


@asynccontextmanager
async def engine(answer: Answer, state: str = "ready", model: str = MODEL) -> AsyncIterator[Upstream]:
    """An upstream that also says that it is an engine."""
    server = Upstream(answer)

    async def load(_: web.Request) -> web.Response:
        return web.json_response(asdict(EngineLoad(model, state, LoadSnapshot(), knows_gateway=True)))  # type: ignore[arg-type]

    app = web.Application(client_max_size=2**26)
    app.router.add_get("/admin/load", load)
    app.router.add_post("/{path:.*}", server.handle)
    async with serving(app) as url:
        server.url = url
        yield server


@asynccontextmanager
async def gateway_process(
    *engines: Upstream,
    drain_seconds: float = 20.0,
    idle_timeout_seconds: float = 75.0,
    options: Sequence[str] = (),
) -> AsyncIterator[Running]:
    """Run one before ``engines``; ``options``: further ones."""
    port, admin_port = free_port(), free_port()
    listed = [f"--engine={each.url},{each.url}" for each in engines]
    process = await asyncio.create_subprocess_exec(
        *GATEWAY,
        f"--port={port}",
        f"--admin-port={admin_port}",
        f"--drain-seconds={drain_seconds}",
        f"--idle-timeout-seconds={idle_timeout_seconds}",
        *listed,
        *options,
        stderr=subprocess.PIPE,
    )
    try:
        admin_url = f"http://127.0.0.1:{admin_port}"
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            async with asyncio.timeout(60):
                while not await is_ready(client, admin_url):
                    assert process.returncode is None
                    await asyncio.sleep(0.05)  # what is waited for needs the processor
            yield Running(process, port, client, admin_url)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def is_ready(client: aiohttp.ClientSession, admin_url: str) -> bool:
    try:
        async with client.get(admin_url + "/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
