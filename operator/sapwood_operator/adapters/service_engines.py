"""The engines of one service while its replicas come and go: what is asked of each, and what is known of it.

Every call ends within a minute, whatever engines do: each question has its bound, and none is tried again here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sapwood_contract.http import EngineLoad, HotPrefixes
from sapwood_contract.keys import replica_id
from sapwood_operator.adapters.asking import Unanswered
from sapwood_operator.adapters.engine_admin import Address, EngineAdmin
from sapwood_operator.autoscaling import engines
from sapwood_operator.autoscaling.engines import NOTHING_SEEN, CacheSeen, Engine, EngineSeen, HandOver, LoadSeen, Warm
from sapwood_operator.autoscaling.hand_over import Taker, gather, share_out
from sapwood_operator.autoscaling.victims import NoCache, read_cache

EVICTABLE_SHARE = 0.25
"""Of what an engine could free, so much may make room for prefixes of others: a cache that works is full, and what was
used least of it is worth little."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an engine said of its load."""

    told: EngineLoad
    load: LoadSeen


class ServiceEngines:
    """Each call returns whether the next turn has something new to decide from. Belongs to one event loop."""

    def __init__(
        self, namespace: str, name: str, admin: EngineAdmin, turns: asyncio.Semaphore, clock: Callable[[], float]
    ) -> None:
        """``turns``: bounds how many questions are asked at once; ``clock``: Unix time."""
        self._namespace, self._name = namespace, name
        self._admin, self._turns, self._clock = admin, turns, clock
        self._addresses: Mapping[str, Address] = {}
        self.seen: Mapping[str, EngineSeen] = {}
        """Uid of a pod -> what is known of its engine."""

    def know(self, addresses: Mapping[str, Address]) -> None:
        """Take in where the engines of all pods are, by the uids of these; forget all others."""
        self._addresses = addresses
        self.seen = {uid: seen for uid, seen in self.seen.items() if uid in addresses}

    async def look_at_load(self, engine: Engine) -> bool:
        """Ask what ``engine`` has to do."""
        former = self._known(engine).load
        answer = await self._load(engine)
        load = answer.load if isinstance(answer, _Answer) else answer
        return _without_time(former) != _without_time(load)

    async def look_at_cache(self, engine: Engine) -> bool:
        """Ask what ``engine`` has to do, and what it holds."""
        await self._load(engine)
        at = self._clock()
        try:
            told = await self._ask(engine, self._admin.cached)
            cache = CacheSeen(at, await asyncio.to_thread(read_cache, told))
        except Unanswered as error:
            self._learn(engine, cache=engines.Unanswered(at, f"it {error}"))
        except ValueError as error:
            self._learn(engine, cache=engines.Unanswered(at, f"it says what makes no sense: {error}"))
        else:
            self._learn(engine, cache=cache)
        return True

    async def hand_over(self, call: HandOver) -> bool:
        """Give those that stay what is worth it of what the victim holds. Whatever comes of it, it is over then."""
        given: Mapping[Engine, HotPrefixes] = {}
        detail = ""
        try:
            hot = await self._ask(call.victim, self._admin.hot)
            takers = await self._takers(call.survivors)
            shares = await asyncio.to_thread(share_out, hot, takers)
            taken = await asyncio.gather(*(self._give(engine, prefixes) for engine, prefixes in shares.items()))
            given = {engine: shares[engine] for engine, is_taken in zip(shares, taken, strict=True) if is_taken}
        except Unanswered as error:
            detail = f"it {error}"
        finally:
            self._learn(call.victim, handed_over=call.since)
        self._tell("prefixes were handed over", call.victim, given.values(), detail)
        return True

    async def warm(self, call: Warm) -> bool:
        """Give a new engine what is worth it of what those hold that serve, and say that this is all."""
        taker = next(iter(await self._takers((call.newcomer,))), None)
        if taker is None:
            return False
        told = await asyncio.gather(*map(self._hot, call.sources))
        given = await asyncio.to_thread(gather, [hot for hot in told if hot is not None], taker)
        if not await self._give(call.newcomer, given):
            return False
        self._learn(call.newcomer, warmed=True)
        self._tell("a new engine was given prefixes", call.newcomer, [given], "")
        return True

    # --- asking

    async def _ask(self, engine: Engine, question: Callable[[Address], Awaitable[T]]) -> T:
        address = self._addresses.get(engine.uid)
        if address is None:
            raise Unanswered("has no address")
        async with self._turns:
            return await question(address)

    async def _load(self, engine: Engine) -> _Answer | engines.Unanswered:
        at = self._clock()
        try:
            told = await self._ask(engine, self._admin.load)
        except Unanswered as error:
            unanswered = engines.Unanswered(at, f"it {error}")
            self._learn(engine, load=unanswered)
            return unanswered
        load = told.load
        seen = LoadSeen(
            at=at,
            state=told.state,
            num_requests=load.num_running + load.num_waiting,
            work_tokens=load.kv_active_tokens + load.kv_protected_tokens + load.num_waiting_tokens,
        )
        self._learn(engine, load=seen)
        return _Answer(told, seen)

    async def _takers(self, asked: Iterable[Engine]) -> list[Taker]:
        """Return those that can take prefixes; who did not answer cannot."""
        asked = tuple(asked)
        answers = await asyncio.gather(*map(self._load, asked))
        pairs = zip(asked, answers, strict=True)
        takers = (self._taker(engine, answer.told) for engine, answer in pairs if isinstance(answer, _Answer))
        return [taker for taker in takers if taker.family[0] and taker.family[1] > 0]

    def _taker(self, engine: Engine, told: EngineLoad) -> Taker:
        cache = self._known(engine).cache
        return Taker(
            engine=engine,
            replica=replica_id(self._namespace, self._name, engine.uid),
            family=(told.model_revision, told.load.kv_page_tokens),
            room_tokens=told.load.kv_free_tokens + int(EVICTABLE_SHARE * told.load.kv_evictable_tokens),
            cache=cache.cache if isinstance(cache, CacheSeen) else NoCache("nobody has looked"),
        )

    async def _hot(self, engine: Engine) -> HotPrefixes | None:
        try:
            return await self._ask(engine, self._admin.hot)
        except Unanswered:
            return None

    async def _give(self, engine: Engine, prefixes: HotPrefixes) -> bool:
        async def warm(address: Address) -> object:
            return await self._admin.warm(address, prefixes)

        try:
            await self._ask(engine, warm)
        except Unanswered as error:
            self._tell("prefixes were not taken", engine, [prefixes], f"it {error}")
            return False
        return True

    # --- remembering and telling

    def _known(self, engine: Engine) -> EngineSeen:
        return self.seen.get(engine.uid, NOTHING_SEEN)

    def _learn(self, engine: Engine, **news: Any) -> None:
        if engine.uid in self._addresses:
            self.seen = {**self.seen, engine.uid: replace(self._known(engine), **news)}

    def _tell(self, event: str, engine: Engine, given: Iterable[HotPrefixes], detail: str) -> None:
        """Log how much it was, and nothing of what."""
        prefixes = [prefix for each in given for prefix in each.prefixes]
        counts = {"prefixes": len(prefixes), "tokens": sum(len(prefix.token_ids) for prefix in prefixes)}
        service = f"{self._namespace}/{self._name}"
        _log.info(event, extra={"service": service, "pod": engine.pod, "detail": detail, **counts})


def _without_time(load: LoadSeen | engines.Unanswered | engines.NotAsked) -> object:
    return load if isinstance(load, engines.NotAsked) else replace(load, at=0.0)
