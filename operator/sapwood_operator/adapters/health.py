"""The operator's own port: ``/healthz``, ``/readyz`` and ``/metrics``.

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

from sapwood_operator.adapters.metrics import CONTENT_TYPE, OperatorMetrics

Phase = Literal["starting", "standby", "syncing", "leading", "stopping"]
_READY: frozenset[Phase] = frozenset({"standby", "leading"})


@dataclass(slots=True)
class Health:
    """What the program says of itself."""

    phase: Phase = "starting"
    is_watching: Callable[[], bool] = lambda: True
    """Whether the watches go on; true while there are none."""


@asynccontextmanager
async def serve_health(health: Health, metrics: OperatorMetrics, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve for as long as the context lasts; yields the port, which the system chose where ``port`` is 0.

    Raises OSError where the port cannot be had.
    """

    async def healthz(_request: web.Request) -> web.Response:
        watching = health.is_watching()
        return web.Response(text="ok\n" if watching else "nothing is watched\n", status=200 if watching else 503)

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text=f"{health.phase}\n", status=200 if health.phase in _READY else 503)

    async def exposition(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)],
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
