"""Everything that the generations of one call have to say, in one place and as soon as it is said.

Invariant: however the call ends (all finished, a failure, the client gone), every generation's iterator has
been closed when `DeltaFeed.close` returns, which is what aborts the choices that still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive

from sapwood_engine.api.engine_port import Engine
from sapwood_engine.errors import SapwoodError
from sapwood_engine.service.generation import Generation, TextDelta

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody reads the answer any more."""


class DeltaFeed:
    """Merges the deltas of several generations, each numbered by its place among them."""

    def __init__(self, engine: Engine, generations: Sequence[Generation]) -> None:
        self._ready: list[tuple[int, TextDelta]] = []
        self._failure: Exception | None = None
        self._num_open = len(generations)
        self._news = asyncio.Event()
        self._pumps = [asyncio.create_task(self._pump(engine, g, place)) for place, g in enumerate(generations)]

    async def _pump(self, engine: Engine, generation: Generation, place: int) -> None:
        try:
            async with aclosing(engine.generate(generation)) as deltas:
                async for delta in deltas:
                    self._ready.append((place, delta))
                    self._news.set()
        except Exception as error:
            self._failure = self._failure or error
            if generation.trace is not None and isinstance(error, SapwoodError):
                generation.trace.failed(error)
        finally:
            self._num_open -= 1
            self._news.set()

    async def next_batch(self) -> list[tuple[int, TextDelta]]:
        """Return all deltas there are, waiting for the first; empty once all generations have ended.

        A failure of one generation is raised after the deltas that came before it, and ends the call.
        """
        while not self._ready and self._failure is None and self._num_open:
            self._news.clear()
            await self._news.wait()
        if not self._ready and self._failure is not None:
            raise self._failure
        batch, self._ready = self._ready, []
        return batch

    async def close(self) -> None:
        """Close every generation's iterator, aborting what still runs."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; cancel it and raise `ClientGone` as soon as the client disconnects."""
    watch = asyncio.ensure_future(_disconnect(receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
