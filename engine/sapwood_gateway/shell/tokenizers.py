"""Tokenizers of the models that are routed by prefix, each fetched once from a replica that has it.

Until one is there, and where none can be had, prompts of token ids alone are read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import aiohttp

from sapwood_contract.http import ADMIN_TOKENIZER, MAX_TOKENIZER_BYTES
from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.credentials import Shown
from sapwood_gateway.shell.upstream import read_at_most

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_MOST_AT_ONCE = 1
"""A large one takes some hundred MB for a moment."""
_RESTS_PER_LOAD = 4.0
"""So many times as long as one took to load no other is: whoever changes its tokenizer again and again holds up nobody
else's prompts for more than a fifth of the time."""


class KeepsTokenizers(Protocol):
    """What reads prompts with them: `shell.reading_process.ReadingProcess`."""

    def has(self, model: ServedModel) -> bool: ...

    def rests(self, model: ServedModel) -> bool: ...

    def keep(self, models: Collection[ServedModel]) -> None: ...

    async def load(self, model: ServedModel, bundle: bytes) -> None:
        """Raises whatever is wrong with ``bundle``."""


class Tokenizers:
    """Has the tokenizer of every model that is `want`ed; for one event loop."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        keeper: KeepsTokenizers,
        *,
        shown: Shown,
        retry_seconds: float = _RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._keeper = keeper
        self._shown = shown
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._fetching: dict[ServedModel, asyncio.Task[None]] = {}
        self._seats = asyncio.Semaphore(_MOST_AT_ONCE)

    def want(self, models: Mapping[ServedModel, Replica]) -> None:
        """Have exactly these soon: model -> a replica that has its tokenizer."""
        self._keeper.keep(models)
        for model in self._fetching.keys() - models:
            self._fetching[model].cancel()
        for model, replica in models.items():
            if not self._keeper.has(model) and not self._keeper.rests(model) and model not in self._fetching:
                self._fetching[model] = asyncio.create_task(self._fetch(model, replica))

    async def close(self) -> None:
        """Fetch nothing any more."""
        fetching = list(self._fetching.values())
        for each in fetching:
            each.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)

    async def _fetch(self, model: ServedModel, replica: Replica) -> None:
        """Fetch one; where that fails, wait, so that `want` does not ask again at once."""
        try:
            async with self._seats:
                bundle = await self._bundle(replica)
                begin = self._clock()
                try:
                    await self._keeper.load(model, bundle)
                finally:
                    await asyncio.sleep(_RESTS_PER_LOAD * (self._clock() - begin))
        except Exception as error:  # what answers may be anybody's program
            extra = {
                "service": str(model.service),
                "model_revision": model.revision,
                "reason": repr(error)[:200],
            }
            _log.warning("no tokenizer: prompts of this model are routed by load, but for token ids", extra=extra)
            await asyncio.sleep(self._retry_seconds)
        finally:
            del self._fetching[model]

    async def _bundle(self, replica: Replica) -> bytes:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        url, headers = replica.admin_url + ADMIN_TOKENIZER, self._shown(replica.id)
        async with self._session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
            response.raise_for_status()
            return await read_at_most(response, MAX_TOKENIZER_BYTES)
