"""A real Prometheus, of Debian's package, that scrapes programs of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from support_programs import needs

from sapwood_tools.bench.servers import free_port

_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    api: httpx.AsyncClient

    async def until_found(self, path: str, **params: str) -> list[dict[str, Any]]:
        """Return what ``/api/v1/PATH`` finds, as soon as it finds something; ``params``: ``query`` and so on."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while True:
                answer = (await self.api.get(f"/api/v1/{path}", params=params)).raise_for_status().json()["data"]
                found: list[dict[str, Any]] = answer["result"] if isinstance(answer, dict) else answer
                if found:
                    return found
                await asyncio.sleep(0.05)  # what is waited for needs the processor


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str]) -> AsyncIterator[Prometheus]:
    """Run one that scrapes ``targets`` (job -> address) five times a second; what it writes goes to ``folder``."""
    program = needs("prometheus")
    jobs = [{"job_name": job, "static_configs": [{"targets": [urlsplit(url).netloc]}]} for job, url in targets.items()]
    timing = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": timing, "scrape_configs": jobs}), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
        "--log.level=error",
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}") as api:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                while not await _is_ready(api):
                    assert process.returncode is None, "Prometheus did not start"
                    await asyncio.sleep(0.05)  # as above
            yield Prometheus(api)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(api: httpx.AsyncClient) -> bool:
    try:
        return (await api.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False
