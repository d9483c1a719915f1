"""Runs turns of the work queue: some at once, each key by itself, none lost to an error."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic

from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.handlers.work_queue import K, Take, WorkQueue

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Converged:
    """The turn did all there was to do; look again after ``again_after_seconds`` (infinite: when woken)."""

    again_after_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Something is left to do; not before ``not_before_seconds`` where the server asked for that."""

    reason: str
    message: str
    not_before_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class NothingThere:
    """What the key means does not exist any more."""


Turn = Converged | TryAgain | NothingThere


class Workers(Generic[K]):
    """Gives each key that was woken its turns."""

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Callable[[K], Awaitable[Turn]],
        *,
        kind: str,
        num_workers: int,
        metrics: OperatorMetrics,
    ) -> None:
        """``kind``: of the objects that keys mean, for metrics and logs."""
        self._queue = queue
        self._reconcile = reconcile
        self._slots = asyncio.Semaphore(num_workers)
        self._kind = kind
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._turns: set[asyncio.Task[None]] = set()

    def wake(self, key: K) -> None:
        """Ask for a turn of ``key``. To be called in the loop's thread."""
        self._queue.wake(key, asyncio.get_running_loop().time())
        self._wake.set()

    async def run(self) -> None:
        """Hand out turns until cancelled; turns under way are not, see `finish`."""
        while True:
            await self._slots.acquire()
            try:
                key = await self._next()
            except asyncio.CancelledError:
                self._slots.release()
                raise
            turn = asyncio.create_task(self._turn(key), name=f"reconcile {key}")
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def finish(self, *, within_seconds: float) -> None:
        """Wait for the turns under way, so that none is left half-way without need, then end those that still are."""
        if self._turns:
            await asyncio.wait(self._turns, timeout=within_seconds)
        for turn in self._turns:
            turn.cancel()

    async def _next(self) -> K:
        while True:
            self._wake.clear()
            now = asyncio.get_running_loop().time()
            decision = self._queue.take(now)
            self._metrics.set_queue_depth(self._kind, self._queue.num_due(now))
            if isinstance(decision, Take):
                return decision.key
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if decision.time == math.inf else decision.time):
                    await self._wake.wait()

    async def _turn(self, key: K) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            ending: Turn = await self._reconcile(key)
        except Exception as error:
            # A mistake of ours in one object must not stop the others, nor be forgotten.
            _log.exception("reconcile failed", extra={"kind": self._kind, "key": str(key)})
            ending = TryAgain(type(error).__name__, "see the traceback")
        finally:
            self._slots.release()
        now = clock()
        match ending:
            case Converged(again_after_seconds):
                self._queue.done(key, now, again_after_seconds=again_after_seconds)
            case NothingThere():
                self._queue.forget(key, now)
            case TryAgain(reason, message, not_before_seconds):
                delay = self._queue.failed(key, now, not_before_seconds=not_before_seconds)
                self._metrics.count_error(self._kind)
                details = {"reason": reason, "detail": message, "retry_seconds": round(delay, 3)}
                _log.warning("reconcile will be tried again", extra={"kind": self._kind, "key": str(key), **details})
        self._metrics.observe_reconcile(self._kind, now - began)
        self._wake.set()
