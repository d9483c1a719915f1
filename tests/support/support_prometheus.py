"""A real Prometheus, of Debian's package, that scrapes programs of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from support_programs import needs

from sapwood_dashboards.stand import program

_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    http: aiohttp.ClientSession
    url: str

    async def until_found(self, path: str, **params: str) -> list[dict[str, Any]]:
        """Return what ``/api/v1/PATH`` finds, as soon as it finds something; ``params``: ``query`` and so on."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while True:
                async with self.http.get(f"{self.url}/api/v1/{path}", params=params) as response:
                    answer = (await response.json())["data"]
                found: list[dict[str, Any]] = answer["result"] if isinstance(answer, dict) else answer
                if found:
                    return found
                await asyncio.sleep(0.05)  # what is waited for needs the processor


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str]) -> AsyncIterator[Prometheus]:
    """Run one that scrapes ``targets`` (job -> address) five times a second; what it writes goes to ``folder``."""
    needs("prometheus")
    jobs = [{"job_name": job, "static_configs": [{"targets": [urlsplit(url).netloc]}]} for job, url in targets.items()]
    timing = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
    running = program.prometheus(folder, {"global": timing, "scrape_configs": jobs})
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        await running.start()
        try:
            await running.until_ready(http)
            yield Prometheus(http, running.url)
        finally:
            await running.end()
