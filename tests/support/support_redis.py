"""A real redis-server on this machine, which can be killed and started again."""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import redis.asyncio
import redis.exceptions
from support_programs import needs

from sapwood_tools.bench.servers import free_port


@dataclass
class RedisServer:
    """Keeps nothing on disk: what it counted is lost with it."""

    program: str
    port: int
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Start it, and return when it answers."""
        assert self.process is None
        options = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no")
        self.process = await asyncio.create_subprocess_exec(
            self.program, "--port", str(self.port), *options, stdout=subprocess.DEVNULL
        )
        async with self.client() as client, asyncio.timeout(60):
            while not await _answers(client):
                assert self.process.returncode is None

    async def kill(self) -> None:
        """End it as a machine that fails does."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()
        self.process = None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[redis.asyncio.Redis]:
        client = redis.asyncio.Redis(port=self.port)
        try:
            yield client
        finally:
            await client.aclose()


async def _answers(client: redis.asyncio.Redis) -> bool:
    try:
        return bool(await client.ping())
    except redis.exceptions.ConnectionError:
        return False


@asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    """Run a redis-server; the test is skipped where the program is not there."""
    server = RedisServer(needs("redis-server"), free_port())
    await server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            await server.kill()
