"""The worker process: started, watched, ended.

A process of its own that imports torch, so that this one does not. It is spawned afresh, never forked: a
fork of a process with threads and an event loop inherits their locks. Two ends of one pipe tie the lives
together: the worker reads its standard input, which ends when this process does, however it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.messages import FromWorker, Shutdown

_SHUTDOWN_SECONDS = 2.0
"""How long a worker without work may take to end before it is killed."""


class Listener(Protocol):
    """Whom the worker talks to: the client."""

    def receive(self, message: FromWorker) -> None:
        """Take in one message."""

    def worker_ended(self, exit_code: int | None) -> None:
        """The worker is gone; nothing more comes."""


class Mortal(Protocol):
    """What `attend` watches."""

    async def wait(self) -> int:
        """Return the exit code once it has ended."""


class WorkerProcess:
    """One child process; starting it needs no event loop."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start ``command``. What it prints goes to this process's stderr, in full."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            # A terminal's Ctrl-C reaches every process of the session: this one decides when the worker ends.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit code as soon as the process has ended; negative: the signal that ended it."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def watch() -> None:
            code = self._process.wait()
            # A loop that is closed raises RuntimeError: then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, code)

        def settle(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        threading.Thread(target=watch, name="worker-watch", daemon=True).start()
        return await ended

    def kill(self) -> None:
        """End it at once; idempotent."""
        self._process.kill()

    def end(self, channel: HttpChannel) -> None:
        """Ask it to end, and make sure that it does. Blocks for two seconds at most; idempotent."""
        try:
            channel.send(Shutdown())
            self._process.wait(_SHUTDOWN_SECONDS)
        except (WorkerDied, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


async def attend(worker: Mortal, channel: HttpChannel, listener: Listener) -> int:
    """Hand the worker's messages to ``listener`` until the worker ends; return its exit code.

    What it said last is delivered before its end is told, so that an answer which was finished stays
    finished. Raises what reading a message raised; either way every open stream has been told when this
    returns.
    """
    exited = asyncio.create_task(worker.wait())
    broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take_all() -> None:
        try:
            for message in channel.receive_ready():
                listener.receive(message)
        except Exception as error:
            # A message that cannot be read or understood: nothing after it can be trusted to be complete.
            if not broken.done():
                broken.set_exception(error)

    channel.listen(take_all)
    try:
        await asyncio.wait((exited, broken), return_when=asyncio.FIRST_COMPLETED)
        take_all()
        if broken.done():
            broken.result()
        return exited.result()
    finally:
        channel.stop_listening()
        listener.worker_ended(exited.result() if exited.done() else None)
        exited.cancel()
        broken.cancel()


def watch_parent(ended: Callable[[], None]) -> None:
    """In the worker: call ``ended`` from a thread once the process that started it is gone."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        ended()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
