"""Turns of a namespace's Tenants: judge them together, and write the statuses that are not as they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime

from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.adapters.outcomes import Done, Refused, Retry
from sapwood_operator.domain.tenants import status_changes
from sapwood_operator.handlers.store import Store, TenantsKey
from sapwood_operator.handlers.workers import Converged, NothingThere, TryAgain, Turn


class TenantStatuses:
    """Writes the status of every Tenant. All but its calls runs in the event loop's thread."""

    def __init__(self, store: Store, cluster: Cluster, *, threads: Executor, now: Callable[[], datetime]) -> None:
        """``threads`` runs the blocking calls; ``now`` is in UTC."""
        self._store = store
        self._cluster = cluster
        self._threads = threads
        self._now = now

    async def reconcile(self, key: TenantsKey) -> Turn:
        """Write what is due in one namespace, each Tenant's whether or not another's fails."""
        tenants = self._store.tenants(key)
        if not tenants:
            return NothingThere()
        ending: Turn = Converged()
        for tenant, status in status_changes(tenants, self._now()):
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(self._threads, self._cluster.apply_status, tenant, status)
            match outcome:
                case Done(body):
                    self._store.put(body)
                    if body["metadata"]["generation"] != tenant["metadata"]["generation"]:
                        ending = Converged(again_after_seconds=0.0)  # edited meanwhile: the watch will tell nothing new
                case Refused(_, reason, message):
                    ending = TryAgain(reason, f"status: {message}")
                case Retry(reason, message, after_seconds):
                    ending = TryAgain(reason, message, after_seconds)
        return ending
