"""The gateway follows real publishers of cache events: through gaps, restarts, and what no engine would say."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pytest
import zmq
from aiohttp import web
from support_gateway import serving
from support_prefix_cache import serve

from sapwood_contract.http import ADMIN_BLOCKS
from sapwood_engine.core.block_log import BlocksStored
from sapwood_engine.core.keys import token_key
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace
from sapwood_engine.service.kv_events import BlockPublisher
from sapwood_gateway.core.block_feed import BlockFeed
from sapwood_gateway.core.prefix_index import PrefixIndex
from sapwood_gateway.shell.kv_events import EventFollower, FollowSettings, Publisher
from sapwood_gateway.shell.upstream import new_session
from sapwood_tools.bench.servers import free_port

PAGE = 4
ID = "a"
DEADLINE_SECONDS = 20.0


def new_cache() -> PrefixCache:
    return PrefixCache(num_pages=64, page_size=PAGE, log_blocks=True, partial_pages=True)


def publisher(port: int = 0) -> BlockPublisher:
    return BlockPublisher("127.0.0.1", port, topic="kv", page_size=PAGE, token_ids=False)


@dataclass
class Engine:
    """A cache whose events are published, and which tells all of its blocks over HTTP."""

    publisher: BlockPublisher
    admin_url: str = ""
    cache: PrefixCache = field(default_factory=new_cache)
    snapshot_status: int = 200

    def compute(self, *tokens: int) -> None:
        """Run one request that computes a page of each of ``tokens``."""
        serve(self.cache, [token for token in tokens for _ in range(PAGE)])
        self.tell()

    def tell(self) -> None:
        self.publisher.publish(self.cache.take_block_events())

    def restart(self) -> None:
        """End as if killed, and begin again under the same addresses with an empty cache."""
        port = self.publisher.address.port
        self.publisher.close()
        self.cache = new_cache()
        self.publisher = publisher(port)

    def blocks(self) -> set[bytes]:
        events = self.cache.block_snapshot()
        return {block for event in events if isinstance(event, BlocksStored) for block in event.hashes}

    async def show_blocks(self, request: web.Request) -> web.Response:
        if request.headers.get("X-Who") != f"gateway of {ID}":
            return web.Response(status=401)
        return web.Response(body=self.publisher.snapshot(self.cache.block_snapshot()), status=self.snapshot_status)


@dataclass
class Following:
    """A follower, and what it knows."""

    engine: Engine
    follower: EventFollower = field(init=False)
    index: PrefixIndex = field(default_factory=PrefixIndex)
    feeds: dict[str, BlockFeed] = field(default_factory=dict)
    gaps: Counter[str] = field(default_factory=Counter)
    lags: list[float] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the follower has done something."""

    def feed(self, replica_id: str) -> BlockFeed | None:
        self.moved.set()
        return self.feeds.get(replica_id)

    def gap(self, reason: str) -> None:
        self.moved.set()
        self.gaps[reason] += 1

    def follow(self, engine: Engine, **address: object) -> None:
        """As after a report of ``engine``; ``address``: what it says wrong of its publisher."""
        self.engine = engine
        self.index.leave(ID)
        self.index.join(ID, 1_000)
        self.feeds[ID] = BlockFeed(self.index, ID)
        events = replace(engine.publisher.address, **address)  # type: ignore[arg-type]  # each test names its own
        self.follower.follow({ID: Publisher(ID, engine.admin_url, events)})

    def knows(self) -> bool:
        if self.feeds[ID].last_applied is None:
            return False
        blocks = self.engine.blocks()
        held = {block for block in blocks if self.index.matched([block])}
        return held == blocks and self.index.num_blocks(ID) == len(blocks)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():
                self.moved.clear()
                await self.moved.wait()

    async def exact(self) -> None:
        await self.until(self.knows)


@asynccontextmanager
async def engine(port: int = 0) -> AsyncIterator[Engine]:
    made = Engine(publisher(port))
    app = web.Application()
    app.router.add_get(ADMIN_BLOCKS, made.show_blocks)
    async with serving(app) as made.admin_url:
        try:
            yield made
        finally:
            made.publisher.close()


@asynccontextmanager
async def following(
    first: Engine, *, quiet_seconds: float = 0.05, answer_seconds: float = 5.0, **address: object
) -> AsyncIterator[Following]:
    async with new_session(1.0) as session:
        settings = FollowSettings(quiet_seconds=quiet_seconds, retry_seconds=0.01, answer_seconds=answer_seconds)
        made = Following(first)
        made.follower = EventFollower(
            session,
            feed=made.feed,
            gap=made.gap,
            lag=made.lags.append,
            shown=lambda id_: {"X-Who": f"gateway of {id_}"},
            settings=settings,
        )
        made.follow(first, **address)
        try:
            yield made
        finally:
            await made.follower.close()


async def test_what_an_engine_held_before_and_computes_later_is_known() -> None:
    async with engine() as a:
        a.compute(1, 2, 3)
        async with following(a) as followed:
            await followed.exact()
            for number in range(20):
                a.compute(1, number, number + 1)
            await followed.exact()
            a.cache.flush(Namespace("model"))
            a.tell()
            await followed.exact()
            assert followed.gaps["broken"] == 0
            assert followed.gaps["snapshot"] == 1


async def test_missed_batches_are_asked_for_also_when_nothing_follows_them() -> None:
    async with engine() as a, following(a) as followed:
        await followed.exact()
        # Nobody is subscribed to this topic, so every batch is missed.
        followed.follow(a, topic="other")
        for number in range(10):
            a.compute(number, number + 1)
            await followed.exact()
        assert followed.gaps["broken"] == 0


@pytest.mark.parametrize("num_missed", [2_000, 11_000], ids=["too many", "more than the engine keeps"])
async def test_a_gap_that_is_too_wide_is_healed_by_a_snapshot(num_missed: int) -> None:
    async with engine() as a, following(a, quiet_seconds=0.2, topic="other") as followed:
        await followed.exact()
        for _ in range(num_missed):
            a.publisher.publish([])
        a.compute(1, 2)
        await followed.exact()
        assert followed.gaps == {"snapshot": 2}


async def test_an_engine_that_restarts_is_followed_anew_before_and_after_it_says_so() -> None:
    async with engine(free_port()) as a, following(a) as followed:
        a.compute(1, 2)
        await followed.exact()
        a.restart()
        a.compute(3)
        await followed.exact()
        followed.follow(a)
        a.compute(3, 4)
        await followed.exact()


async def test_a_gateway_that_begins_in_the_middle_is_exact() -> None:
    async with engine() as a:
        for number in range(30):
            a.compute(number, number + 1, number + 2)
        for _ in range(3):
            async with following(a) as followed:
                a.compute(7, 8)
                await followed.exact()


async def test_a_replica_that_has_gone_is_not_followed_any_more() -> None:
    async with engine() as a, following(a) as followed:
        await followed.exact()
        tasks = [each for each in asyncio.all_tasks() if each.get_name() == f"events {ID}"]
        assert len(tasks) == 1
        followed.follower.follow({})
        followed.feeds.clear()
        followed.index.leave(ID)
        a.compute(1, 2)
        await asyncio.wait(tasks, timeout=DEADLINE_SECONDS)
        assert tasks[0].cancelled()


async def test_while_an_engine_cannot_be_followed_its_blocks_are_not_known_and_it_is_tried_again() -> None:
    async with engine() as a:
        a.compute(1, 2)
        a.snapshot_status = 503
        async with following(a) as followed:
            await followed.until(lambda: followed.gaps["broken"] > 1)
            assert followed.index.num_blocks(ID) == 0
            a.snapshot_status = 200
            await followed.exact()


def written(hashes: object) -> bytes:
    return msgspec.msgpack.encode([0.0, [["BlockStored", hashes, None, [], 4, None, "GPU", None]], 0, "e"])


@pytest.mark.parametrize(
    "frames",
    [
        [b"kv"],
        [b"kv", b"1", written([])],
        [b"kv", bytes(8), b"no msgpack"],
        [b"kv", bytes(8), b"\x91" * 10_000],
        [b"kv", bytes(8), written([b"x" * 1_000])],
        [b"kv", bytes(8), written([12345])],
    ],
    ids=["frames", "sequence", "bytes", "deep", "hash", "number"],
)
async def test_what_no_engine_would_publish_is_not_taken_in(frames: list[bytes]) -> None:
    context = zmq.Context()
    with context.socket(zmq.PUB) as liar:
        port = liar.bind_to_random_port("tcp://127.0.0.1")
        async with engine() as a, following(a, port=port) as followed:

            def is_broken() -> bool:
                liar.send_multipart(frames)
                return followed.gaps["broken"] > 0

            await followed.until(is_broken)
            assert followed.index.num_blocks(ID) == 0
    context.destroy(linger=0)


@pytest.mark.parametrize(("ago", "lag"), [(100.0, 100.0), (-1_000.0, 0.0)], ids=["late", "a clock ahead"])
async def test_how_long_ago_a_batch_was_told_is_noted(ago: float, lag: float) -> None:
    context = zmq.Context()
    with context.socket(zmq.PUB) as late:
        port = late.bind_to_random_port("tcp://127.0.0.1")
        async with engine() as a, following(a, port=port) as followed:

            def is_noted() -> bool:
                batch = msgspec.msgpack.encode([time.time() - ago, [], 0, "e"])
                late.send_multipart([b"kv", bytes(8), batch])
                return bool(followed.lags)

            await followed.until(is_noted)
            assert followed.lags[0] >= lag
            assert (followed.lags[0] == 0.0) == (lag == 0.0)
    context.destroy(linger=0)


async def test_a_batch_that_is_too_large_is_not_read_and_a_snapshot_tells_of_it() -> None:
    async with engine() as a, following(a, answer_seconds=0.5) as followed:
        await followed.exact()
        a.publisher.publish([BlocksStored(Namespace("model"), None, tuple(map(_hash, range(20_000))), token_key([]))])
        a.compute(1, 2)
        await followed.until(lambda: followed.gaps["broken"] > 0)
        await followed.exact()


def _hash(number: int) -> bytes:
    return number.to_bytes(16, "big")
