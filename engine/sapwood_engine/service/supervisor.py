"""Attends to the worker while it lives: hands on what it says, notices its end at once, and ends it when it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.messages import Fatal, FromWorker
from sapwood_engine.service.watchdog import Watchdog

_log = logging.getLogger(__name__)


class Mortal(Protocol):
    """What ends some day: `worker_process.WorkerProcess`."""

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call ``ended`` from a thread, once, with the exit code."""

    def kill(self) -> None:
        """End it at once; idempotent."""


class Listener(Protocol):
    """Whom the worker talks to: the client."""

    @property
    def has_asked(self) -> bool:
        """Whether the worker owes an answer."""

    def receive(self, message: FromWorker) -> None:
        """Take in one message."""

    def worker_ended(self, exit_code: int | None) -> None:
        """The worker is gone; nothing more comes."""


async def attend(worker: Mortal, channel: HttpChannel, listener: Listener, watchdog: Watchdog) -> int:
    """Hand the worker's messages to ``listener`` until the worker ends; return its exit code.

    What it said last is delivered before its end is told, so that an answer which was finished stays
    finished. Raises what reading a message raised; either way every open stream has been told when this
    returns. A worker that ``watchdog`` finds hung is killed, and its listener told why with a `Fatal`.
    """
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()

    def take_all() -> None:
        try:
            for message in channel.receive_ready():
                watchdog.heard()
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

    async def end_if_hung() -> None:
        while True:
            await asyncio.sleep(watchdog.look_seconds)
            take_all()  # what waits to be read was said, however late this process comes to read it
            if watchdog.is_hung(has_work=listener.has_asked):
                reason = f"the worker process had work and ended no step for {watchdog.timeout_seconds:g} seconds"
                _log.error("the worker hangs: it is killed", extra={"silent_seconds": watchdog.timeout_seconds})
                listener.receive(Fatal(f"{reason}: it was killed"))
                worker.kill()
                return

    worker.watch(on_exit)
    channel.listen(take_all)
    watching = asyncio.create_task(end_if_hung())
    exit_code = None
    try:
        exit_code = await exited
        return exit_code
    finally:
        watching.cancel()
        channel.stop_listening()
        listener.worker_ended(exit_code)
