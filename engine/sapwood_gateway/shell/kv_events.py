"""Follows what engines publish of their prefix caches, over ZeroMQ, and asks for what was missed.

A batch that does not follow on the last one: what is missing is asked of the engine (DEALER); where that does not close
the gap, of its admin API, which tells all blocks. While nothing comes it is asked as well: the last batch before a
silence may be the lost one.

What publishes may be anybody's program. Sizes of messages, of their queue and of a snapshot are bounded, a replica's
batches take no more than a share of the event loop, and whatever it says that no engine would say ends in trying
again later, for this replica alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import msgspec
import zmq
import zmq.asyncio
from yarl import URL

from sapwood_contract.http import ADMIN_BLOCKS, KvEvents
from sapwood_contract.keys import HASH_BYTES
from sapwood_gateway.core.block_feed import Applied, Batch, BlockFeed, Cleared, Event, Removed, Stored
from sapwood_gateway.shell.credentials import Shown
from sapwood_gateway.shell.upstream import read_at_most

_log = logging.getLogger(__name__)

EventGap = Literal["missed", "snapshot", "broken"]
"""``missed``: some batches. ``snapshot``: all blocks were asked for. ``broken``: the engine could not be followed."""

_MESSAGE_BYTES = 2**18
"""Of a batch: 14,000 blocks. What is larger is missed, and a snapshot tells of it."""
_MOST_UNREAD = 16
"""Messages in this process; further ones wait at the engine."""
_SNAPSHOT_BYTES = 2**23
"""Of all blocks: 466,000."""
_MOST_REPLAYED = 1_000
"""Batches; beyond, a snapshot is quicker."""
_SEQUENCE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowSettings:
    """How patiently to follow."""

    quiet_seconds: float = 1.0
    """Of silence, after which it is asked whether something was missed."""
    retry_seconds: float = 5.0
    """After an engine could not be followed."""
    answer_seconds: float = 5.0
    """For a replay or a snapshot, whole."""
    share: float = 0.2
    """Of the event loop's time, that one engine's batches may take."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Where a replica publishes."""

    replica_id: str
    admin_url: str
    events: KvEvents


class CannotFollow(Exception):
    """The engine says what no engine would, or does not answer."""


class EventFollower:
    """Keeps a task for each replica that is to be followed; for one event loop."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        feed: Callable[[str], BlockFeed | None],
        gap: Callable[[EventGap], None],
        lag: Callable[[float], None],
        shown: Shown,
        settings: FollowSettings | None = None,
    ) -> None:
        """``feed``: what takes a replica's batches now, None for one that has gone. ``gap``: counts. ``lag``: gets
        the seconds after which a batch was taken in.
        """
        self._session = session
        self._feed = feed
        self._gap = gap
        self._lag = lag
        self._shown = shown
        self._settings = settings or FollowSettings()
        self._context = zmq.asyncio.Context()
        self._tasks: dict[Publisher, asyncio.Task[None]] = {}

    def follow(self, publishers: Mapping[str, Publisher]) -> None:
        """Follow exactly these, by the replica's id; one that has a new address or epoch is followed anew."""
        wanted = set(publishers.values())
        for publisher in self._tasks.keys() - wanted:
            self._tasks.pop(publisher).cancel()
        for publisher in wanted - self._tasks.keys():
            self._tasks[publisher] = asyncio.create_task(self._keep(publisher), name=f"events {publisher.replica_id}")

    async def close(self) -> None:
        """Follow nobody any more."""
        tasks = list(self._tasks.values())
        self.follow({})
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _keep(self, publisher: Publisher) -> None:
        """Begin again whenever following ends, for ever."""
        while True:
            try:
                await self._follow(publisher)
            except Exception as error:  # what publishes may be anybody's program
                self._gap("broken")
                extra = {"replica": publisher.replica_id, "reason": repr(error)[:200]}
                _log.warning("cache events cannot be followed: its blocks are not known", extra=extra)
            if (feed := self._feed(publisher.replica_id)) is not None:
                feed.lose()
            await asyncio.sleep(self._settings.retry_seconds)

    async def _follow(self, publisher: Publisher) -> None:
        """Follow until the replica has gone; raises whatever goes wrong."""
        with self._socket(zmq.SUB, publisher, publisher.events.port) as socket:
            socket.subscribe(publisher.events.topic)
            await self._snapshot(publisher)
            while (feed := self._feed(publisher.replica_id)) is not None:
                last = feed.last_applied
                if await socket.poll(int(self._settings.quiet_seconds * 1_000)):
                    batch = _batch(await socket.recv_multipart())
                    if last is not None and last[0] == batch.epoch and batch.sequence > last[1] + 1:
                        self._gap("missed")
                        await self._replay(publisher, last[1] + 1)
                    await self._apply(publisher, batch)
                elif last is not None:
                    # From the last one on, which it must know: an engine that restarted does not.
                    await self._replay(publisher, max(last[1], 0), is_known=last[1] >= 0)

    async def _replay(self, publisher: Publisher, first: int, *, is_known: bool = False) -> None:
        """Apply what the engine has kept from ``first`` on, or all blocks where that is not enough or too much.

        ``is_known``: ``first`` was published, so that an engine that has nothing is another one.
        """
        with self._socket(zmq.DEALER, publisher, publisher.events.replay_port) as socket:
            async with asyncio.timeout(self._settings.answer_seconds):
                await socket.send_multipart([b"", first.to_bytes(_SEQUENCE_BYTES, "big")])
                for number in range(_MOST_REPLAYED):
                    frames = await socket.recv_multipart()
                    if not frames[-1]:
                        if number or not is_known:
                            return
                        break
                    if await self._apply(publisher, _batch(frames)) == "gap":
                        return
        if (feed := self._feed(publisher.replica_id)) is not None:
            feed.lose()
            await self._snapshot(publisher)

    async def _apply(self, publisher: Publisher, batch: Batch) -> Applied:
        """Take in ``batch``; after a gap, all blocks."""
        begin = time.perf_counter()
        feed = self._feed(publisher.replica_id)  # asked each time: it is another one once the replica has changed
        applied = "ignored" if feed is None else feed.apply(batch)
        if applied == "applied" and batch.told_at is not None:
            self._lag(max(0.0, time.time() - batch.told_at))  # clocks of two machines differ
        spent = time.perf_counter() - begin
        await asyncio.sleep(spent * (1 / self._settings.share - 1))
        if applied == "gap":
            await self._snapshot(publisher)
        return applied

    async def _snapshot(self, publisher: Publisher) -> None:
        """Begin anew with all blocks that the engine tells of."""
        self._gap("snapshot")
        url = publisher.admin_url + ADMIN_BLOCKS
        timeout = aiohttp.ClientTimeout(total=self._settings.answer_seconds)
        headers = self._shown(publisher.replica_id)
        async with self._session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise CannotFollow(f"no snapshot: status {response.status}")
            batch = _batch_of(await read_at_most(response, _SNAPSHOT_BYTES), sequence=None)
        feed = self._feed(publisher.replica_id)
        if feed is not None and feed.heal(batch) == "gap":
            raise CannotFollow("its snapshot does not go with its events")

    def _socket(self, kind: int, publisher: Publisher, port: int) -> zmq.asyncio.Socket:
        host = URL(publisher.admin_url).host or ""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _MOST_UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        return socket


class _Event(msgspec.Struct, array_like=True, tag=True):
    """An array that begins with its name; what comes behind these fields is passed over."""


class _Blocks(_Event, tag="BlockStored"):
    block_hashes: list[bytes]


class _Gone(_Event, tag="BlockRemoved"):
    block_hashes: list[bytes]


class _Nothing(_Event, tag="AllBlocksCleared"):
    pass


class _Written(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Blocks | _Gone | _Nothing]
    data_parallel_rank: int | None = None
    epoch: str = ""
    sequence: int | None = None
    """Of the last batch that a snapshot contains."""


_decode = msgspec.msgpack.Decoder(_Written).decode


def _batch(frames: list[bytes]) -> Batch:
    """Return a published batch: a topic or, of a replay, nothing; sequence; what happened."""
    if len(frames) != 3 or len(frames[1]) != _SEQUENCE_BYTES:
        raise CannotFollow("a message that is no batch")
    return _batch_of(frames[2], sequence=int.from_bytes(frames[1], "big"))


def _batch_of(data: bytes, *, sequence: int | None) -> Batch:
    """Return what was written; ``sequence`` None: a snapshot, which has its own."""
    written = _decode(data)
    number = written.sequence if sequence is None else sequence
    if number is None:
        raise CannotFollow("a snapshot without a sequence")
    return Batch(written.epoch, number, [_event(each) for each in written.events], written.ts)


def _event(event: Any) -> Event:
    if isinstance(event, _Nothing):
        return Cleared()
    hashes = tuple(event.block_hashes)
    if any(len(each) != HASH_BYTES for each in hashes):
        raise CannotFollow("a block whose hash is not of this scheme")
    return Stored(hashes) if isinstance(event, _Blocks) else Removed(hashes)
