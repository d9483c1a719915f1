"""The life of the HTTP process: answering probes at once, loading, serving, draining, ending.

How it ends: a first SIGTERM or SIGINT drains and ends with 0, a second ends at once; a worker that dies, or
cannot start, ends everything with 1, or 2 for an option that cannot be used, within seconds and after every open
stream has been told.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_engine.errors import ConfigError, SapwoodError, WorkerDied
from sapwood_engine.service.client import EngineClient
from sapwood_engine.service.console import Console, ready_card
from sapwood_engine.service.exit_codes import EXIT_DRAINED, EXIT_FAILED, EXIT_USAGE
from sapwood_engine.service.http_server import HttpServer
from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.signals import StopSignals
from sapwood_engine.service.start import Start
from sapwood_engine.service.supervisor import attend
from sapwood_engine.service.watchdog import Watchdog

_log = logging.getLogger(__name__)

_LET_GO_SECONDS = 4.0
"""After a fault, how long the ports may take to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the ports can be reached, for the ready card."""

    api_url: str
    admin_url: str
    needs_key: bool
    has_console: bool = False


class Lifecycle:
    """Runs one engine; `run` is called once."""

    def __init__(
        self,
        *,
        client: EngineClient,
        channel: HttpChannel,
        start: Start,
        servers: Sequence[HttpServer],
        addresses: Addresses,
        console: Console,
        signals: StopSignals,
        drain_seconds: float,
        step_timeout_seconds: float,
        begin: float,
    ) -> None:
        """``begin``: the monotonic time at which the program began."""
        self._client = client
        self._channel = channel
        self._start = start
        self._servers = servers
        self._addresses = addresses
        self._console = console
        self._signals = signals
        self._drain_seconds = drain_seconds
        self._step_timeout_seconds = step_timeout_seconds
        self._begin = begin

    async def run(self) -> int:
        """Return the process's exit code."""
        stop = asyncio.Event()
        self._signals.hand_over(stop=stop.set, end_at_once=self._end_at_once)
        ports = [asyncio.create_task(server.run()) for server in self._servers]
        engine = asyncio.create_task(self._run_engine())
        told = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((engine, told), return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                _log.info("draining", extra={"deadline_seconds": self._drain_seconds})
                drain = asyncio.create_task(self._client.drain(self._drain_seconds))
                await asyncio.wait((engine, drain), return_when=asyncio.FIRST_COMPLETED)
                drain.cancel()
            return engine.result() if engine.done() else EXIT_DRAINED
        finally:
            await self._close(ports)
            engine.cancel()
            told.cancel()
            await asyncio.gather(engine, told, return_exceptions=True)

    async def _run_engine(self) -> int:
        """Bring the engine up and attend to its worker; returns when the worker has ended, which is
        always a fault.
        """
        start, client = self._start, self._client
        try:
            checkpoint = await asyncio.wrap_future(start.checkpoint)
            worker = await asyncio.wrap_future(start.worker)
            attending = asyncio.create_task(attend(worker, self._channel, client, Watchdog(self._step_timeout_seconds)))
            sampling = await asyncio.wrap_future(start.sampling)
            client.checkpoint_found(checkpoint.revision, await asyncio.wrap_future(start.tokenizer), sampling)
            await client.wait_until_ready()
            self._announce()
            exit_code: int | None = await attending
        except WorkerDied as error:
            exit_code = error.exit_code
        except SapwoodError as error:
            self._console.error(str(error))
            return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
        self._console.error(client.fatal_message or f"the worker process ended (exit code {exit_code})")
        return EXIT_USAGE if exit_code == EXIT_USAGE and client.fatal_message else EXIT_FAILED

    def _announce(self) -> None:
        client = self._client
        assert client.capacity is not None
        # What a start makes stays to the end: no collection need walk it again.
        gc.freeze()
        seconds = time.monotonic() - self._begin
        self._console.ready(
            ready_card(
                model=client.model_name,
                api_url=self._addresses.api_url,
                admin_url=self._addresses.admin_url,
                capacity=client.capacity,
                facts=client.facts,
                sampling=client.sampling_defaults,
                seconds=seconds,
                chat=client.tokenizer.has_chat_template,
                needs_key=self._addresses.needs_key,
                has_console=self._addresses.has_console,
            )
        )
        _log.info("ready", extra={"model": client.model_name, "seconds": round(seconds, 3)})

    def _end_at_once(self) -> None:
        worker = self._start.worker
        if worker.done() and not worker.exception():
            worker.result().kill()
        self._channel.close()

    async def _close(self, ports: Sequence[asyncio.Task[None]]) -> None:
        for server in self._servers:
            server.stop()
        await asyncio.wait(ports, timeout=_LET_GO_SECONDS)
        for port in ports:
            port.cancel()
        await asyncio.gather(*ports, return_exceptions=True)
