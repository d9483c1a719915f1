"""One attempt: a request sent to one replica, as far as the first byte of its answer."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from sapwood_gateway.core.retry import FailureReason, is_retried
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell import headers
from sapwood_gateway.shell.call import Call

_REFUSAL_BYTES = 2**16
"""How much of a refusal is read; it is held whole, for it may be the last word."""


@dataclass(frozen=True, slots=True)
class Answering:
    """The answer has begun. Whoever holds it closes ``response``, in every case."""

    response: aiohttp.ClientResponse
    first: bytes
    """What of the body came first; empty where there is no more."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A whole answer that another replica may better."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer at all."""

    reason: FailureReason


class TooLong(Exception):
    """An answer has more bytes than it may."""


class UpstreamEnded(Exception):
    """An answer broke off after it had begun."""


def new_session(connect_timeout_seconds: float) -> aiohttp.ClientSession:
    """Return the client that all attempts share; no limit but that on connecting, for generations take minutes.

    A connection carries one request. A kept one may be closed by the engine at the very moment of its next use, which
    cannot be told from an engine that died; a new one costs a fraction of a millisecond inside a cluster.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_seconds),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


async def send(
    session: aiohttp.ClientSession,
    call: Call,
    replica: Replica,
    *,
    first_byte_seconds: float | None,
    refusal_seconds: float,
) -> Answering | Refused | Failed:
    """Send ``call`` to ``replica`` and wait for the answer to begin, for ever where ``first_byte_seconds`` is None.

    A refusal that takes longer than ``refusal_seconds`` from its head to its end, or is too long, is no answer.
    """
    try:
        async with asyncio.timeout(first_byte_seconds):
            return await _send(session, call, replica, refusal_seconds)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        return Failed("connect")
    except TimeoutError:
        return Failed("timeout")
    except (aiohttp.ClientError, OSError):
        return Failed("broken")


async def _send(
    session: aiohttp.ClientSession, call: Call, replica: Replica, refusal_seconds: float
) -> Answering | Refused | Failed:
    response = await session.request(
        call.request.method,
        URL(replica.url + call.request.path_qs, encoded=True),
        headers=headers.for_engine(call.request.headers, call.request_id, call.passport.headers, call.trace.headers),
        data=io.BytesIO(call.body),  # sent in pieces, so that a large body holds up nobody
        allow_redirects=False,
    )
    try:
        if not headers.can_be_passed_on(response.status, response.reason, response.headers):
            response.close()
            return Failed("broken")
        if is_retried(response.status):
            return await _refusal(response, refusal_seconds)
        return Answering(response, await response.content.readany())
    except BaseException:
        response.close()
        raise


async def _refusal(response: aiohttp.ClientResponse, seconds: float) -> Refused | Failed:
    try:
        async with asyncio.timeout(seconds):
            return Refused(response.status, response.headers, await read_at_most(response, _REFUSAL_BYTES))
    except (TimeoutError, TooLong):
        response.close()
        return Failed("broken")


async def read_at_most(response: aiohttp.ClientResponse, num_bytes: int) -> bytes:
    """Return the whole body; raises `TooLong` where it has more than ``num_bytes``, and what aiohttp does."""
    body = bytearray()
    while piece := await response.content.readany():
        body += piece
        if len(body) > num_bytes:
            raise TooLong
    return bytes(body)


async def next_piece(response: aiohttp.ClientResponse) -> bytes:
    """Return what of the body has come since, as soon as there is something; empty at its end.

    Raises `UpstreamEnded` where it breaks off.
    """
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamEnded from error
