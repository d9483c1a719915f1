"""What scaling asks engines and the gateway, beside the steps: by the very code that asks in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import aiohttp

from sapwood_operator.adapters.engine_admin import EngineAdmin, addresses_of
from sapwood_operator.adapters.engine_calls import EngineCalls
from sapwood_operator.adapters.engine_signals import EngineSignals
from sapwood_operator.adapters.gateway_demand import GatewayDemands
from sapwood_operator.adapters.sampler import Sampler
from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.demand import Gateway
from sapwood_operator.autoscaling.engines import EngineSeen
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.turn import Scaling
from sapwood_operator.local.world import JsonObject, ServiceKey

SAMPLING_SECONDS = 5.0
"""Between two samplings: these engines are few and near, and somebody is looking."""


class AskedEngines:
    """As `platform.Engines`; belongs to one event loop, and never makes a step wait."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        services: Callable[[], Iterable[Watched]],
        *,
        gateway_admin_url: str,
        secret: bytes,
        wake: Callable[[ServiceKey], None],
    ) -> None:
        """``services``: all that there are now; ``secret``: of this run; ``wake``: told of which there is news."""
        self._secret, self._wake = secret, wake
        self._gateways = (Gateway("gateway", gateway_admin_url),)
        self._calls = EngineCalls(EngineAdmin(session), wake=self._wake_named, lose=_passed_over)
        self._sampler = Sampler(
            services,
            EngineSignals(session),
            GatewayDemands(session, self._find),
            wake=self._wake_named,
            every_seconds=SAMPLING_SECONDS,
        )

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            await self._sampler.run()
        finally:
            await self._calls.finish()

    def signals(self, key: ServiceKey) -> ServiceSignals:
        """As `platform.Engines.signals`."""
        return self._sampler.of(key.namespace, key.name)

    def known(self, key: ServiceKey) -> Mapping[str, EngineSeen]:
        """As `platform.Engines.known`."""
        return self._calls.known(key.namespace, key.name)

    def carry_out(self, key: ServiceKey, service: JsonObject, pods: Sequence[JsonObject], scaling: Scaling) -> None:
        """As `platform.Engines.carry_out`."""
        addresses = addresses_of(service, pods, self._secret)
        self._calls.carry_out(key.namespace, key.name, scaling.calls, scaling.lost, addresses)

    def forget(self, key: ServiceKey) -> None:
        """As `platform.Engines.forget`."""
        self._calls.forget(key.namespace, key.name)

    async def _find(self) -> tuple[Gateway, ...]:
        return self._gateways

    def _wake_named(self, namespace: str, name: str) -> None:
        self._wake(ServiceKey(namespace, name))


def _passed_over(_namespace: str, _name: str, _tokens: float) -> None:
    """Nobody scrapes this program: what is lost with a replica is told by the Event that chose it."""
