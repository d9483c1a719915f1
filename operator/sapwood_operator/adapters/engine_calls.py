"""Carries out what movements ask of engines, beside the turns: no turn waits for an engine.

What was learned is kept in memory for the next turn, which is woken for it. Whoever starts anew knows nothing and is
asked for the same calls again; to an engine a second time makes no difference. The same call while it is under way does
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from sapwood_operator.adapters.engine_admin import Address, EngineAdmin
from sapwood_operator.adapters.service_engines import ServiceEngines
from sapwood_operator.autoscaling.engines import (
    Engine,
    EngineCall,
    EngineSeen,
    HandOver,
    LookAtCaches,
    LookAtLoad,
    Warm,
)
from sapwood_operator.autoscaling.movement import Lost

_MOST_AT_ONCE = 16
_log = logging.getLogger(__name__)

Name = tuple[str, str]
"""Namespace and name of a service."""
Work = Callable[[], Awaitable[bool]]


class EngineCalls:
    """Belongs to one event loop."""

    def __init__(
        self,
        admin: EngineAdmin,
        *,
        wake: Callable[[str, str], None],
        lose: Callable[[str, str, float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``wake``: told namespace and name of a service of which something was learned; ``lose``: these and how many
        tokens of worth left with a replica and are nowhere else, once a replica; ``clock``: Unix time.
        """
        self._admin, self._wake, self._lose, self._clock = admin, wake, lose, clock
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        self._services: dict[Name, ServiceEngines] = {}
        self._counted: dict[Name, set[str]] = {}
        """Uids of pods whose loss was counted, of those that there are still."""
        self._tasks: dict[tuple[str, Engine], asyncio.Task[None]] = {}

    def known(self, namespace: str, name: str) -> Mapping[str, EngineSeen]:
        """Return what is known of a service's engines, by the uids of their pods."""
        service = self._services.get((namespace, name))
        return service.seen if service else {}

    def carry_out(
        self,
        namespace: str,
        name: str,
        calls: Iterable[EngineCall],
        lost: Iterable[Lost],
        addresses: Mapping[str, Address],
    ) -> None:
        """Begin ``calls``, and count what is ``lost`` with replicas that the Deployment was told to let go.

        ``addresses``: of all engines that have one, by the uids of their pods; any other is forgotten.
        """
        key = (namespace, name)
        counted = self._counted.get(key, set()) & addresses.keys()
        for each in lost:
            if each.uid not in counted:
                counted.add(each.uid)
                self._lose(namespace, name, each.tokens)
        self._counted[key] = counted
        service = self._services.get(key) or ServiceEngines(namespace, name, self._admin, self._turns, self._clock)
        self._services[key] = service
        service.know(addresses)
        for call in calls:
            for doing, engine, work in _works(service, call):
                self._begin(key, (doing, engine), work)

    def forget(self, namespace: str, name: str) -> None:
        """The service is gone."""
        self._services.pop((namespace, name), None)
        self._counted.pop((namespace, name), None)

    async def finish(self) -> None:
        """End all calls under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: Name, what: tuple[str, Engine], work: Work) -> None:
        if what not in self._tasks:
            task = asyncio.create_task(self._run(key, what[0], work))
            self._tasks[what] = task
            task.add_done_callback(lambda _: self._tasks.pop(what, None))

    async def _run(self, key: Name, doing: str, work: Work) -> None:
        try:
            is_news = await work()
        except Exception:
            # A mistake of ours about one engine must not stop the others.
            _log.exception("asking an engine failed", extra={"service": "/".join(key), "doing": doing})
            is_news = False
        if is_news:
            self._wake(*key)


def _works(service: ServiceEngines, call: EngineCall) -> list[tuple[str, Engine, Work]]:
    match call:
        case LookAtLoad(engines):
            return [("load", engine, partial(service.look_at_load, engine)) for engine in engines]
        case LookAtCaches(engines):
            return [("cache", engine, partial(service.look_at_cache, engine)) for engine in engines]
        case HandOver(victim):
            return [("hand over", victim, partial(service.hand_over, call))]
        case Warm(newcomer):
            return [("warm", newcomer, partial(service.warm, call))]
