"""How much there is to do for each service: requests that came, wait, are under way and have ended; and how many went
where their prefix is.

Invariant, at any moment and of each service: waiting, running and ended are together as many as arrived, and none is
below 0; no more went by prefix than were given a replica. Whoever sees a request come tells of its end too, however it
ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sapwood_contract.http import ServiceDemand
from sapwood_gateway.core.routes import ServiceKey


@dataclass(slots=True)
class _Counts:
    last_seconds: float
    """When the last request came or ended; when the service came to be known where there was none."""
    num_arrived: int = 0
    num_ended: int = 0
    num_waiting: int = 0
    num_routed: int = 0
    num_routed_by_prefix: int = 0


class Demand:
    """Mutable, for one thread; every ``now`` is in seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._counts: dict[ServiceKey, _Counts] = {}
        self._known: Collection[ServiceKey] = ()

    def know(self, services: Collection[ServiceKey], *, now: float) -> None:
        """Count for exactly these services, and for those of requests that have not ended."""
        self._known = services
        for key in services:
            self._counts.setdefault(key, _Counts(now))
        for key in [key for key in self._counts if key not in services]:
            self._forget_if_idle(key)

    def arrived(self, service: ServiceKey, *, now: float) -> None:
        """A request has come, and does not wait."""
        counts = self._counts.setdefault(service, _Counts(now))
        counts.num_arrived += 1
        counts.last_seconds = now

    def waits(self, service: ServiceKey) -> None:
        """One of those that are under way waits for a replica from now on."""
        self._counts[service].num_waiting += 1

    def waits_no_longer(self, service: ServiceKey) -> None:
        """One that `waits` told of is under way again, or about to end."""
        self._counts[service].num_waiting -= 1

    def routed(self, service: ServiceKey, *, by_prefix: bool) -> None:
        """A replica was chosen for a request that `arrived` told of; ``by_prefix``: as of `ServiceDemand`."""
        counts = self._counts[service]
        counts.num_routed += 1
        counts.num_routed_by_prefix += by_prefix

    def ended(self, service: ServiceKey, *, now: float) -> None:
        """A request that `arrived` told of, and that does not wait, is over."""
        counts = self._counts[service]
        counts.num_ended += 1
        counts.last_seconds = now
        if service not in self._known:
            self._forget_if_idle(service)

    def num_waiting(self, service: ServiceKey) -> int:
        """Return how many requests for one of `services` wait."""
        return self._counts[service].num_waiting

    @property
    def services(self) -> tuple[ServiceKey, ...]:
        """All that it counts for, in order."""
        return tuple(sorted(self._counts))

    def of(self, service: ServiceKey, replicas: Mapping[str, int], *, now: float) -> ServiceDemand:
        """Return what is known of one of `services`; ``replicas``: requests on each, by name."""
        counts = self._counts[service]
        num_open = counts.num_arrived - counts.num_ended
        return ServiceDemand(
            *service,
            num_waiting=counts.num_waiting,
            num_running=num_open - counts.num_waiting,
            num_arrived=counts.num_arrived,
            idle_seconds=0.0 if num_open else now - counts.last_seconds,
            replicas=dict(replicas),
            num_routed=counts.num_routed,
            num_routed_by_prefix=counts.num_routed_by_prefix,
        )

    def check_invariants(self) -> list[str]:
        """Return what is wrong inside, for tests; empty where nothing is."""
        return [
            f"{key}: {counts}"
            for key, counts in self._counts.items()
            if not 0 <= counts.num_waiting <= counts.num_arrived - counts.num_ended
            or not 0 <= counts.num_routed_by_prefix <= counts.num_routed <= counts.num_arrived
        ]

    def _forget_if_idle(self, service: ServiceKey) -> None:
        counts = self._counts[service]
        if counts.num_ended == counts.num_arrived:
            del self._counts[service]
