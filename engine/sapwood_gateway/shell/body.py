"""Bodies of requests as they come in: how large one may be, how long it may take, and how much of all is held at once.

Invariant: what is counted as held is what requests hold; it is given back however a request ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from sapwood_gateway.shell.openai import BadRequest, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """What clients together cannot exceed, whatever they send."""

    max_bytes: int
    """Of one body."""
    max_held_bytes: int
    """Of all bodies together, each from its first byte to the end of its request: it may be sent a second time."""
    timeout_seconds: float
    """From the end of a request's head to the last byte of its body."""


class Bodies:
    """Reads bodies and counts those that are held; for one event loop."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._num_held_bytes = 0

    @contextlib.asynccontextmanager
    async def held(self, request: web.Request) -> AsyncIterator[bytes]:
        """Read a body whole; it counts as held until the block ends.

        Raises `BadRequest` (408, 413, 415) for one that is late, too large or encoded, and `Unavailable` where others
        leave no room for it.
        """
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BadRequest(415, "Send the body as it is, without Content-Encoding.", code="unsupported_encoding")
        self._check(request.content_length or 0, more=0)
        body = bytearray()
        num_bytes = 0
        try:
            async with self._in_time():
                while piece := await request.content.readany():
                    self._check(num_bytes + len(piece), more=len(piece))
                    num_bytes += len(piece)
                    self._num_held_bytes += len(piece)
                    body += piece
            whole = bytes(body)
            del body
            yield whole
        finally:
            self._num_held_bytes -= num_bytes

    def _check(self, num_bytes: int, *, more: int) -> None:
        if num_bytes > self._limits.max_bytes:
            raise BadRequest(
                413, f"The body is larger than the {self._limits.max_bytes} bytes allowed.", code="body_too_large"
            )
        if self._num_held_bytes + more > self._limits.max_held_bytes:
            raise Unavailable(503, "Other requests leave no room for this one's body.", code="gateway_full")

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                yield
        except TimeoutError:
            raise BadRequest(
                408, f"The body did not arrive within {self._limits.timeout_seconds:g} s.", code="body_timeout"
            ) from None
