"""Asks every engine the four questions, and the gateway one: so many at once, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import aiohttp

from sapwood_contract.http import ADMIN_ABORT, ADMIN_CACHE, ADMIN_FLUSH, ADMIN_LOAD, ADMIN_REQUESTS, LIVEZ, METRICS
from sapwood_tools.admin_client import AdminClient, Unanswered, client_session
from sapwood_tools.top import fields
from sapwood_tools.top.engines import EngineAddress, Place
from sapwood_tools.top.figures import read_figures
from sapwood_tools.top.gateway_figures import read_gateway_figures
from sapwood_tools.top.samples import Sample, read_cache, read_load, read_requests
from sapwood_tools.top.source import GatewayAnswer, Poll

TIMEOUT_SECONDS = 5.0
_MOST_AT_ONCE = 8
"""Engines that are asked at the same time."""
_NODES = 1_000
_ENDED_REQUESTS = 50
_NOT_UNDERSTOOD = "answers with something that is not understood: is it the admin address of a Sapwood engine?"

_Answer = TypeVar("_Answer")


class Poller:
    """Asks the engines of a place; make it with `polling`."""

    def __init__(self, session: aiohttp.ClientSession, place: Place) -> None:
        self._session, self._place = session, place
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def ask(self) -> Poll:
        """As `Source.ask`."""
        addresses = self._place.addresses()
        samples, gateway = await asyncio.gather(asyncio.gather(*map(self._sample, addresses)), self._gateway())
        return Poll(tuple(zip(addresses, samples, strict=True)), gateway)

    async def abort(self, url: str, request_id: str) -> int:
        """As `Source.abort`."""
        return await self._order(url, ADMIN_ABORT, {"request_id": request_id}, "num_aborted")

    async def flush(self, url: str) -> int:
        """As `Source.flush`."""
        return await self._order(url, ADMIN_FLUSH, None, "num_tokens")

    async def _order(self, url: str, path: str, body: Mapping[str, str] | None, counted: str) -> int:
        answer = await self._client(url).post(path, body)
        try:
            return fields.count(answer[counted])
        except (LookupError, TypeError, ValueError):
            raise Unanswered(_NOT_UNDERSTOOD) from None

    def _client(self, url: str) -> AdminClient:
        return AdminClient(self._session, url)

    async def _sample(self, address: EngineAddress) -> Sample:
        client = self._client(address.url)
        async with self._turns:
            load, figures, requests, cache = await asyncio.gather(
                _answered(partial(client.json, ADMIN_LOAD), read_load),
                _answered(partial(client.text, METRICS), read_figures),
                _answered(partial(client.json, ADMIN_REQUESTS, limit=_ENDED_REQUESTS), read_requests),
                _answered(partial(client.json, ADMIN_CACHE, max_nodes=_NODES), read_cache),
            )
        problems = [problem for _, problem in (load, figures, requests, cache) if problem]
        found = Sample(time.monotonic(), load[0], figures[0], requests[0], cache[0])
        return replace(found, problem=problems[0]) if problems else found

    async def _gateway(self) -> GatewayAnswer | None:
        url = self._place.gateway
        if url is None:
            return None
        figures, problem = await _answered(partial(self._client(url).text, METRICS), read_gateway_figures)
        return GatewayAnswer(url, time.monotonic(), figures, problem)


async def _answered(
    ask: Callable[[], Awaitable[Any]], read: Callable[[Any], _Answer | None]
) -> tuple[_Answer | None, str]:
    """Return what the answer says, or why it says nothing: one bad engine does not take the view of the others."""
    try:
        found = read(await ask())
    except Unanswered as error:
        return None, str(error)
    except (LookupError, TypeError, ValueError, AttributeError):
        found = None
    return found, "" if found is not None else _NOT_UNDERSTOOD


@contextlib.asynccontextmanager
async def polling(place: Place) -> AsyncIterator[Poller]:
    """Yield a poller of ``place``."""
    async with client_session(key=place.key, timeout_seconds=TIMEOUT_SECONDS) as session:
        yield Poller(session, place)


async def is_alive(url: str) -> bool:
    """Whether a program answers at an admin address, ready or not."""
    async with client_session(key=None, timeout_seconds=TIMEOUT_SECONDS) as session:
        try:
            await AdminClient(session, url).text(LIVEZ)
        except Unanswered:
            return False
    return True
