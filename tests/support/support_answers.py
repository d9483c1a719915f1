"""A stand-in for any program that answers HTTP: it says whatever it is given, also nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from support_gateway import serving


@dataclass(slots=True)
class StandIn:
    """Answers every GET alike."""

    body: bytes = b""
    status: int = 200
    is_silent: bool = False
    """It takes questions and never answers."""
    asked: list[str] = field(default_factory=list)
    """Paths with their queries."""
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        if self.is_silent:
            await self._closing.wait()
        return web.Response(body=self.body, status=self.status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port; yields the address."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        async with serving(app) as url:
            try:
                yield url
            finally:
                self._closing.set()
