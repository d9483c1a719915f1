"""From the cluster's objects, as JSON, to routes: ConfigMaps say what services there are, EndpointSlices who serves.

What Kubernetes leaves to whoever reads EndpointSlices: an endpoint may stand in several slices at once, also with
older facts in one of them; ``ready`` that is absent means ready; a slice may be of the other address family.

Anybody may write an EndpointSlice in a namespace of theirs, with whatever uid and address: so a replica is one of its
service, and what is learned of it holds for no other service's replica.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sapwood_contract.keys import replica_id
from sapwood_contract.routing import ROUTE_KEY, InvalidRoute, ServiceRoute, from_json
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey

SLICE_SERVICE_LABEL = "kubernetes.io/service-name"
"""Label by which an EndpointSlice belongs to a Service."""


@dataclass(frozen=True, slots=True)
class _Ports:
    http: int
    admin: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Routes, and why some ConfigMaps gave none: sentences for the log."""

    routes: Routes
    problems: tuple[str, ...]


def routes_of(
    config_maps: Iterable[Mapping[str, Any]],
    slices: Iterable[Mapping[str, Any]],
    *,
    gateway: ServiceKey | None = None,
) -> Facts:
    """Return what the cluster's objects say, taken together; the result does not depend on their order.

    ``gateway``: the Service that leads to the gateway, where it is known.
    """
    by_service: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in slices:
        metadata = each["metadata"]
        name = metadata.get("labels", {}).get(SLICE_SERVICE_LABEL, "")
        by_service.setdefault((metadata["namespace"], name), []).append(each)
    services: dict[ServiceKey, Service] = {}
    replicas: dict[ServiceKey, tuple[Replica, ...]] = {}
    problems: list[str] = []
    for config_map in sorted(config_maps, key=_where):
        try:
            route = _route_of(config_map)
            found = _replicas_of(route, by_service.get((route.namespace, route.engine_service), ()))
        except Exception as error:  # anybody may write one in a namespace of theirs: it never stops the others
            reason = str(error) if isinstance(error, InvalidRoute) else reprlib.repr(error)
            problems.append(f"ConfigMap {_where(config_map)} is passed over: {reason}")
            continue
        key = ServiceKey(route.namespace, route.service)
        hosts = tuple(host.lower() for host in route.hosts)
        services[key] = Service(
            key,
            route.models,
            policy=route.policy,
            hot_prefix_replicas=route.hot_prefix_replicas,
            queue_max_requests=route.queue_max_requests,
            queue_max_wait_seconds=route.queue_max_wait_seconds,
            authentication=route.authentication,
            cache_sharing=route.cache_sharing,
            hosts=hosts,
        )
        replicas[key] = found
    return Facts(Routes(services, replicas, gateway), tuple(problems))


def _where(config_map: Mapping[str, Any]) -> str:
    metadata = config_map["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _route_of(config_map: Mapping[str, Any]) -> ServiceRoute:
    """Read a ConfigMap; one that speaks of another namespace than its own is refused.

    Whoever may write ConfigMaps in one namespace shall not take over a service of another.
    """
    text = (config_map.get("data") or {}).get(ROUTE_KEY)
    if not isinstance(text, str):
        raise InvalidRoute(f"it has no key {ROUTE_KEY}")
    route = from_json(text)
    if route.namespace != config_map["metadata"]["namespace"]:
        raise InvalidRoute("namespace: it is not the ConfigMap's own")
    return route


def _replicas_of(route: ServiceRoute, slices: Iterable[Mapping[str, Any]]) -> tuple[Replica, ...]:
    found: dict[str, Replica] = {}
    # IPv4 first: of a pod with an address of each family the first one stays.
    for each in sorted(slices, key=lambda each: (str(each.get("addressType")), str(each["metadata"]["name"]))):
        ports = _ports_of(route, each)
        for endpoint in each.get("endpoints") or ():
            if not endpoint.get("addresses"):
                continue
            replica = _replica_of(route, ports, endpoint)
            known = found.get(replica.id)
            found[replica.id] = replica if known is None else _both(known, replica)
    return tuple(found[id_] for id_ in sorted(found))


def _ports_of(route: ServiceRoute, each: Mapping[str, Any]) -> _Ports:
    """The slice's own ports, else the route's: without pods many replicas live on one address."""
    named = {port.get("name"): port.get("port") for port in each.get("ports") or ()}
    return _Ports(named.get("http") or route.port, named.get("admin") or route.admin_port)


def _replica_of(route: ServiceRoute, ports: _Ports, endpoint: Mapping[str, Any]) -> Replica:
    address = endpoint["addresses"][0]
    host = f"[{address}]" if ":" in address else address
    pod = endpoint.get("targetRef") or {}
    conditions = endpoint.get("conditions") or {}
    name = pod.get("name") or f"{host}:{ports.http}"
    return Replica(
        id=replica_id(route.namespace, route.service, pod.get("uid") or f"{host}:{ports.http}"),
        name=name,
        url=f"http://{host}:{ports.http}",
        admin_url=f"http://{host}:{ports.admin}",
        is_ready=conditions.get("ready") is not False,
        is_terminating=conditions.get("terminating") is True,
        is_cordoned=name in route.cordoned,
    )


def _both(first: Replica, second: Replica) -> Replica:
    """Two slices name one pod: the one that is behind says too much good of it, so the worse of both holds."""
    return replace(
        first,
        is_ready=first.is_ready and second.is_ready,
        is_terminating=first.is_terminating or second.is_terminating,
        is_cordoned=first.is_cordoned or second.is_cordoned,
    )
