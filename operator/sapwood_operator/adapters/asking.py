"""One HTTP question to a program of ours or to Prometheus: bounded in time and in size, and never tried again here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

TIMEOUT_SECONDS = 2.0
"""For the whole answer; the next question is never far away."""
MOST_BYTES = 64 * 2**20
"""No answer is larger: 90 s of the series of a hundred pods are some 5 MB."""
_CHUNK_BYTES = 2**16


class Unanswered(Exception):
    """There is no answer that can be used; the message says why in a line that begins with a verb."""


def client_session() -> aiohttp.ClientSession:
    """Return a session, to be closed by the caller.

    Its connections are used once: the next question comes when the other side is about to close an idle one.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def get(
    session: aiohttp.ClientSession,
    url: str,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """Return the body of what a GET answers with 200; raises `Unanswered`."""
    question = session.get(url, params=params, **_options(headers, timeout_seconds))
    return await _ask(question, timeout_seconds, most_bytes)


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, *, headers: Mapping[str, str], timeout_seconds: float
) -> bytes:
    """Return the body of what a POST of JSON answers with 200; raises `Unanswered`."""
    headers = {**headers, "Content-Type": "application/json"}
    return await _ask(session.post(url, data=body, **_options(headers, timeout_seconds)), timeout_seconds, MOST_BYTES)


def _options(headers: Mapping[str, str] | None, timeout_seconds: float) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    return {"headers": headers, "allow_redirects": False, "timeout": timeout}


async def _ask(
    question: AbstractAsyncContextManager[aiohttp.ClientResponse], timeout_seconds: float, most_bytes: int
) -> bytes:
    try:
        async with question as answer:
            body = await _read(answer, most_bytes)
            if answer.status != 200:
                raise Unanswered(f"answers {answer.status} {answer.reason or ''}".rstrip())
            return body
    except TimeoutError:
        raise Unanswered(f"does not answer within {timeout_seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unanswered(f"does not answer: {_reason(error)}") from error


async def _read(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    chunks, num_bytes = [], 0
    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
        num_bytes += len(chunk)
        if num_bytes > most_bytes:
            raise Unanswered(f"answers with more than {most_bytes // 2**10:,} KiB")
        chunks.append(chunk)
    return b"".join(chunks)


def _reason(error: Exception) -> str:
    """Return why, without the address, which whoever tells it names."""
    errno = error.errno if isinstance(error, OSError) else None
    return os.strerror(errno) if errno is not None and errno > 0 else type(error).__name__
