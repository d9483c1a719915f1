"""Streams of chat answers, asked for and counted with as little work a token as Python allows, in a process of its own.

``python bench/stream_client.py``: a JSON object a line on stdin says what to do, one on stdout says what came of it:

- ``{"do": "first", "url": …, "count": N, "sentences": M}``: N requests one after the other over one connection each,
  with prompts of M times 20 tokens that no other request has; seconds from the request to its first event.
- ``{"do": "rate", "url": …, "streams": N, "rate": R, "seconds": S, "pids": {NAME: PID}}``: tokens a second of N streams
  together, once all of them have begun, and how many cores each of those processes and this one used meanwhile.
- ``{"do": "leave", "url": …, "engine": …, "count": N}``: N streams that are left after their first event; seconds until
  the stand-in behind them knows.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import psutil

from stand_in import MODEL, RATE_HEADER

_PATIENCE_SECONDS = 60.0
_SENTENCE = "Once upon a time there was an engine that answered whoever asked it, and nobody asked it twice. "
"""About 20 tokens; each request has its id before them, so that no two begin alike."""
_SELDOM = 0.01
"""Tokens a second of streams of which only the first one counts."""


class Stream(asyncio.Protocol):
    """One request and the events of its answer."""

    def __init__(self, rate: float, num_sentences: int = 1) -> None:
        self._rate = rate
        self._num_sentences = num_sentences
        self.request_id = uuid.uuid4().hex
        self.sent_at = 0.0
        self.first_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.num_events = 0
        self._last = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        message = {"role": "user", "content": f"{self.request_id} {_SENTENCE * self._num_sentences}"}
        body = json.dumps({"model": MODEL, "messages": [message], "stream": True}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {self.request_id}\r\n{RATE_HEADER}: {self._rate}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.sent_at = time.perf_counter()
        transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        """Count events; one may come in two pieces."""
        self.num_events += data.count(b"}\n\n") + (self._last + data[:2]).count(b"}\n\n")
        self._last = (self._last + data)[-2:]
        if self.num_events and not self.first_at.done():
            self.first_at.set_result(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for ever."""
        if not self.first_at.done():
            self.first_at.set_exception(exc or ConnectionError("ended without an event"))


async def opened(url: str, rate: float, num_sentences: int = 1) -> Stream:
    """Connect and ask."""
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(rate, num_sentences), *_address(url))
    return stream


async def first(url: str, count: int, sentences: int) -> list[float]:
    """Return the seconds to the first event of each request."""
    seconds = []
    for _ in range(count):
        stream = await opened(url, _SELDOM, sentences)
        seconds.append(await stream.first_at - stream.sent_at)
        stream.transport.abort()
    return seconds


async def rate(url: str, streams: int, rate: float, seconds: float, pids: dict[str, int]) -> dict[str, float]:
    """Return the tokens a second of all streams, and the cores that processes used, by their names."""
    processes = {name: psutil.Process(pid) for name, pid in (pids | {"client": os.getpid()}).items()}
    running = await asyncio.gather(*(opened(url, rate) for _ in range(streams)))
    try:
        await asyncio.gather(*(stream.first_at for stream in running))
        await asyncio.sleep(0.5)
        used = {name: -_cpu_seconds(process) for name, process in processes.items()}
        count, begin = -sum(stream.num_events for stream in running), time.perf_counter()
        await asyncio.sleep(seconds)
        count, took = count + sum(stream.num_events for stream in running), time.perf_counter() - begin
        cores = {name: (used[name] + _cpu_seconds(process)) / took for name, process in processes.items()}
        return {"tokens_per_second": count / took, **cores}
    finally:
        for stream in running:
            stream.transport.abort()


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def leave(url: str, engine: str, count: int) -> list[float]:
    """Return the seconds from leaving each stream to the moment in which the engine knew."""
    seconds = []
    for _ in range(count):
        stream = await opened(url, _SELDOM)
        await stream.first_at
        left_at = time.monotonic()
        stream.transport.close()
        seconds.append(await _closed_at(engine, stream.request_id) - left_at)
    return seconds


async def _closed_at(engine: str, request_id: str) -> float:
    reader, writer = await asyncio.open_connection(*_address(engine))
    writer.write(f"GET /closed/{request_id} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    at = json.loads(await reader.readuntil(b"}"))["at"]
    writer.close()
    return float(at)


def _address(url: str) -> tuple[str, int]:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    return address.hostname, address.port


async def _obey(order: dict[str, Any]) -> object:
    do = {"first": first, "rate": rate, "leave": leave}[order.pop("do")]
    async with asyncio.timeout(_PATIENCE_SECONDS):
        return await do(**order)  # type: ignore[operator]  # each order has the arguments of its function


def main(_: Sequence[str]) -> int:
    """Do as told until there is no more."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(_obey(json.loads(line)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
