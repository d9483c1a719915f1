"""Every child that a service should have, in the order in which they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sapwood_operator.domain import launch
from sapwood_operator.domain.children import http_route, ingress, pod_monitor, prometheus_rule
from sapwood_operator.domain.children.config_map import routing_config_map
from sapwood_operator.domain.children.credential import credential_secret
from sapwood_operator.domain.children.deployment import deployment
from sapwood_operator.domain.children.disruption import disruption_budget
from sapwood_operator.domain.children.network_policy import network_policy
from sapwood_operator.domain.children.service_account import service_account
from sapwood_operator.domain.children.services import gateway_service, headless_service
from sapwood_operator.domain.exposure import GatewayExposure, IngressExposure
from sapwood_operator.domain.spec import ServiceSpec
from sapwood_operator.settings import OperatorSettings

OPTIONAL_APIS = frozenset(
    {
        (pod_monitor.API_VERSION, pod_monitor.KIND),
        (prometheus_rule.API_VERSION, prometheus_rule.KIND),
        (ingress.API_VERSION, ingress.KIND),
        (http_route.API_VERSION, http_route.KIND),
    }
)
"""``(apiVersion, kind)`` of children that are made only where the cluster has their API."""

KINDS = OPTIONAL_APIS | {
    ("v1", "ServiceAccount"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("apps/v1", "Deployment"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
}
"""``(apiVersion, kind)`` of every child that is seen and may be deleted. What else a service owns is not the operator's
to delete.
"""


def is_served(spec: ServiceSpec, settings: OperatorSettings) -> bool:
    """Whether the service gets an address: not where it asks for keys and engines could not tell the gateway, which
    checks them, from anybody else.
    """
    return spec.tenancy.authentication == "None" or bool(settings.secret)


def missing_apis(spec: ServiceSpec, apis: frozenset[tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Return ``(field, apiVersion, kind)`` of what the spec asks for by name and the cluster has no API for."""
    asked = (
        (isinstance(spec.exposure.ingress, IngressExposure), "exposure.ingress", ingress),
        (isinstance(spec.exposure.gateway, GatewayExposure), "exposure.gateway", http_route),
        (spec.observability.pod_monitor == "Enabled", "observability.podMonitor", pod_monitor),
        (spec.observability.alerts == "Enabled", "observability.alerts", prometheus_rule),
    )
    return tuple(
        (field, module.API_VERSION, module.KIND)
        for is_asked, field, module in asked
        if is_asked and (module.API_VERSION, module.KIND) not in apis
    )


def desired_children(
    spec: ServiceSpec,
    settings: OperatorSettings,
    *,
    replicas: int,
    apis: frozenset[tuple[str, str]],
    cordoned: Sequence[str] = (),
    scales_to_zero: bool = False,
    promised_seconds: float | None = None,
) -> tuple[Mapping[str, Any], ...]:
    """Return complete objects; raises `InvalidSpec` for what no pod can be made of.

    ``cordoned``, ``scales_to_zero``: as of `routing_config_map`; ``promised_seconds``: as of `prometheus_rule`.

    Who may speak to a pod, and what is its account, comes before the pods; the address comes last.
    """
    children: list[Mapping[str, Any]] = [
        service_account(spec),
        network_policy(spec, settings),
        headless_service(spec),
        disruption_budget(spec),
        *([credential_secret(spec, settings)] if launch.has_credential(spec, settings) else []),
        deployment(spec, settings, replicas),
        *_watched(spec, settings, apis, promised_seconds),
    ]
    if is_served(spec, settings):
        route = routing_config_map(spec, cordoned=cordoned, scales_to_zero=scales_to_zero)
        children += [route, gateway_service(spec, settings), *_outside(spec, settings, apis)]
    return tuple(children)


def _watched(
    spec: ServiceSpec, settings: OperatorSettings, apis: frozenset[tuple[str, str]], promised_seconds: float | None
) -> list[Mapping[str, Any]]:
    children: list[Mapping[str, Any]] = []
    if spec.observability.pod_monitor != "Disabled" and (pod_monitor.API_VERSION, pod_monitor.KIND) in apis:
        children.append(pod_monitor.pod_monitor(spec, settings))
    if spec.observability.alerts != "Disabled" and (prometheus_rule.API_VERSION, prometheus_rule.KIND) in apis:
        children.append(prometheus_rule.prometheus_rule(spec, settings, promised_seconds=promised_seconds))
    return children


def _outside(
    spec: ServiceSpec, settings: OperatorSettings, apis: frozenset[tuple[str, str]]
) -> list[Mapping[str, Any]]:
    children: list[Mapping[str, Any]] = []
    if isinstance(spec.exposure.ingress, IngressExposure) and (ingress.API_VERSION, ingress.KIND) in apis:
        children.append(ingress.ingress(spec, spec.exposure.ingress))
    if isinstance(spec.exposure.gateway, GatewayExposure) and (http_route.API_VERSION, http_route.KIND) in apis:
        children.append(http_route.http_route(spec, spec.exposure.gateway, settings))
    return children
