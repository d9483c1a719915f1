"""Turns of a namespace's AutoscalingPolicies: write the statuses that are not as they should be."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime

from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.domain.policies import status_changes
from sapwood_operator.handlers.statuses import write_statuses
from sapwood_operator.handlers.store import PoliciesKey, Store
from sapwood_operator.handlers.workers import NothingThere, Turn


class PolicyStatuses:
    """Writes the status of every AutoscalingPolicy. All but its calls runs in the event loop's thread."""

    def __init__(self, store: Store, cluster: Cluster, *, threads: Executor, now: Callable[[], datetime]) -> None:
        """``threads`` runs the blocking calls; ``now`` is in UTC."""
        self._store = store
        self._cluster = cluster
        self._threads = threads
        self._now = now

    async def reconcile(self, key: PoliciesKey) -> Turn:
        """Write what is due in one namespace."""
        policies = tuple(self._store.policies(key.namespace).values())
        if not policies:
            return NothingThere()
        due = status_changes(policies, self._store.services(key.namespace), self._now())
        return await write_statuses(due, store=self._store, cluster=self._cluster, threads=self._threads)
