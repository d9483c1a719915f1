"""What engines did, from a Prometheus that scrapes them: one query a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import aiohttp

from sapwood_operator.adapters.asking import Unanswered, get
from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.prometheus_answers import query, read_answer
from sapwood_operator.autoscaling.scrapes import NoScrape
from sapwood_operator.autoscaling.signals import EnginePod, Heard

_MOST_AT_ONCE = 8
_QUERY = "/api/v1/query"


class PrometheusSignals:
    """Asks one Prometheus. Belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        """``url``: what comes before ``/api/v1``."""
        self._session, self._url = session, url.rstrip("/") + _QUERY
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def ask(self, service: Watched) -> dict[str, Heard]:
        """Return what is new of each pod, by its uid."""
        async with self._turns:
            try:
                body = await get(self._session, self._url, params={"query": query(service.namespace, service.name)})
            except Unanswered as error:
                problem = NoScrape(f"Prometheus {error}")
                return {pod.uid: Heard(problem=problem) for pod in service.pods}
        return await asyncio.to_thread(_read, body, service.pods)


def _read(body: bytes, pods: Sequence[EnginePod]) -> dict[str, Heard]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    return read_answer(answer, pods)
