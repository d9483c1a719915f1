"""How the gateway treats a service's requests: which replica takes them, which wait, who may send them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from sapwood_contract.routing import POLICIES, Authentication, CacheSharing, RoutingPolicy
from sapwood_operator.domain.fields import Fields
from sapwood_operator.errors import InvalidSpec

DEFAULT_QUEUE_REQUESTS = 100
DEFAULT_QUEUE_SECONDS = 30.0
DEFAULT_HOT_REPLICAS = (1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """``spec.routing``."""

    policy: RoutingPolicy
    hot_prefix_replicas: tuple[int, int]
    """Fewest and most."""
    queue_max_requests: int
    """0: none is held."""
    queue_max_wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """``spec.tenancy``."""

    authentication: Authentication
    cache_sharing: CacheSharing


def read_routing(routing: Fields) -> Routing:
    """Read ``spec.routing``; raises `InvalidSpec`."""
    hot, queue = routing.inner("hotPrefixReplicas"), routing.inner("queue")
    fewest = hot.integer("min", DEFAULT_HOT_REPLICAS[0], least=1)
    most = hot.integer("max", DEFAULT_HOT_REPLICAS[1], least=1)
    if fewest > most:
        raise InvalidSpec(hot.where("min"), fewest, f"it is above max, {most}: lower it, or raise max")
    return Routing(
        policy=cast(RoutingPolicy, routing.choice("policy", "PrefixAffinity", POLICIES)),
        hot_prefix_replicas=(fewest, most),
        queue_max_requests=queue.integer("maxRequests", DEFAULT_QUEUE_REQUESTS) if routing.has("queue") else 0,
        queue_max_wait_seconds=queue.seconds("maxWait", DEFAULT_QUEUE_SECONDS),
    )


def read_tenancy(tenancy: Fields) -> Tenancy:
    """Read ``spec.tenancy``; raises `InvalidSpec`."""
    authentication = tenancy.choice("authentication", "None", get_args(Authentication))
    sharing = tenancy.choice("cacheSharing", "Tenant", get_args(CacheSharing))
    if authentication == "None" and sharing in ("None", "Group"):
        fix = "without keys everybody is one tenant: set authentication to ApiKey, or take Tenant or Public"
        raise InvalidSpec(tenancy.where("cacheSharing"), sharing, fix)
    return Tenancy(authentication=cast(Authentication, authentication), cache_sharing=cast(CacheSharing, sharing))
