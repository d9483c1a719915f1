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
    session: aiohttp.ClientSession, call: Call, replica: Replica, *, first_byte_seconds: float | None
) -> Answering | Refused | Failed:
    """Send ``call`` to ``replica`` and wait for the answer to begin, for ever where ``first_byte_seconds`` is None."""
    try:
        async with asyncio.timeout(first_byte_seconds):
            return await _send(session, call, replica)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        return Failed("connect")
    except TimeoutError:
        return Failed("timeout")
    except (aiohttp.ClientError, OSError):
        return Failed("broken")


async def _send(session: aiohttp.ClientSession, call: Call, replica: Replica) -> Answering | Refused:
    response = await session.request(
        call.request.method,
        URL(replica.url + call.request.path_qs, encoded=True),
        headers=headers.for_engine(call.request.headers, call.request_id),
        data=io.BytesIO(call.body),  # sent in pieces, so that a large body holds up nobody
        allow_redirects=False,
    )
    try:
        if is_retried(response.status):
            return Refused(response.status, response.headers, await response.read())
        return Answering(response, await response.content.readany())
    except BaseException:
        response.close()
        raise


async def next_piece(response: aiohttp.ClientResponse) -> bytes:
    """Return what of the body has come since, as soon as there is something; empty at its end.

    Raises `UpstreamEnded` where it breaks off.
    """
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamEnded from error
