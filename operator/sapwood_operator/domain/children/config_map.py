"""The ConfigMap by which the gateway knows the service, even while it has no replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood_contract import routing
from sapwood_operator.domain import launch, names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.routing import DEFAULT_QUEUE_REQUESTS
from sapwood_operator.domain.spec import ServiceSpec

API_VERSION, KIND = "v1", "ConfigMap"
_WAKE_SECONDS = 600.0
"""How long requests may wait for the first replica where the spec gives no queue: as long as loading may take."""


def routing_config_map(
    spec: ServiceSpec, *, cordoned: Sequence[str] = (), scales_to_zero: bool = False
) -> dict[str, Any]:
    """Return the ConfigMap with the service's route.

    ``cordoned``: names of replicas that are sent nothing new. ``scales_to_zero``: requests are held in any case, for
    nothing but a held request wakes a service without replicas.
    """
    queue = (spec.routing.queue_max_requests, spec.routing.queue_max_wait_seconds)
    if scales_to_zero and not spec.routing.queue_max_requests:
        queue = (DEFAULT_QUEUE_REQUESTS, _WAKE_SECONDS)
    route = routing.ServiceRoute(
        namespace=spec.namespace,
        service=spec.name,
        models=(spec.model.served_name,),
        engine_service=names.engine(spec.name),
        port=launch.HTTP_PORT,
        admin_port=launch.ADMIN_PORT,
        policy=spec.routing.policy,
        hot_prefix_replicas=spec.routing.hot_prefix_replicas,
        queue_max_requests=queue[0],
        queue_max_wait_seconds=queue[1],
        authentication=spec.tenancy.authentication,
        cache_sharing=spec.tenancy.cache_sharing,
        hosts=spec.exposure.hosts,
        cordoned=tuple(cordoned),
    )
    config_map = child(
        API_VERSION, KIND, names.routing(spec.name), spec, data={routing.ROUTE_KEY: routing.to_json(route)}
    )
    config_map["metadata"]["labels"][routing.ROUTING_LABEL] = "true"
    return config_map
