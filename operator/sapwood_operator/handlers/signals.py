"""What the leading operator learns of services that scale beside what watches tell: from engines or Prometheus, and
from gateways. Only a leader asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sapwood_operator.adapters.asking import client_session
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.adapters.cluster_gateways import ClusterGateways
from sapwood_operator.adapters.engine_signals import EngineSignals
from sapwood_operator.adapters.gateway_demand import GatewayDemands
from sapwood_operator.adapters.prometheus_signals import PrometheusSignals
from sapwood_operator.adapters.sampler import Sampler
from sapwood_operator.autoscaling.attention import Watched, watched
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.handlers.store import ServiceKey, Store
from sapwood_operator.settings import OperatorSettings, PrometheusSource

NOTHING_KNOWN = ServiceSignals()


class Signals:
    """All but the calls to the API server runs in the event loop's thread."""

    def __init__(
        self, store: Store, cluster: Cluster, settings: OperatorSettings, *, wake: Callable[[ServiceKey], None]
    ) -> None:
        """``wake``: told every service of which there is news."""
        self._store, self._settings, self._wake = store, settings, wake
        self._gateways = ClusterGateways(
            cluster,
            namespace=settings.gateway_namespace,
            service=settings.gateway_service,
            admin_port=settings.gateway_admin_port,
        )
        self._sampler: Sampler | None = None

    def of(self, key: ServiceKey) -> ServiceSignals:
        """Return what is known of one service now; never waits."""
        return self._sampler.of(key.namespace, key.name) if self._sampler else NOTHING_KNOWN

    async def run(self) -> None:
        """Ask until cancelled."""
        async with client_session() as session:
            source = self._settings.signals
            scrapes = (
                PrometheusSignals(session, source.url)
                if isinstance(source, PrometheusSource)
                else EngineSignals(session)
            )
            gateways = GatewayDemands(session, self._gateways.find)
            self._sampler = Sampler(self._services, scrapes, gateways, wake=self._wake_named)
            await self._sampler.run()

    def _services(self) -> Iterator[Watched]:
        keys = self._store.keys()
        for key in keys:
            if isinstance(key, ServiceKey) and (service := self._store.service(key)) is not None:
                yield watched(service, self._store.pods(key))

    def _wake_named(self, namespace: str, name: str) -> None:
        self._wake(ServiceKey(namespace, name))
