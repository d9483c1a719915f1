"""A real redis-server on this machine, which can be killed and started again, and servers that only seem to be one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
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

    @contextlib.asynccontextmanager
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


@contextlib.asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    """Run a redis-server; the test is skipped where the program is not there."""
    server = RedisServer(needs("redis-server"), free_port())
    await server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            await server.kill()


_GREETINGS = (b"CLIENT", b"HELLO", b"SELECT")
"""What a client says when it connects."""


@contextlib.asynccontextmanager
async def false_redis(answer: bytes) -> AsyncIterator[str]:
    """Run a server that greets as a Redis does and says ``answer`` to every question; empty: nothing, for ever.

    Yields its address.
    """
    talks: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks[asyncio.current_task()] = writer
        with contextlib.suppress(ConnectionError):  # the client may not like the answer
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    num_bytes = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(num_bytes + 2))[:-2])
                writer.write(b"+OK\r\n" if words[0].upper() in _GREETINGS else answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1")
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        for task, writer in talks.items():
            writer.transport.abort()
            assert task is not None
            await task
        await server.wait_closed()
