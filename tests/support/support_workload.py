"""A service's last hour as gateways tell it, and stand-ins of gateways that do."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from support_gateway import serving

from sapwood_contract.http import GATEWAY_TRACE, TRACE_SECONDS, ServiceTrace, TracedRequest


def traced(
    *requests: tuple[float, int, Sequence[int]], names: Sequence[bytes] = (), covered: float = TRACE_SECONDS
) -> ServiceTrace:
    """Return an answer with these: (seconds into the hour, tokens of the prompt, ids), each answered with 9 tokens."""
    return ServiceTrace(
        covered_seconds=covered,
        requests=tuple(TracedRequest(round(at * 1000), tokens, 9, tuple(ids)) for at, tokens, ids in requests),
        block_names=b64encode(b"".join(names)).decode(),
    )


def an_hour(num_requests: int = 300) -> ServiceTrace:
    """Return what fills most of an hour: five beginnings, each followed by something new."""
    return traced(*((at * 10.0, 1_100, (at % 5, 10 + at, 1_000 + at)) for at in range(num_requests)))


@asynccontextmanager
async def gateway_that_says(
    answer: ServiceTrace | bytes, asked: list[dict[str, str]] | None = None
) -> AsyncIterator[str]:
    """Yield the address of one; ``asked``: gets each query."""

    async def show(request: web.Request) -> web.Response:
        if asked is not None:
            asked.append({**request.query, "Authorization": request.headers.get("Authorization", "")})
        body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        return web.Response(body=body, content_type="application/json")

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"state": "ready"})

    app = web.Application()
    app.router.add_get(GATEWAY_TRACE, show)
    app.router.add_get("/livez", live)
    async with serving(app) as url:
        yield url
