"""Servers that a benchmark starts itself: up when they answer, paused while another is measured, gone at the
end.

**Why paused.** Side by side means that repetitions alternate, so that a slow minute of the machine hurts
both. Both servers therefore stay up with their caches, but on a small machine an idle one still disturbs:
thread pools spin for a while, timers fire. So every process of the server that is not being measured is
stopped (SIGSTOP) and continued before its turn. It keeps its memory and its connections and uses no processor
at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from sapwood_tools.bench.client import Failure, connect

_START_SECONDS = 300.0
_STOP_SECONDS = 40.0
_POLL_SECONDS = 0.25
_LOG_TAIL_LINES = 15
_FIRST_PORT, _EPHEMERAL_PORTS = 15_000, 30_000
"""Where `free_port` looks: below the ports that a system gives to connections, and the node ports of a cluster."""


class ServerError(Exception):
    """A server that did not come up, or did not stay; carries the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How to start a server."""

    name: str
    argv: Sequence[str]
    port: int


class RunningServer:
    """A server that answers; make it with `running`."""

    def __init__(self, command: ServerCommand, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = command.name
        self.url = f"http://127.0.0.1:{command.port}"
        self._process = process
        self._log = log

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, the parent first."""
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def check(self) -> None:
        """Raise `ServerError` where it has ended."""
        if self._process.poll() is not None:
            raise ServerError(f"{self.name} ended with code {self._process.returncode}:\n{_tail(self._log)}")

    def pause(self) -> None:
        """Stop all its processes, the parent first, so that it cannot start another meanwhile."""
        for process in self.processes():
            process.suspend()

    def resume(self) -> None:
        """Let all its processes go on, the parent last: it never sees a child that does not answer."""
        for process in reversed(self.processes()):
            process.resume()


def free_port() -> int:
    """Return a port that nobody listens on now, and that no connection leaves from.

    A port that the system would give to a connection is no use to a server that starts later: somebody who asks
    whether it answers yet is, once in some ten thousand tries, given that very port to ask from. He is then
    connected to himself (TCP's simultaneous open), reads his own question, and the server finds its port taken.
    None is given twice: the server that it was given for may not have begun to listen.
    """
    while True:
        port = random.randrange(_FIRST_PORT, _EPHEMERAL_PORTS)
        if port in _given_ports:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given_ports.add(port)
            return port


_given_ports: set[int] = set()


@contextlib.asynccontextmanager
async def running(command: ServerCommand, log_folder: Path) -> AsyncIterator[RunningServer]:
    """Start a server, wait until it answers a completion, and stop it at the end.

    Its output goes to ``log_folder/NAME.log``. Raises `ServerError` where it ends early or does not answer in
    300 s.
    """
    log_path = log_folder / f"{command.name}.log"
    process = _start(command, log_path)
    server = RunningServer(command, process, log_path)
    try:
        await _wait_until_it_answers(server)
        yield server
    finally:
        await asyncio.to_thread(_stop, server, process)


def _start(command: ServerCommand, log_path: Path) -> subprocess.Popen[bytes]:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this program alone, which then stops the server in order
        )


async def _wait_until_it_answers(server: RunningServer) -> None:
    deadline = time.monotonic() + _START_SECONDS
    problem = "nothing was tried"
    while time.monotonic() < deadline:
        server.check()
        try:
            async with connect(server.url) as client:
                result = await client.complete("Hello", 2)
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = repr(error)
        else:
            if not isinstance(result, Failure):
                return
            problem = result.reason
        await asyncio.sleep(_POLL_SECONDS)
    raise ServerError(f"{server.name} did not answer in {_START_SECONDS:.0f} s: {problem}")


def _stop(server: RunningServer, process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and end it after 40 s; nothing of it is left."""
    if process.poll() is not None:
        return
    processes = server.processes()
    server.resume()
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    for left in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:])
