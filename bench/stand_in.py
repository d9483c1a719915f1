"""An engine's stand-in that computes nothing: it sends events of chat answers at a rate that each request names.

``python bench/stand_in.py --port=PORT``. It costs a few microseconds a token, so that what is in front of it is what is
measured. Like an engine it works in steps: all streams of one rate get a token at the same moment. The first one comes
at once, the last one never: a client leaves when it has seen enough. A request says in `RATE_HEADER` how many tokens a
second it wants.

Besides that there are ``GET /admin/load`` and ``/admin/tokenizer``, as of a ready engine of the builtin model, and
``GET /closed/ID``: when the connection of the request with that id has ended, on the machine's monotonic clock; it
answers when it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sapwood_contract.http import ADMIN_LOAD, ADMIN_TOKENIZER, EngineLoad, LoadSnapshot
from sapwood_engine.checkpoint.source import open_checkpoint
from sapwood_engine.service.tokenizer_files import load_tokenizer

MODEL: Final = "bench/stand-in"
RATE_HEADER: Final = "X-Tokens-Per-Second"
_REVISION: Final = "bench"
_LOAD: Final = LoadSnapshot(kv_capacity_tokens=1_000_000, kv_page_tokens=16)
_EVENT: Final = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"bench/stand-in","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}'
    b"]}\n\n"
)
"""As long as those of real engines."""
CHUNK: Final = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK
)


class Streams:
    """All running streams, by rate, and when connections ended; and the ``tokenizer`` that is handed out."""

    def __init__(self, tokenizer: bytes = b"") -> None:
        self.tokenizer = tokenizer
        self._running: dict[float, set[Connection]] = {}
        self._steps: dict[float, asyncio.Task[None]] = {}
        self._closed: dict[str, asyncio.Future[float]] = {}

    def begin(self, connection: Connection, rate: float) -> None:
        """Send ``connection`` a token in each step from now on."""
        self._running.setdefault(rate, set()).add(connection)
        if rate not in self._steps:
            self._steps[rate] = asyncio.create_task(self._step(rate))

    def end(self, connection: Connection, request_id: str) -> None:
        """Send it nothing any more."""
        for running in self._running.values():
            running.discard(connection)
        self.closed(request_id).set_result(time.monotonic())

    async def stop(self) -> None:
        """Send nobody anything any more."""
        for step in self._steps.values():
            step.cancel()
        await asyncio.gather(*self._steps.values(), return_exceptions=True)

    def closed(self, request_id: str) -> asyncio.Future[float]:
        """Return when the connection of a request ended, once it has."""
        return self._closed.setdefault(request_id, asyncio.get_running_loop().create_future())

    async def _step(self, rate: float) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            due = max(due + 1 / rate, clock())
            await asyncio.sleep(due - clock())
            for connection in self._running[rate]:
                connection.send(CHUNK)


class Connection(asyncio.Protocol):
    """One client, and one request after the other."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._received = b""
        self._transport: asyncio.Transport
        self._stream_id = ""
        self._waiting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        self._received += data
        while (request := self._next()) is not None:
            self._answer(*request)

    def connection_lost(self, _: Exception | None) -> None:
        """Note when."""
        if self._stream_id:
            self._streams.end(self, self._stream_id)

    def send(self, data: bytes) -> None:
        """Write it."""
        self._transport.write(data)

    def _next(self) -> tuple[str, dict[str, str]] | None:
        """Return path and headers of the next request that is whole; nobody wants to know its body."""
        head, gap, rest = self._received.partition(b"\r\n\r\n")
        if not gap:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return None
        self._received = rest[length:]
        return first.split()[1], headers

    def _answer(self, path: str, headers: dict[str, str]) -> None:
        if path == ADMIN_LOAD:
            self._say(asdict(EngineLoad(MODEL, "ready", _LOAD, _REVISION)))
        elif path == ADMIN_TOKENIZER:
            self._reply(self._streams.tokenizer)
        elif path.startswith("/closed/"):
            self._waiting = asyncio.create_task(self._say_when_closed(path.rpartition("/")[2]))
        else:
            self._stream_id = headers.get("x-request-id", "")
            self.send(_HEAD)
            self._streams.begin(self, float(headers[RATE_HEADER.lower()]))

    async def _say_when_closed(self, request_id: str) -> None:
        self._say({"at": await self._streams.closed(request_id)})

    def _say(self, document: object) -> None:
        self._reply(json.dumps(document).encode())

    def _reply(self, body: bytes) -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def serve(port: int) -> None:
    """Answer on a port of this machine until cancelled."""
    streams = Streams(load_tokenizer(open_checkpoint("builtin:smollm2-135m")).bundle(_REVISION))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(streams), "127.0.0.1", port, backlog=1_024)
    await server.serve_forever()


def main(argv: Sequence[str]) -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="bench/stand_in.py", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args(list(argv)).port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
