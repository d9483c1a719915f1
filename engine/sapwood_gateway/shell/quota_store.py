"""Where what tenants use is counted: in this process, or in a Redis that several gateways share.

Counts in windows are the library's (`limits`), but for the one step that looks and adds. Requests under way are a set
of leases, since no count would know of a gateway that dies with some: each lease ends by itself, unless its gateway
renews it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Protocol

import redis.asyncio
from limits.aio.storage import MemoryStorage, RedisStorage
from redis.backoff import NoBackoff
from redis.retry import Retry

from sapwood_gateway.core.quotas import Add

_PREFIX = "sapwood"
RENEWAL_SECONDS = 10.0
"""Between two renewals of the leases."""
_LEASE_MILLISECONDS = 30_000
"""What a gateway that died holds is free again after so long; two renewals may fail without harm."""
_ANSWER_SECONDS = 0.9
"""For one question, from connecting on: a request waits for it."""
_LETTING_GO_SECONDS = 0.1
"""For closing connections after a failure: a store that hangs may not answer that either."""
_MOST_CONNECTIONS = 8
"""Questions beyond wait for one: an answer takes a fraction of a millisecond, and to begin a connection with TLS holds
up the whole loop for tens of them."""

_TAKE = """
local count = tonumber(redis.call('GET', KEYS[1]) or '0') + tonumber(ARGV[1])
if count > tonumber(ARGV[2]) then return count end
redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return count
"""
_ENTER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""


class StoreFailed(Exception):
    """The store did not answer in time, or not with what was asked for; the message tells no secret."""


class QuotaStore(Protocol):
    """Counts; every method raises `StoreFailed` where that cannot be done."""

    async def take(self, change: Add, *, limit: int) -> int:
        """Raise a count, unless it would exceed ``limit``; return what it is then, or would be."""

    async def add(self, change: Add) -> None:
        """Change a count, whatever it is."""

    async def enter(self, key: str, *, limit: int, seat: str) -> bool:
        """Take ``seat`` among those of ``key``, if fewer than ``limit`` are taken; tell whether it is."""

    async def leave(self, key: str, *, seat: str) -> None:
        """Give a seat back; one that is not taken is passed over."""

    async def renew(self, seats: Mapping[str, Collection[str]]) -> None:
        """Keep ``seats``, by their keys, for another while; to be called every `RENEWAL_SECONDS` for all that are held.

        One that is not renewed is free in the end.
        """

    async def close(self) -> None:
        """Let go of all connections."""


class LocalQuotaStore:
    """Counts in this process."""

    def __init__(self) -> None:
        self._counts = MemoryStorage()
        self._taking = asyncio.Lock()
        self._seats: defaultdict[str, set[str]] = defaultdict(set)

    async def take(self, change: Add, *, limit: int) -> int:
        async with self._taking:
            count = await self._counts.get(change.key) + change.amount
            if count <= limit:
                await self.add(change)
            return count

    async def add(self, change: Add) -> None:
        await self._counts.incr(change.key, change.keep_seconds, change.amount)

    async def enter(self, key: str, *, limit: int, seat: str) -> bool:
        if len(self._seats[key]) >= limit:
            return False
        self._seats[key].add(seat)
        return True

    async def leave(self, key: str, *, seat: str) -> None:
        self._seats[key].discard(seat)
        if not self._seats[key]:
            del self._seats[key]

    async def renew(self, seats: Mapping[str, Collection[str]]) -> None:
        del seats  # they end with this process

    async def close(self) -> None:
        return


class SharedQuotaStore:
    """Counts in the Redis, or what speaks its language, at ``url``; whether it is there shows at the first question."""

    def __init__(self, url: str) -> None:
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=_MOST_CONNECTIONS,
            retry=Retry(NoBackoff(), 0),  # the caller asks again, and knows when it is not worth the wait
            socket_connect_timeout=_ANSWER_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._counts = RedisStorage(
            url,
            implementation="redispy",
            key_prefix=_PREFIX,
            connection_pool=pool,  # type: ignore[arg-type]  # its own documentation says that it takes one
        )
        self._take = self._client.register_script(_TAKE)
        self._enter = self._client.register_script(_ENTER)
        self._renew = self._client.register_script(_RENEW)

    async def take(self, change: Add, *, limit: int) -> int:
        args = (change.amount, limit, change.keep_seconds)
        async with self._answering():
            return _count(await self._take(keys=[_prefixed(change.key)], args=args))

    async def add(self, change: Add) -> None:
        async with self._answering():
            _count(await self._counts.incr(change.key, change.keep_seconds, change.amount))

    async def enter(self, key: str, *, limit: int, seat: str) -> bool:
        async with self._answering():
            args = (_LEASE_MILLISECONDS, limit, seat)
            return _is_one(await self._enter(keys=[_prefixed(key)], args=args))

    async def leave(self, key: str, *, seat: str) -> None:
        async with self._answering():
            _is_one(await self._client.zrem(_prefixed(key), seat))

    async def renew(self, seats: Mapping[str, Collection[str]]) -> None:
        async with self._answering():
            if await self._client.ping() is not True:
                raise _Rubbish
        for key, held in seats.items():
            async with self._answering():
                await self._renew(keys=[_prefixed(key)], args=[_LEASE_MILLISECONDS, *held])

    async def close(self) -> None:
        await self._client.aclose(close_connection_pool=True)

    @contextlib.asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                yield
        except Exception as error:  # whatever the library makes of whatever the other side says
            await self._let_go()
            raise StoreFailed(type(error).__name__) from error

    async def _let_go(self) -> None:
        """Close the connections that nobody uses: they may have ended too, and each would fail once more."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_LETTING_GO_SECONDS):
                await self._client.connection_pool.disconnect(inuse_connections=False)


class _Rubbish(Exception):
    """An answer that is none to what was asked."""


def _count(answer: object) -> int:
    if not isinstance(answer, int) or not -(2**63) <= answer < 2**63:
        raise _Rubbish
    return answer


def _is_one(answer: object) -> bool:
    if answer not in (0, 1):
        raise _Rubbish
    return bool(answer)


def _prefixed(key: str) -> str:
    return f"{_PREFIX}:{key}"
