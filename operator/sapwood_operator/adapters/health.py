"""The operator's own port: ``/healthz``, ``/readyz``, ``/metrics``, ``/runbooks``, to which alerts link, and what
`scaling_port` answers.

Healthy is a program whose event loop answers and whose watches, where it leads, have not broken off for long: a restart
mends nothing else, least of all an API server that is away.
Ready is one that does its job: it waits for its turn to lead, or leads and knows the cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.adapters.scaling_port import NOBODY_LEADS, NotLeading, Outlooks, scaling_routes

Phase = Literal["starting", "standby", "syncing", "leading", "stopping"]
_OWN_STYLE = "default-src 'none'; style-src 'unsafe-inline'"
_READY: frozenset[Phase] = frozenset({"standby", "leading"})


@dataclass(slots=True)
class Health:
    """What the program says of itself."""

    phase: Phase = "starting"
    is_watching: Callable[[], bool] = lambda: True
    """Whether the watches go on; true while there are none."""
    outlooks: Outlooks | NotLeading = NOBODY_LEADS


@asynccontextmanager
async def serve_health(
    health: Health, metrics: OperatorMetrics, *, runbooks: str, host: str, port: int
) -> AsyncIterator[int]:
    """Serve for as long as the context lasts; yields the port, which the system chose where ``port`` is 0.

    ``runbooks``: a page of HTML.

    Raises OSError where the port cannot be had.
    """

    async def healthz(_request: web.Request) -> web.Response:
        watching = health.is_watching()
        return web.Response(text="ok\n" if watching else "nothing is watched\n", status=200 if watching else 503)

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text=f"{health.phase}\n", status=200 if health.phase in _READY else 503)

    async def exposition(request: web.Request) -> web.Response:
        scraped = metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=scraped.body, headers={"Content-Type": scraped.content_type})

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=runbooks, content_type="text/html", headers={"Content-Security-Policy": _OWN_STYLE})

    app = web.Application()
    routes = {"/healthz": healthz, "/readyz": readyz, "/metrics": exposition, "/runbooks": page}
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    app.add_routes(scaling_routes(lambda: health.outlooks))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
