"""Attends to the worker while it lives: hands on what it says, notices its end at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.messages import FromWorker


class Mortal(Protocol):
    """What ends some day: `worker_process.WorkerProcess`."""

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call ``ended`` from a thread, once, with the exit code."""


class Listener(Protocol):
    """Whom the worker talks to: the client."""

    def receive(self, message: FromWorker) -> None:
        """Take in one message."""

    def worker_ended(self, exit_code: int | None) -> None:
        """The worker is gone; nothing more comes."""


async def attend(worker: Mortal, channel: HttpChannel, listener: Listener) -> int:
    """Hand the worker's messages to ``listener`` until the worker ends; return its exit code.

    What it said last is delivered before its end is told, so that an answer which was finished stays
    finished. Raises what reading a message raised; either way every open stream has been told when this
    returns.
    """
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()

    def take_all() -> None:
        try:
            for message in channel.receive_ready():
                listener.receive(message)
        except Exception as error:
            # A message that cannot be read or understood: nothing after it can be trusted to be complete.
            if not exited.done():
                exited.set_exception(error)

    def settle(code: int) -> None:
        take_all()
        if not exited.done():
            exited.set_result(code)

    def on_exit(code: int) -> None:
        # A loop that is closed raises RuntimeError: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, code)

    worker.watch(on_exit)
    channel.listen(take_all)
    exit_code = None
    try:
        exit_code = await exited
        return exit_code
    finally:
        channel.stop_listening()
        listener.worker_ended(exit_code)
