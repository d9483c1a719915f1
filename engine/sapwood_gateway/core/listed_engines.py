"""Routes without a cluster: engines given by address, each of which says itself which model it serves and how it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey

NAMESPACE = "static"


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """One engine of the list, as it was last seen."""

    replica: Replica
    model: str = ""
    """What it serves; empty until it has said so once. It is kept while the engine is away: its service stays."""
    is_ready: bool = False


def routes_of(engines: Iterable[ListedEngine], policy: RoutingPolicy) -> Routes:
    """Return a service a model, of the engines that serve it, each routed by ``policy``."""
    replicas: dict[ServiceKey, tuple[Replica, ...]] = {}
    for engine in engines:
        if engine.model:
            key = ServiceKey(NAMESPACE, engine.model)
            replicas[key] = (*replicas.get(key, ()), replace(engine.replica, is_ready=engine.is_ready))
    return Routes({key: Service(key, (key.name,), policy) for key in replicas}, replicas)
