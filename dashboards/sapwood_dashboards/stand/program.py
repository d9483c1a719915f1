"""One program on this machine: started, waited for, ended; and Prometheus as one."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from sapwood_tools.bench.servers import free_port

START_SECONDS = 240.0
_POLL_SECONDS = 0.1


class NotReady(Exception):
    """A program ended, or took too long to be ready; carries the end of its log."""


@dataclass
class Program:
    """A program that listens on two ports (Prometheus on one); it may end and be started anew."""

    name: str
    argv: Sequence[str]
    port: int
    admin_port: int
    log: Path
    ready_path: str = "/readyz"
    process: Process | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def start(self) -> None:
        """Start it; it need not be ready."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self.argv, stdout=log, stderr=subprocess.STDOUT)

    async def until_ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until it says that it is ready; raises `NotReady` where it does not come to that."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not await _is_ready(http, self.admin_url + self.ready_path):
            if self.process.returncode is not None or time.monotonic() > deadline:
                raise NotReady(f"{self.name} is not ready:\n{self.log.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(_POLL_SECONDS)

    async def end(self) -> None:
        """End it at once, as a machine that fails does."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def prometheus(folder: Path, config: dict[str, Any]) -> Program:
    """Return a Prometheus by ``config``, its own file, whose paths begin in ``folder``; data and log lie there too.

    Raises `NotReady` where it is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise NotReady("prometheus is not installed; on Debian: apt-get install prometheus")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    argv = (
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    )
    return Program("prometheus", argv, port, port, folder / "prometheus.log", ready_path="/-/ready")
