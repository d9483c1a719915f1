"""Server-sent events: one write for everything that is ready, and an honest end.

A stream that ends well ends with ``[DONE]``. One that fails after its first byte ends with one error event
and nothing more, so that no client can take it for complete.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from sapwood_engine.api.deltas import ClientGone, DeltaFeed, until_gone
from sapwood_engine.api.errors import CLIENT_CLOSED_REQUEST, INTERNAL_ERROR, OUTCOME, error_answer
from sapwood_engine.errors import SapwoodError

log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()
_DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """Return one event carrying ``value`` as JSON."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def comment(value: Any) -> bytes:
    """Return ``value`` as JSON in a comment, which no client takes for an event."""
    return b": " + _encoder.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends what ``batches`` yields, each item in one write; stops at once when the client leaves.

    ``feed``, which ``batches`` reads, is closed in every case.
    """

    media_type = "text/event-stream"

    def __init__(self, batches: AsyncIterator[bytes], feed: DeltaFeed) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._batches = batches
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send_all(scope, send))
        except ClientGone:
            scope["state"][OUTCOME] = CLIENT_CLOSED_REQUEST
            log.debug("client left a stream")
        finally:
            await self._feed.close()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for batch in self._batches:
                await send({"type": "http.response.body", "body": batch, "more_body": True})
            last = _DONE
        except SapwoodError as error:
            log.error("stream failed: %s", error)
            scope["state"][OUTCOME], answer = error_answer(error)
            last = event(answer)
        except Exception:
            log.exception("stream failed on a fault of ours")
            scope["state"][OUTCOME] = 500
            last = event(INTERNAL_ERROR)
        await send({"type": "http.response.body", "body": last, "more_body": False})
