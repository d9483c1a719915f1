"""Reads request bodies: bounded in size, and text that UTF-8 can carry; large ones beside the event loop.

FastAPI's own limit answers in plain text, so the bytes are counted here. A large body is parsed and validated in a
thread, because every stream would stand still meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

T = TypeVar("T")

DEFAULT_MAX_BODY_BYTES = 16 * 2**20
"""Over 2 million token ids, or the text of a 4-million-token prompt; more is a mistake or an attack."""
LARGE_BODY_BYTES = 64 * 2**10
"""Beyond it a body is worth a thread: reading this much takes a millisecond."""

Validate = Callable[[Any], tuple[Any, Sequence[Any]]]
"""A parsed body -> what the endpoint takes, and pydantic's errors, of which there are none where it can be used."""


class StrictRequest(Request):
    """A request whose body fits ``app.state.max_body_bytes`` and holds text that UTF-8 can carry."""

    def __init__(self, scope: Scope, receive: Receive, validate: Validate) -> None:
        super().__init__(scope, receive)
        self._validate = validate

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
        """Return the parsed body; a large one is validated already, which FastAPI's own validation leaves as it is."""
        raw = await self.body()
        if len(raw) <= LARGE_BODY_BYTES:
            return _parse(raw)
        value, errors = await asyncio.to_thread(lambda: self._validate(_parse_in_turns(raw)))
        if errors:
            raise _Invalid(errors)
        return value


class StrictRoute(APIRoute):
    """A route that hands its endpoint a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        def validate(value: Any) -> tuple[Any, Sequence[Any]]:
            assert self.body_field is not None, "only a body is parsed"
            return self.body_field.validate(value, {}, loc=("body",))

        async def strict(request: Request) -> Response:
            try:
                return await handle(StrictRequest(request.scope, request.receive, validate))
            except _Invalid as invalid:
                raise RequestValidationError(invalid.errors) from None

        return strict


class _Invalid(HTTPException):
    """Of HTTPException's kind, because FastAPI takes any other out of `json` for a body that is no JSON."""

    def __init__(self, errors: Sequence[Any]) -> None:
        super().__init__(400)
        self.errors = errors


async def beside_streams(request: Request, work: Callable[[], T]) -> T:
    """Return what ``work`` makes of the request's body: here, or of a large one in a thread."""
    if len(await request.body()) <= LARGE_BODY_BYTES:
        return work()
    return await asyncio.to_thread(work)


def _parse(raw: bytes, **hooks: Any) -> Any:
    value = json.loads(raw, **hooks)
    place = max(raw.find(b"\\ud"), raw.find(b"\\uD"))
    if place >= 0:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise json.JSONDecodeError("a \\ud… escape without its other half", "", place) from error
    return value


def _parse_in_turns(raw: bytes) -> Any:
    """Parse, letting other threads have their turn: the parser keeps the interpreter's lock but where it calls
    Python.
    """
    return _parse(raw, parse_int=lambda text: int(text), object_hook=lambda value: value)
