"""The ConfigMap by which the gateway knows the service, even while it has no replica."""

from __future__ import annotations

from typing import Any

from sapwood_contract import routing
from sapwood_operator.domain import launch, names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ServiceSpec

API_VERSION, KIND = "v1", "ConfigMap"


def routing_config_map(spec: ServiceSpec) -> dict[str, Any]:
    """Return the ConfigMap with the service's route."""
    route = routing.ServiceRoute(
        namespace=spec.namespace,
        service=spec.name,
        models=(spec.model.served_name,),
        engine_service=names.engine(spec.name),
        port=launch.HTTP_PORT,
        admin_port=launch.ADMIN_PORT,
        policy=spec.routing.policy,
        hot_prefix_replicas=spec.routing.hot_prefix_replicas,
        queue_max_requests=spec.routing.queue_max_requests,
        queue_max_wait_seconds=spec.routing.queue_max_wait_seconds,
        authentication=spec.tenancy.authentication,
        cache_sharing=spec.tenancy.cache_sharing,
        hosts=spec.exposure.hosts,
    )
    config_map = child(
        API_VERSION, KIND, names.routing(spec.name), spec, data={routing.ROUTE_KEY: routing.to_json(route)}
    )
    config_map["metadata"]["labels"][routing.ROUTING_LABEL] = "true"
    return config_map
