"""What is known of services and replicas at one moment, as one value that every decision reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sapwood_contract.routing import Authentication, CacheSharing, RoutingPolicy


class ServiceKey(NamedTuple):
    """An InferenceService's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Service:
    """What requests can name: models behind one name, whether or not a replica is up."""

    key: ServiceKey
    models: tuple[str, ...]
    policy: RoutingPolicy = "LeastLoad"
    hot_prefix_replicas: tuple[int, int] = (1, 4)
    queue_max_requests: int = 0
    queue_max_wait_seconds: float = 30.0
    authentication: Authentication = "None"
    cache_sharing: CacheSharing = "Tenant"
    hosts: tuple[str, ...] = ()
    """Host names from outside that mean this service, in small letters; one may begin with ``*.``."""
    former_models: tuple[str, ...] = ()
    """Other names that replicas of a former revision answer to, as long as they take requests."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine as discovery sees it; what the gateway learned by itself is in `fleet.Fleet`."""

    id: str
    """Never reused for another engine, and of one service alone: a pod's address may be reused, so it holds the pod's
    uid where there is one."""
    name: str
    """For logs and people: the pod's name."""
    url: str
    admin_url: str
    is_ready: bool = True
    is_terminating: bool = False
    is_cordoned: bool = False
    """It is about to leave, and is sent nothing new."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Every service and the replicas of each, in the order of their ids."""

    services: Mapping[ServiceKey, Service] = field(default_factory=dict)
    replicas: Mapping[ServiceKey, tuple[Replica, ...]] = field(default_factory=dict)
    """Of services alone: a key that is absent has no replica."""
    gateway: ServiceKey | None = None
    """The Service that leads to the gateway; None where it is not known, or there is none."""

    def of(self, key: ServiceKey) -> tuple[Replica, ...]:
        """Return the replicas of one service; none for one that has gone."""
        return self.replicas.get(key, ())

    def served(self) -> Iterator[tuple[ServiceKey, str]]:
        """Yield each service with every model that requests can name there."""
        for key, service in self.services.items():
            for model in (*service.models, *service.former_models):
                yield key, model

    def all_replicas(self) -> list[Replica]:
        """Return every replica of every service."""
        return [replica for replicas in self.replicas.values() for replica in replicas]
