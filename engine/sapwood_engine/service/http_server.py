"""The two HTTP ports: listened on before anything heavy is imported, served by uvicorn, closed without
loss.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

_LAST_BYTES_SECONDS = 3
"""When a port closes, how long a client may take to read the end of its answer."""


class HttpServer:
    """One ASGI application on one listening socket."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        self._socket = listening
        self._server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_LAST_BYTES_SECONDS,
            )
        )

    async def run(self) -> None:
        """Serve until `stop`, then until the answers under way have been read."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Accept no more connections, and let `run` return soon."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: when to end is decided elsewhere."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
