"""Asks the operator what it knows of a service that scales, for the console."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import aiohttp

from sapwood_contract.http import OPERATOR_NOT_LEADING
from sapwood_gateway.shell import openai
from sapwood_gateway.shell.upstream import TooLong, read_at_most

_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 2**20
_TRIES = 10
_PAUSE_SECONDS = 0.1
"""Between tries: the Service leads to any of several operators, of which one leads."""


class OperatorPort:
    """The operators behind one address."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    async def ask(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the JSON that the leader answers at ``path``.

        Raises `openai.BadRequest` with the operator's reason and sentence where it has no answer to that question, and
        `openai.Unavailable` where no operator answers, or none that leads.
        """
        for _ in range(_TRIES):
            status, body = await self._get(path, query)
            if status == 200:
                return body
            reason, message = _refusal(body)
            if reason != OPERATOR_NOT_LEADING:
                if 400 <= status < 500 and reason:
                    raise openai.BadRequest(status, message, code=reason)
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            raise openai.Unavailable(503, "No operator leads just now.", code="not_leading")
        raise openai.Unavailable(502, "The operator gives no answer that can be shown.", code="operator_failed")

    async def _get(self, path: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                self._url + path, params=query, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await read_at_most(response, _MAX_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, TooLong):
            raise openai.Unavailable(502, "The operator does not answer.", code="operator_unreachable") from None


def _refusal(body: bytes) -> tuple[str, str]:
    """Return reason and sentence; empty where something else than an operator answered."""
    try:
        told = json.loads(body)
        return str(told["reason"]), str(told["message"])
    except (ValueError, LookupError, TypeError):
        return "", ""
