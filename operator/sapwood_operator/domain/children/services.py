"""Two Services: the headless one that lists the replicas, and the address that clients use, which is the gateway's."""

from __future__ import annotations

from typing import Any

from sapwood_contract.routing import COMPONENT_LABEL
from sapwood_operator.domain import launch, names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "v1", "Service"
CLIENT_PORT = 80


def headless_service(spec: ServiceSpec) -> dict[str, Any]:
    """Return the Service whose EndpointSlices the gateway watches; they inherit its labels."""
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": names.selector(spec.name),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in launch.ports(spec).items()
            ],
        },
    )


def gateway_service(spec: ServiceSpec, settings: OperatorSettings) -> dict[str, Any]:
    """Return the Service of the service's own name: the gateway, wherever it runs.

    In the gateway's own namespace it selects its pods; from another one it can only be a name for its Service.
    """
    ports = [{"name": "http", "port": CLIENT_PORT, "targetPort": "http", "protocol": "TCP"}]
    if settings.gateway_namespace == spec.namespace:
        body: dict[str, Any] = {"type": "ClusterIP", "selector": gateway_pods(settings), "ports": ports}
    else:
        host = f"{settings.gateway_service}.{settings.gateway_namespace}.svc.{settings.cluster_domain}"
        body = {"type": "ExternalName", "externalName": host, "ports": ports}
    return child(API_VERSION, KIND, spec.name, spec, spec=body)


def gateway_pods(settings: OperatorSettings) -> dict[str, str]:
    """Labels of the gateway's pods."""
    return {
        names.NAME_LABEL: "sapwood",
        COMPONENT_LABEL: "gateway",
        names.INSTANCE_LABEL: settings.gateway_instance,
    }


def url(spec: ServiceSpec, settings: OperatorSettings) -> str:
    """Return the address that clients in the cluster use."""
    return f"http://{spec.name}.{spec.namespace}.svc.{settings.cluster_domain}"
