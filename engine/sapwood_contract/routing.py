"""What the operator tells the gateway of one InferenceService: a value, and the JSON of a ConfigMap for it and back.

The gateway learns which replicas there are from EndpointSlices. This is what it must know besides, and even while
there is no replica at all: that the service exists, what it answers to, and how its replicas are chosen.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

RoutingPolicy = Literal["LeastLoad", "RoundRobin", "PrefixAffinity"]
Authentication = Literal["None", "ApiKey"]
CacheSharing = Literal["None", "Tenant", "Group", "Public"]
POLICIES: tuple[RoutingPolicy, ...] = get_args(RoutingPolicy)

ROUTING_LABEL = "serving.sapwood.dev/routing"
"""Label of the ConfigMaps that hold a route; its value is ``"true"``."""
SERVICE_LABEL = "serving.sapwood.dev/service"
"""Label of everything that belongs to an InferenceService; its value is the service's name."""
COMPONENT_LABEL = "app.kubernetes.io/component"
"""Label of what a pod, Service or EndpointSlice is part of: ``engine``, ``gateway`` or ``operator``."""
ROUTE_KEY = "service.json"
"""Key of the ConfigMap's data."""


class InvalidRoute(ValueError):
    """The text is not a route; the message names what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRoute:
    """One InferenceService, as the gateway needs it."""

    namespace: str
    service: str
    """Name of the InferenceService."""
    models: tuple[str, ...]
    """Names in the OpenAI API that the service answers to; the first is the base model."""
    engine_service: str
    """Headless Service in ``namespace`` whose EndpointSlices list the replicas."""
    port: int = 8000
    """Port of the OpenAI API on a replica."""
    admin_port: int = 8001
    """Port of the admin API on a replica."""
    policy: RoutingPolicy = "LeastLoad"
    hot_prefix_replicas: tuple[int, int] = (1, 4)
    """On how many replicas at least and at most a prefix that many use is kept, where prefixes decide."""
    queue_max_requests: int = 0
    """Requests that the gateway holds while no replica can take them; 0: it holds none."""
    queue_max_wait_seconds: float = 30.0
    """How long it holds one."""
    authentication: Authentication = "None"
    """Whether callers need the API key of a Tenant in ``namespace``."""
    cache_sharing: CacheSharing = "Tenant"
    """Whose prefixes a request may reuse; without authentication everybody is one tenant."""
    hosts: tuple[str, ...] = ()
    """Host names from outside the cluster (Ingress, HTTPRoute) that mean this service; one may begin with ``*.``.

    Names inside the cluster cannot be claimed: `sapwood_gateway.core.choose` says which those are.
    """

    cordoned: tuple[str, ...] = ()
    """Names of replicas (pods) that are sent nothing new: they finish what they have, and go."""

    def __post_init__(self) -> None:
        for name in ("namespace", "service", "engine_service"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InvalidRoute(f"{name}: {reprlib.repr(getattr(self, name))} is not a name")
        for name in ("port", "admin_port"):
            value = getattr(self, name)
            if not _is_whole(value) or not 1 <= value <= 65_535:
                raise InvalidRoute(f"{name}: {reprlib.repr(value)} is not a port from 1 to 65535")
        for name in ("models", "hosts", "cordoned"):
            if not all(isinstance(text, str) and text for text in getattr(self, name)):
                raise InvalidRoute(f"{name}: {reprlib.repr(getattr(self, name))} has something that is not a name")
        if not self.models:
            raise InvalidRoute("models: a service answers to one name at least")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidRoute(f"{name}: {reprlib.repr(getattr(self, name))} is not one of {', '.join(choices)}")
        _check_numbers(self)


_CHOICES: dict[str, tuple[str, ...]] = {
    "policy": POLICIES,
    "authentication": get_args(Authentication),
    "cache_sharing": get_args(CacheSharing),
}


def _check_numbers(route: ServiceRoute) -> None:
    hot = route.hot_prefix_replicas
    if len(hot) != 2 or not all(_is_whole(each) for each in hot) or not 1 <= hot[0] <= hot[1]:
        raise InvalidRoute(f"hot_prefix_replicas: {reprlib.repr(hot)} is not a least and a most, both 1 or more")
    if not _is_whole(route.queue_max_requests) or route.queue_max_requests < 0:
        raise InvalidRoute(f"queue_max_requests: {reprlib.repr(route.queue_max_requests)} is not a number from 0")
    wait = route.queue_max_wait_seconds
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < float("inf"):
        raise InvalidRoute(f"queue_max_wait_seconds: {reprlib.repr(wait)} is not a number of seconds")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def to_json(route: ServiceRoute) -> str:
    """Return the text that `from_json` reads back as ``route``; equal routes give equal texts."""
    return json.dumps(dataclasses.asdict(route), sort_keys=True)


def from_json(text: str) -> ServiceRoute:
    """Read one route; raises `InvalidRoute` for text that is not JSON, lacks a field or has a wrong value.

    Fields that this version does not know are passed over: a newer operator may write to an older gateway.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRoute(f"not JSON that can be read: {error}") from None
    if not isinstance(document, Mapping):
        raise InvalidRoute(f"a route is a JSON object, not {type(document).__name__}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(ServiceRoute):
        if field.name in document:
            values[field.name] = document[field.name]
        elif field.default is dataclasses.MISSING:
            raise InvalidRoute(f"{field.name}: missing")
    for name in ("models", "hosts", "cordoned", "hot_prefix_replicas"):
        if name in values:
            if not isinstance(values[name], list):
                raise InvalidRoute(f"{name}: {reprlib.repr(values[name])} is not a list")
            values[name] = tuple(values[name])
    return ServiceRoute(**values)
