"""Routes without a cluster: engines given by address, each of which says itself which model it serves and how it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sapwood_contract.routing import Authentication, CacheSharing, RoutingPolicy
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey

NAMESPACE = "static"


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """One engine of the list, as it was last seen."""

    replica: Replica
    model: str = ""
    """What it serves; empty until it has said so once. It is kept while the engine is away: its service stays."""
    is_ready: bool = False


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who may call the services of listed engines, and whose prefixes a request may reuse."""

    authentication: Authentication
    cache_sharing: CacheSharing


OPEN = Tenancy("None", "Tenant")


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many requests wait for one of these services while it has no replica for them, and how long."""

    max_requests: int = 0
    """0: none waits."""
    max_wait_seconds: float = 30.0


NO_QUEUE = QueueLimits()


def routes_of(
    engines: Iterable[ListedEngine],
    policy: RoutingPolicy,
    tenancy: Tenancy = OPEN,
    queue: QueueLimits = NO_QUEUE,
) -> Routes:
    """Return a service a model, of the engines that serve it, each routed by ``policy``."""
    replicas: dict[ServiceKey, tuple[Replica, ...]] = {}
    for engine in engines:
        if engine.model:
            key = ServiceKey(NAMESPACE, engine.model)
            replicas[key] = (*replicas.get(key, ()), replace(engine.replica, is_ready=engine.is_ready))
    services = {
        key: Service(
            key,
            (key.name,),
            policy,
            queue_max_requests=queue.max_requests,
            queue_max_wait_seconds=queue.max_wait_seconds,
            authentication=tenancy.authentication,
            cache_sharing=tenancy.cache_sharing,
        )
        for key in replicas
    }
    return Routes(services, replicas)
