"""The HTTPRoute of ``spec.exposure.gateway``, where the Gateway API exists."""

from __future__ import annotations

from typing import Any

from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.children.services import CLIENT_PORT
from sapwood_operator.domain.exposure import GatewayExposure
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "gateway.networking.k8s.io/v1", "HTTPRoute"


def http_route(spec: ServiceSpec, exposure: GatewayExposure, settings: OperatorSettings) -> dict[str, Any]:
    """Return the HTTPRoute; its backend is the gateway's Service itself.

    Implementations do not follow an ExternalName. From another namespace a ReferenceGrant beside the gateway has to
    allow it, which is its owner's to give.
    """
    backend: dict[str, Any] = {"name": spec.name, "port": CLIENT_PORT}
    if settings.gateway_namespace != spec.namespace:
        backend = {"name": settings.gateway_service, "namespace": settings.gateway_namespace, "port": CLIENT_PORT}
    body: dict[str, Any] = {
        "parentRefs": [dict(parent) for parent in exposure.parents],
        "rules": [{"backendRefs": [backend]}],
    }
    if exposure.hostnames:
        body["hostnames"] = list(exposure.hostnames)
    return child(API_VERSION, KIND, spec.name, spec, spec=body)
