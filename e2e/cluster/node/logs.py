"""Serves ``kubectl logs``: what the API server asks a kubelet for, over TLS with a client certificate."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from cluster.layout import KUBELET_PORT

FOLLOW_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Log:
    """The output of one run of a container."""

    path: Path
    is_running: bool


Find = Callable[[str, str, str, bool], Log | None]
"""(namespace, pod, container, previous) -> its log; None where there is no such run."""


async def serve(address: str, find: Find, certificate: Path, key: Path, authority: Path) -> None:
    """Serve until cancelled."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    server = _Server(find)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", server.logs)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, KUBELET_PORT, ssl_context=context).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


class _Server:
    def __init__(self, find: Find) -> None:
        self._find = find

    async def logs(self, request: web.Request) -> web.StreamResponse:
        where, query = request.match_info, request.query
        is_previous = query.get("previous") == "true"
        names = where["namespace"], where["pod"], where["container"]
        log = self._find(*names, is_previous)
        if log is None or not log.path.exists():
            raise web.HTTPNotFound(text=f"no log of container {where['container']!r} of pod {where['pod']!r}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with log.path.open("rb") as file:
            await response.write(tail(file.read(), int(query.get("tailLines", -1))))
            # A run that is followed ends with its process; the next one writes to another file.
            is_followed = query.get("follow") == "true"
            while is_followed:
                is_followed = self._find(*names, is_previous) == Log(log.path, is_running=True)
                await asyncio.sleep(FOLLOW_SECONDS)
                await response.write(file.read())
        await response.write_eof()
        return response


def tail(content: bytes, num_lines: int) -> bytes:
    """Return the last ``num_lines`` lines; all for -1. Pure."""
    if num_lines < 0:
        return content
    return b"".join(content.splitlines(keepends=True)[-num_lines:]) if num_lines else b""
