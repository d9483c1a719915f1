"""Writes statuses of objects that users write and nothing is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor

from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.adapters.outcomes import Done, Refused, Retry
from sapwood_operator.handlers.store import JsonObject, Store
from sapwood_operator.handlers.workers import Converged, TryAgain, Turn


async def write_statuses(
    due: Iterable[tuple[JsonObject, JsonObject]], *, store: Store, cluster: Cluster, threads: Executor
) -> Turn:
    """Write each (object, its status), whether or not another one's write fails; return how the turn ends."""
    ending: Turn = Converged()
    for live, status in due:
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(threads, cluster.apply_status, live, status)
        match outcome:
            case Done(body):
                store.put(body)
                if body["metadata"]["generation"] != live["metadata"]["generation"]:
                    ending = Converged(again_after_seconds=0.0)  # edited meanwhile: the watch will tell nothing new
            case Refused(_, reason, message):
                ending = TryAgain(reason, f"status: {message}")
            case Retry(reason, message, after_seconds):
                ending = TryAgain(reason, message, after_seconds)
    return ending
