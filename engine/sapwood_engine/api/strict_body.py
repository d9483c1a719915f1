"""Reads request bodies: bounded in size, and text that UTF-8 can carry.

FastAPI's own limit answers in plain text, so the bytes are counted here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

DEFAULT_MAX_BODY_BYTES = 16 * 2**20
"""Over 2 million token ids, or the text of a 4-million-token prompt; more is a mistake or an attack."""


class StrictRequest(Request):
    """A request whose body fits ``app.state.max_body_bytes`` and holds text that UTF-8 can carry."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limit: int = self.app.state.max_body_bytes
            received = bytearray()
            async for piece in self.stream():
                received += piece
                if len(received) > limit:
                    raise HTTPException(413, f"the body is larger than the {limit} bytes that this server takes")
            self._body = bytes(received)
        return self._body

    async def json(self) -> Any:
        raw = await self.body()
        value = json.loads(raw)
        if b"\\ud" in raw.lower():
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise json.JSONDecodeError(
                    "a \\ud… escape without its other half", "", raw.lower().index(b"\\ud")
                ) from error
        return value


class StrictRoute(APIRoute):
    """A route that hands its endpoint a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
