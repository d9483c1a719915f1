"""What is asked of engines and gateway, over their admin ports: whether they are ready, and their figures."""

from __future__ import annotations

import aiohttp

from sapwood_contract.http import METRICS, READYZ

_PROBE_SECONDS = 2.0


async def is_ready(session: aiohttp.ClientSession, admin_url: str) -> bool:
    """Whether a program says that it can take requests."""
    try:
        async with session.get(admin_url + READYZ, timeout=_TIMEOUT, allow_redirects=False) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


async def metrics_text(session: aiohttp.ClientSession, admin_url: str) -> str:
    """Return a program's metrics; empty where it does not answer."""
    try:
        async with session.get(admin_url + METRICS, timeout=_TIMEOUT, allow_redirects=False) as response:
            return await response.text()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return ""


_TIMEOUT = aiohttp.ClientTimeout(total=_PROBE_SECONDS)
