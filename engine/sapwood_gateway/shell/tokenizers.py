"""Tokenizers of the models that are routed by prefix, each fetched once from a replica that has it.

Until one is there, and where none can be had, prompts of token ids alone are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import aiohttp

from sapwood_contract.http import ADMIN_TOKENIZER, MAX_TOKENIZER_BYTES
from sapwood_gateway.shell.prompts import TokenIdPrompts
from sapwood_gateway.shell.upstream import read_at_most

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_MOST_AT_ONCE = 1
"""A large one takes some hundred MB for a moment."""


class ReadsOneModel(Protocol):
    """`sapwood_text.prompt_reader.PromptReader` is one."""

    @property
    def model_revision(self) -> str:
        """Whose prompts it reads."""

    def read(self, path: str, body: Any, /) -> object:
        """Return the token ids of the prompt in ``body`` as a tuple, or something else."""


class Tokenizers:
    """Reads the prompts of every model that is `want`ed; for one event loop, but for `read`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        build: Callable[[bytes], ReadsOneModel] | None,
        *,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        """``build``: makes a reader of what an engine answers; None: nothing is fetched."""
        self._session = session
        self._build = build
        self._retry_seconds = retry_seconds
        self._token_ids = TokenIdPrompts()
        self._readers: dict[str, ReadsOneModel] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._seats = asyncio.Semaphore(_MOST_AT_ONCE)

    def want(self, replicas: Mapping[str, str]) -> None:
        """Have a reader for exactly these models soon: revision -> admin address of a replica that has it."""
        if self._build is None:
            return
        for revision in self._readers.keys() - replicas.keys():
            del self._readers[revision]
        for revision, admin_url in replicas.items():
            if revision not in self._readers and revision not in self._fetching:
                self._fetching[revision] = asyncio.create_task(self._fetch(revision, admin_url, self._build))

    def read(self, model_revision: str, path: str, body: Mapping[str, Any]) -> Sequence[int] | None:
        reader = self._readers.get(model_revision)
        if reader is None:
            return self._token_ids.read(model_revision, path, body)
        token_ids = reader.read(path, body)
        return token_ids if isinstance(token_ids, tuple) else None

    async def close(self) -> None:
        """Fetch nothing any more."""
        fetching = list(self._fetching.values())
        for each in fetching:
            each.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)

    async def _fetch(self, revision: str, admin_url: str, build: Callable[[bytes], ReadsOneModel]) -> None:
        """Fetch one reader; where that fails, wait, so that `want` does not ask again at once."""
        try:
            async with self._seats:
                timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
                async with self._session.get(
                    admin_url + ADMIN_TOKENIZER, timeout=timeout, allow_redirects=False
                ) as response:
                    response.raise_for_status()
                    bundle = await read_at_most(response, MAX_TOKENIZER_BYTES)
                reader = await asyncio.to_thread(build, bundle)
            if reader.model_revision != revision:
                raise ValueError(f"it is of revision {reader.model_revision}")
            self._readers[revision] = reader
        except Exception as error:  # what answers may be anybody's program
            extra = {"model_revision": revision, "reason": repr(error)[:200]}
            _log.warning("no tokenizer: prompts of this model are routed by load, but for token ids", extra=extra)
            await asyncio.sleep(self._retry_seconds)
        finally:
            del self._fetching[revision]
