"""A consumer of an engine's cache events, written from what vLLM publishes of its format: subscribe, notice what is
missing, ask for it, or begin anew from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from sapwood_contract.http import KvEvents

PATIENCE_MILLISECONDS = 10_000
"""Of every wait; reached only by a fault."""


class Event(msgspec.Struct, array_like=True, tag=True):
    """An array that begins with its name."""


class BlockStored(Event):
    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(Event):
    block_hashes: list[bytes]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None
    epoch: str
    """From here on ours."""
    sequence: int | None = None
    """Of the last batch that a snapshot contains."""


decode = msgspec.msgpack.Decoder(Batch).decode


class Consumer:
    """Knows, after each `take`, which blocks there were at that batch; ``snapshot`` returns `/admin/blocks`."""

    def __init__(self, address: KvEvents, snapshot: Callable[[], bytes]) -> None:
        self.blocks: set[bytes] = set()
        self.batches: list[Batch] = []
        self.num_replays = 0
        self.num_snapshots = 0
        self._address = address
        self._snapshot = snapshot
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.subscribe(address.topic)
        self._events.connect(f"tcp://127.0.0.1:{address.port}")
        self._last = -1
        self.begin_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    def begin_anew(self) -> None:
        """Know what a snapshot tells."""
        batch = decode(self._snapshot())
        assert batch.epoch == self._address.epoch
        assert batch.sequence is not None
        self.num_snapshots += 1
        self.blocks.clear()
        self._apply(batch)
        self._last = batch.sequence

    def receive(self) -> tuple[int, bytes]:
        """Return the next batch on the wire with its sequence."""
        assert self._events.poll(PATIENCE_MILLISECONDS), "no event comes"
        topic, sequence, batch = self._events.recv_multipart()
        assert topic == self._address.topic.encode()
        return int.from_bytes(sequence, "big"), batch

    def take_until(self, sequence: int) -> None:
        """Take in what comes until the batch ``sequence`` is in."""
        while self._last < sequence:
            self.take(*self.receive())

    def take(self, sequence: int, batch: bytes) -> None:
        """Take in a batch, and before it those that are missing."""
        if sequence <= self._last:
            return  # a snapshot had it
        if sequence > self._last + 1:
            self._catch_up(sequence)
        if self._last == sequence - 1:
            self._apply(decode(batch))
            self._last = sequence

    def _catch_up(self, sequence: int) -> None:
        self.num_replays += 1
        for missed, batch in self.replay(self._last + 1):
            if missed == self._last + 1 and missed < sequence:
                self._apply(decode(batch))
                self._last = missed
        if self._last < sequence - 1:  # the engine did not keep so many
            self.begin_anew()

    def replay(self, first: int) -> list[tuple[int, bytes]]:
        """Return what the engine has kept from ``first`` on."""
        # Not REQ, which takes one answer to a question.
        with self._context.socket(zmq.DEALER) as socket:
            socket.connect(f"tcp://127.0.0.1:{self._address.replay_port}")
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            kept: list[tuple[int, bytes]] = []
            while True:
                assert socket.poll(PATIENCE_MILLISECONDS), "no replay comes"
                _, sequence, batch = socket.recv_multipart()
                if not batch:
                    assert sequence == b"\xff" * 8
                    return kept
                kept.append((int.from_bytes(sequence, "big"), batch))

    def _apply(self, batch: Batch) -> None:
        self.batches.append(batch)
        for event in batch.events:
            match event:
                case BlockStored():
                    assert event.parent_block_hash is None or event.parent_block_hash in self.blocks
                    self.blocks.update(event.block_hashes)
                case BlockRemoved():
                    self.blocks.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.blocks.clear()


def as_values(events: list[Any]) -> list[Any]:
    """Return decoded events as plain lists."""
    values: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(events))
    return values
