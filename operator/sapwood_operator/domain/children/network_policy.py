"""The NetworkPolicy: who may speak to an engine. Where it connects to is left open, for models and traces."""

from __future__ import annotations

from typing import Any

from sapwood_contract.routing import COMPONENT_LABEL
from sapwood_operator.domain import launch, names
from sapwood_operator.domain.children.base import child
from sapwood_operator.domain.children.services import gateway_pods
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

API_VERSION, KIND = "networking.k8s.io/v1", "NetworkPolicy"


def network_policy(spec: ServiceSpec, settings: OperatorSettings) -> dict[str, Any]:
    """Return the policy: gateway and operator reach both APIs, only the gateway the events of blocks, and metrics peers
    the admin port.
    """
    gateway = _peer(settings.gateway_namespace, gateway_pods(settings))
    operator = _peer(settings.operator_namespace, {names.NAME_LABEL: "sapwood", COMPONENT_LABEL: "operator"})
    ingress = [{"from": [gateway, operator], "ports": [_port(launch.HTTP_PORT), _port(launch.ADMIN_PORT)]}]
    if launch.publishes_blocks(spec):
        blocks = [_port(launch.KV_EVENTS_PORT), _port(launch.KV_REPLAY_PORT)]
        ingress.append({"from": [gateway], "ports": blocks})
    if settings.metrics_peers:
        peers = [dict(peer) for peer in settings.metrics_peers]
        ingress.append({"from": peers, "ports": [_port(launch.ADMIN_PORT)]})
    return child(
        API_VERSION,
        KIND,
        names.engine(spec.name),
        spec,
        spec={
            "podSelector": {"matchLabels": names.selector(spec.name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _peer(namespace: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        # The API server itself gives every namespace this label.
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": labels},
    }


def _port(number: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": number}
