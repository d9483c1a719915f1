"""Publishes which blocks the prefix cache holds over ZeroMQ, so that consumers made for vLLM's events read it.

::

    PUB     topic, sequence, batch            sequence: 8 bytes, big-endian, from 0 on; of batch: one more each time
    ROUTER  asked with [empty, sequence]      answers [empty, sequence, batch] for each kept batch from it on,
                                              then [empty, -1, empty]
    batch = msgpack [time, [event …], rank, epoch]
    event = ["BlockStored", [hash …], parent hash or nil, [token id …], block size, nil, "GPU", adapter or nil]
          | ["BlockRemoved", [hash …], "GPU"]
          | ["AllBlocksCleared"]

The epoch is ours and comes last, where others do not look: it is drawn at every start, so that a consumer tells a new
engine from a gap. Token ids are a prompt's content: they are left out (an empty array) unless asked for. "GPU" is what
consumers call the memory that steps compute from, whatever it is.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import msgspec
import zmq

from sapwood_contract.http import KvEvents
from sapwood_contract.launch import flag
from sapwood_engine.core.block_log import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from sapwood_engine.core.keys import TOKENS_ONLY
from sapwood_engine.errors import ConfigError

_log = logging.getLogger(__name__)

_MEDIUM = "GPU"
_RANK = 0
_MOST_UNSENT_BATCHES = 100_000
"""For a subscriber that does not keep up; what is beyond it misses, and asks for."""
_KEPT_BATCHES = 10_000
_KEPT_BYTES = 64 * 1024 * 1024
_END = (-1).to_bytes(8, "big", signed=True)
_SEQUENCE_BYTES = 8
_WAKE = b""
_STOP = b"stop"


class BlockPublisher:
    """Numbers batches in the caller's thread; writes and sends them, and answers for missed ones, in its own."""

    def __init__(self, host: str, port: int, *, topic: str, page_size: int, token_ids: bool) -> None:
        """Bind ``port`` for the events and the one after it for replays; 0: two free ones.

        Raises `ConfigError` where one cannot be had.
        """
        self._topic = topic.encode()
        self._page_size = page_size
        self._token_ids = token_ids
        self._epoch = secrets.token_hex(8)
        self._sequence = 0
        self._queue: SimpleQueue[tuple[int, float, Sequence[BlockEvent]]] = SimpleQueue()
        self._encoder = msgspec.msgpack.Encoder()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.set_hwm(_MOST_UNSENT_BATCHES)
        self._replays = self._context.socket(zmq.ROUTER)
        self._wake, self._woken = (self._context.socket(zmq.PAIR) for _ in range(2))
        try:
            self.address = KvEvents(
                epoch=self._epoch,
                topic=topic,
                port=_bind(self._events, host, port),
                replay_port=_bind(self._replays, host, port and port + 1),
                page_size=page_size,
            )
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._woken.bind("inproc://wake")
        self._wake.connect("inproc://wake")
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[BlockEvent]) -> None:
        """Send ``events`` as one batch, in order; returns at once."""
        self._queue.put((self._sequence, time.time(), events))
        self._sequence += 1
        self._wake.send(_WAKE)

    def snapshot(self, blocks: Sequence[BlockEvent]) -> bytes:
        """Return ``blocks``, all that there are now, as a batch with the last published sequence (or -1) behind it."""
        return self._encoder.encode([*self._batch(time.time(), blocks), self._sequence - 1])

    def close(self) -> None:
        """End the thread once everything published is sent."""
        self._wake.send(_STOP)
        self._thread.join()
        self._context.destroy(linger=0)

    def _batch(self, at: float, events: Sequence[BlockEvent]) -> list[Any]:
        return [at, [self._written(event) for event in events], _RANK, self._epoch]

    def _written(self, event: BlockEvent) -> list[Any]:
        match event:
            case BlocksStored(namespace, parent, hashes, key):
                ids = TOKENS_ONLY.token_ids(key) if self._token_ids else []
                adapter = namespace.adapter_id
                return ["BlockStored", hashes, parent, ids, self._page_size, None, _MEDIUM, adapter]
            case BlocksRemoved(hashes):
                return ["BlockRemoved", hashes, _MEDIUM]
            case BlocksCleared():
                return ["AllBlocksCleared"]

    # --- in the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        poller.register(self._replays, zmq.POLLIN)
        going_on = True
        while going_on:
            for socket, _ in poller.poll():
                if socket is self._woken:
                    going_on = self._woken.recv() != _STOP
                    self._send_queued()
                else:
                    self._replay(self._replays.recv_multipart())

    def _send_queued(self) -> None:
        while not self._queue.empty():
            sequence, at, events = self._queue.get()
            batch = self._encoder.encode(self._batch(at, events))
            self._events.send_multipart([self._topic, sequence.to_bytes(_SEQUENCE_BYTES, "big"), batch])
            self._kept.append((sequence, batch))
            self._kept_bytes += len(batch)
            while len(self._kept) > _KEPT_BATCHES or self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= len(self._kept.popleft()[1])

    def _replay(self, request: list[bytes]) -> None:
        if len(request) != 3 or len(request[2]) != _SEQUENCE_BYTES:
            _log.warning("a request for missed cache events cannot be read", extra={"num_frames": len(request)})
            return
        client, delimiter, first = request
        wanted = int.from_bytes(first, "big")
        for sequence, batch in self._kept:
            if sequence >= wanted:
                self._replays.send_multipart([client, delimiter, sequence.to_bytes(_SEQUENCE_BYTES, "big"), batch])
        self._replays.send_multipart([client, delimiter, _END, b""])


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> int:
    """Bind a TCP port, any for 0; return which."""
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
        host = f"[{host}]"
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        fix = f"{host} port {port} cannot be listened on ({error}); take another, or 0 for free ones"
        raise ConfigError(flag("kv_events_port"), port, fix) from error
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(endpoint.rpartition(":")[2])
