"""The Ingress of ``spec.exposure.ingress``: one host, everything below it to the gateway."""

from __future__ import annotations

from typing import Any

from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.exposure import IngressExposure
from sapwood_operator.domain.spec import ServiceSpec

API_VERSION, KIND = "networking.k8s.io/v1", "Ingress"


def ingress(spec: ServiceSpec, exposure: IngressExposure) -> dict[str, Any]:
    """Return the Ingress; its backend is the gateway Service."""
    backend = {"service": {"name": spec.name, "port": {"name": "http"}}}
    body: dict[str, Any] = {
        "rules": [
            {
                "host": exposure.host,
                "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
            }
        ]
    }
    if exposure.class_name:
        body["ingressClassName"] = exposure.class_name
    if exposure.tls_secret:
        body["tls"] = [{"hosts": [exposure.host], "secretName": exposure.tls_secret}]
    return child(API_VERSION, KIND, spec.name, spec, spec=body)
