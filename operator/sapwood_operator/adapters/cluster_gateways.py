"""Which gateways a cluster has: by the EndpointSlices of their Service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sapwood_operator.adapters.cluster import Cluster, Listed
from sapwood_operator.adapters.kinds import ENDPOINT_SLICES
from sapwood_operator.autoscaling.demand import Gateway, NoGateways, gateways_in

ADDRESSES_SECONDS = 5.0
"""A list of gateways is made anew when it is so old, beside the questions: none of them waits for the API server."""
OLDEST_SECONDS = 30.0
"""Only for one that is older than this is waited: nobody asked for long, or the API server is away."""
_SERVICE_LABEL = "kubernetes.io/service-name"


class ClusterGateways:
    """Needs the verb list on EndpointSlices in the gateways' namespace."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        service: str,
        admin_port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: seconds, never going back."""
        self._cluster = cluster
        self._namespace, self._service, self._admin_port = namespace, service, admin_port
        self._clock = clock
        self._found: tuple[Gateway, ...] | NoGateways = NoGateways("nobody has asked yet which gateways there are")
        self._found_at = float("-inf")
        self._listing: asyncio.Task[None] | None = None

    async def find(self) -> tuple[Gateway, ...] | NoGateways:
        """Return the gateways; while the API server does not answer those that it named last."""
        age = self._clock() - self._found_at
        if age >= ADDRESSES_SECONDS:
            if self._listing is None or self._listing.done():
                self._listing = asyncio.create_task(self._list())
            if age >= OLDEST_SECONDS:
                await asyncio.shield(self._listing)
        return self._found

    async def _list(self) -> None:
        answer = await asyncio.to_thread(
            self._cluster.list, ENDPOINT_SLICES, self._namespace, label_selector=f"{_SERVICE_LABEL}={self._service}"
        )
        if isinstance(answer, Listed):
            self._found = gateways_in(answer.objects, admin_port=self._admin_port)
            self._found_at = self._clock()
        elif isinstance(self._found, NoGateways):
            self._found = NoGateways(f"the API server does not say which gateways there are: {answer.message}")
