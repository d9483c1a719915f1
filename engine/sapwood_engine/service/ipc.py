"""Two one-way pipes between the HTTP process and the worker: ZeroMQ PUSH/PULL over Unix sockets.

The sockets live in a directory that only this user may enter and that goes away with the HTTP process. The
HTTP process binds, the worker connects. Neither end's ``send`` blocks: what is queued is bounded by
admission, not here.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.messages import Codec, FromWorker, ToWorker
from sapwood_engine.service.pipe_folder import SOCKET_NAMES, new_pipe_folder

_NO_LIMIT = 0
_LAST_WORDS_MILLISECONDS = 1000
"""How long the worker's end waits, when it closes, for what it said last to be delivered."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the two pipes are."""

    directory: Path

    @property
    def to_worker(self) -> str:
        """HTTP process -> worker."""
        return f"ipc://{self.directory / SOCKET_NAMES[0]}"

    @property
    def from_worker(self) -> str:
        """Worker -> HTTP process."""
        return f"ipc://{self.directory / SOCKET_NAMES[1]}"


class HttpChannel:
    """The HTTP process's end; used from its event loop's thread, but may be made before there is a loop."""

    def __init__(self, directory: Path | None = None) -> None:
        """``directory``: an empty one that only this user may enter; None makes one. It is removed at
        the end.
        """
        self.addresses = Addresses(directory or new_pipe_folder())
        self._codec = Codec()
        self._context = zmq.Context()
        self._out = self._context.socket(zmq.PUSH)
        self._in = self._context.socket(zmq.PULL)
        for socket in (self._out, self._in):
            socket.set_hwm(_NO_LIMIT)
            socket.setsockopt(zmq.LINGER, 0)
        self._out.bind(self.addresses.to_worker)
        self._in.bind(self.addresses.from_worker)

    def send(self, message: ToWorker) -> None:
        """Queue ``message``; raises `WorkerDied` when no worker is connected."""
        try:
            self._out.send(self._codec.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise WorkerDied(None) from None

    def listen(self, wake: Callable[[], None]) -> None:
        """Have the running loop call ``wake`` when there may be messages; each time `receive_ready` must be
        used up.

        ZeroMQ's descriptor tells of a change once, not of a state: what is left in the socket stays there
        unheard of.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._in.FD, wake)
        loop.call_soon(wake)

    def stop_listening(self) -> None:
        """Undo `listen`."""
        asyncio.get_running_loop().remove_reader(self._in.FD)

    def receive_ready(self) -> Iterator[FromWorker]:
        """Yield what has arrived, without waiting."""
        while self._in.poll(0):
            yield self._codec.decode_from_worker(self._in.recv(zmq.NOBLOCK))

    def close(self) -> None:
        """Close both pipes and remove their directory; idempotent."""
        self._out.close()
        self._in.close()
        self._context.term()
        shutil.rmtree(self.addresses.directory, ignore_errors=True)


class WorkerChannel:
    """The worker's end: blocking, one thread."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self._codec = Codec()
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._out = self._context.socket(zmq.PUSH)
        for socket in (self._out, self._in):
            socket.set_hwm(_NO_LIMIT)
        self._out.setsockopt(zmq.LINGER, _LAST_WORDS_MILLISECONDS)
        self._in.connect(addresses.to_worker)
        self._out.connect(addresses.from_worker)

    def send(self, message: FromWorker) -> None:
        """Queue ``message``."""
        self._out.send(self._codec.encode(message))

    def receive_ready(self) -> Iterator[ToWorker]:
        """Yield what has arrived, without waiting."""
        while self._in.poll(0):
            yield self._codec.decode_to_worker(self._in.recv(zmq.NOBLOCK))

    def wait(self, seconds: float | None) -> bool:
        """Sleep until a message arrives (True) or the time is up (False); None waits for ever."""
        return bool(self._in.poll(None if seconds is None else round(seconds * 1000)))

    def close(self) -> None:
        """Close both pipes once what was sent is delivered; idempotent."""
        self._in.close(linger=0)
        self._out.close()
        self._context.term()
