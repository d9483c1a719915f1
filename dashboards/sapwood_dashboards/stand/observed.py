"""One run: all programs, a minute of load, and what Prometheus knows of it afterwards."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sapwood_dashboards.stand.answers import Answers, ask, panel_expressions, rule_expressions, rule_file
from sapwood_dashboards.stand.load import minute_of_load
from sapwood_dashboards.stand.programs import running

_SETTLE_SECONDS = 3.0
"""For the last scrapes and evaluations."""


async def observe(folder: Path, seconds: float) -> Answers:
    """Run for about ``seconds`` of load, with logs and Prometheus' data in ``folder``; return what it answers.

    Raises `NotReady` where a program does not start.
    """
    async with running(folder, rule_file()) as stand:
        begin = time.time()
        await minute_of_load(stand, seconds)
        await asyncio.sleep(_SETTLE_SECONDS)
        expressions = [*panel_expressions(), *rule_expressions()]
        return await ask(stand.http, stand.prometheus.url, expressions, begin, time.time())
