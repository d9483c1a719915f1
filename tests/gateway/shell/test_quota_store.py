"""One suite for both places in which tenants' use is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support_redis import RedisServer, false_redis, redis_server

from sapwood_gateway.core.quotas import Add
from sapwood_gateway.shell.quota_store import LocalQuotaStore, QuotaStore, SharedQuotaStore, StoreFailed
from sapwood_tools.bench.servers import free_port


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as running:
        yield running


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    if request.param == "memory":
        yield LocalQuotaStore()
        return
    async with redis_server() as running:
        made = SharedQuotaStore(running.url)
        yield made
        await made.close()


async def taken(store: QuotaStore, key: str, amount: int = 1, limit: int = 10**12) -> int:
    return await store.take(Add(key, amount, 60), limit=limit)


async def test_counts_add_up_whatever_comes_at_once(store: QuotaStore) -> None:
    counts = await asyncio.gather(*(taken(store, "a", 2) for _ in range(20)))
    assert sorted(counts) == list(range(2, 42, 2))
    assert await taken(store, "b", 10**9) == 10**9


async def test_what_would_exceed_the_limit_is_not_counted(store: QuotaStore) -> None:
    counts = await asyncio.gather(*(taken(store, "a", 2, limit=5) for _ in range(20)))
    assert sorted(counts) == [2, 4, *[6] * 18]
    assert await taken(store, "a", 1, limit=5) == 5
    assert await taken(store, "b", 7, limit=5) == 7
    assert await taken(store, "b", 5, limit=5) == 5


async def test_what_was_taken_is_given_back_and_more_may_be_added_than_the_limit(store: QuotaStore) -> None:
    assert await taken(store, "a", 5, limit=5) == 5
    await store.add(Add("a", -2, 60))
    assert await taken(store, "a", 1, limit=5) == 4
    await store.add(Add("a", 10, 60))
    assert await taken(store, "a", 1, limit=5) == 15
    await store.add(Add("b", -5, 60))
    assert await taken(store, "b", 8, limit=5) == 3


async def test_no_more_seats_are_taken_than_there_are(store: QuotaStore) -> None:
    taken = await asyncio.gather(*(store.enter("a", limit=3, seat=str(number)) for number in range(10)))
    assert sum(taken) == 3
    assert await store.enter("b", limit=1, seat="x")
    assert not await store.enter("c", limit=0, seat="x")


async def test_a_seat_that_is_given_back_is_anothers(store: QuotaStore) -> None:
    assert await store.enter("a", limit=1, seat="1")
    assert not await store.enter("a", limit=1, seat="2")
    for seat in ("2", "1", "1"):
        await store.leave("a", seat=seat)
    assert await store.enter("a", limit=1, seat="3")


async def test_a_renewed_seat_is_still_one(store: QuotaStore) -> None:
    assert await store.enter("a", limit=1, seat="1")
    await store.renew({"a": ["1"]})
    assert not await store.enter("a", limit=1, seat="2")


def questions(store: QuotaStore) -> list[Callable[[], Awaitable[object]]]:
    """All that can be asked."""
    return [
        lambda: store.add(Add("a", 1, 60)),
        lambda: store.take(Add("a", 1, 60), limit=1),
        lambda: store.enter("a", limit=1, seat="1"),
        lambda: store.leave("a", seat="1"),
        lambda: store.renew({"a": ["1"]}),
    ]


# --- what several gateways share


async def test_two_gateways_count_in_one_place(server: RedisServer) -> None:
    first, second = SharedQuotaStore(server.url), SharedQuotaStore(server.url)
    assert [await taken(each, "a") for each in (first, second, first)] == [1, 2, 3]
    assert await first.enter("s", limit=1, seat="1")
    assert not await second.enter("s", limit=1, seat="2")
    for each in (first, second):
        await each.close()


async def test_what_a_gateway_that_died_holds_ends_by_itself(server: RedisServer) -> None:
    died = SharedQuotaStore(server.url)
    assert await died.enter("s", limit=1, seat="1")
    async with server.client() as client:
        until = await client.zscore("sapwood:s", "1")
        assert isinstance(until, float)
        seconds, microseconds = await client.time()
        now = int(seconds) * 1_000 + int(microseconds) / 1_000
        assert 0 < until - now <= 30_000
        assert 0 < await client.pttl("sapwood:s") <= 30_000
        await client.zadd("sapwood:s", {"1": now - 1})  # its time is over
    other = SharedQuotaStore(server.url)
    assert await other.enter("s", limit=1, seat="2")
    for each in (died, other):
        await each.close()


async def test_seats_that_the_store_has_forgotten_are_known_again_at_the_next_renewal(server: RedisServer) -> None:
    store, other = SharedQuotaStore(server.url), SharedQuotaStore(server.url)
    assert await store.enter("s", limit=1, seat="1")
    await server.kill()
    with pytest.raises(StoreFailed):
        await store.renew({"s": ["1"]})
    await server.start()
    await store.renew({"s": ["1"]})
    assert not await other.enter("s", limit=1, seat="2")
    for each in (store, other):
        await each.close()


async def test_a_count_is_forgotten_after_its_window(server: RedisServer) -> None:
    store = SharedQuotaStore(server.url)
    for key in ("taken", "added"):
        await (store.take(Add(key, 5, 120), limit=9) if key == "taken" else store.add(Add(key, 5, 120)))
        await store.add(Add(key, -5, 120))
        await store.take(Add(key, 5, 120), limit=9)
        async with server.client() as client:
            assert 0 < await client.ttl(f"sapwood:{key}") <= 120
    await store.close()


async def test_a_store_that_is_not_there_says_so_at_every_question() -> None:
    store = SharedQuotaStore(f"redis://:secret@127.0.0.1:{free_port()}/0")
    for ask in questions(store):
        with pytest.raises(StoreFailed) as failed:
            await ask()
        assert "secret" not in str(failed.value)
    await store.close()


async def test_however_many_ask_at_once_a_few_connections_do(server: RedisServer) -> None:
    store = SharedQuotaStore(server.url)
    assert len(await asyncio.gather(*(taken(store, "a") for _ in range(100)))) == 100
    async with server.client() as client:
        assert 1 < len(await client.client_list()) <= 8 + 1  # this one
    await store.close()


async def test_a_store_that_comes_back_is_used_again(server: RedisServer) -> None:
    store = SharedQuotaStore(server.url)
    await asyncio.gather(*(taken(store, "a") for _ in range(10)))  # over as many connections
    await server.kill()
    await server.start()
    with pytest.raises(StoreFailed):
        await taken(store, "a")
    assert [await taken(store, "a") for _ in range(10)] == list(range(1, 11))
    await store.close()


async def test_a_store_that_refuses_is_as_one_that_is_not_there(server: RedisServer) -> None:
    async with server.client() as client:
        await client.set("sapwood:s", "no set of seats")
    store = SharedQuotaStore(server.url)
    with pytest.raises(StoreFailed):
        await store.enter("s", limit=1, seat="1")
    await store.close()


RUBBISH = {
    "nothing": b"",
    "a text": b"+OK\r\n",
    "no value": b"$-1\r\n",
    "a list": b"*2\r\n:1\r\n:2\r\n",
    "no number": b":abc\r\n",
    "a number that no parser takes": b":" + b"9" * 5_000 + b"\r\n",
    "a number that no Redis can hold": b":" + b"9" * 4_000 + b"\r\n",
    "lists in lists": b"*1\r\n" * 20_000 + b":1\r\n",
    "no length": b"$xx\r\nabc\r\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an error that is no text": b"-\xff\xfe\r\n",
}


@pytest.mark.parametrize("answer", RUBBISH.values(), ids=RUBBISH)
async def test_a_store_that_answers_rubbish_is_as_one_that_is_not_there(answer: bytes) -> None:
    async with false_redis(answer) as url:
        store = SharedQuotaStore(url)
        told = await asyncio.gather(*(ask() for ask in questions(store)), return_exceptions=True)
        assert [type(each) for each in told] == [StoreFailed] * len(told)
        await store.close()


async def test_a_seat_is_taken_or_not_and_nothing_else() -> None:
    async with false_redis(b":7\r\n") as url:
        store = SharedQuotaStore(url)
        with pytest.raises(StoreFailed):
            await store.enter("a", limit=1, seat="1")
        await store.close()
