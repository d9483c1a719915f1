"""An API server that a test plays on a real socket, and the kubeconfig that leads there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from support_gateway import serving


@asynccontextmanager
async def kubeconfig(
    handle: Callable[[web.Request], Awaitable[web.Response]], folder: Path, *, namespace: str
) -> AsyncIterator[str]:
    """Yield the path of a kubeconfig whose context is in ``namespace``; ``handle`` answers every GET."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    async with serving(app) as url:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "x",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        yield str(path)
