"""How a service is reached from outside the cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_operator.domain.fields import Fields
from sapwood_operator.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NoIngress:
    """No Ingress is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressExposure:
    """One host of an Ingress."""

    class_name: str
    """Empty: the cluster's default class."""
    host: str
    tls_secret: str
    """Secret with the certificate; empty: plain HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGateway:
    """No HTTPRoute is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayExposure:
    """An HTTPRoute of the Gateway API."""

    parents: tuple[Mapping[str, Any], ...]
    """``parentRefs``, in the Gateway API's own words."""
    hostnames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Every way into the cluster that a service asks for."""

    ingress: IngressExposure | NoIngress
    gateway: GatewayExposure | NoGateway

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names that mean this service, without doubles."""
        ingress = (self.ingress.host,) if isinstance(self.ingress, IngressExposure) else ()
        gateway = self.gateway.hostnames if isinstance(self.gateway, GatewayExposure) else ()
        return tuple(dict.fromkeys(ingress + gateway))


def check_hosts(exposure: Exposure, namespaces: Collection[str]) -> None:
    """Raise `InvalidSpec` for a host that the gateway takes for a name inside of the cluster, so that it means nothing.

    ``namespaces``: some that are known to be there; NAME.NAMESPACE is inside, and the schema cannot see that.
    """
    for host in exposure.hosts:
        parts = host.split(".")
        is_short = len(parts) == 1 or (len(parts) == 2 and parts[1] in namespaces)
        if is_short or parts[2:3] == ["svc"] or parts[-1].isdigit():
            fix = "it is a name inside of the cluster; give a host name such as chat.example.com"
            raise InvalidSpec("spec.exposure", host, fix)


def read_exposure(exposure: Fields) -> Exposure:
    """Read ``spec.exposure``; raises `InvalidSpec`."""
    ingress, gateway = exposure.inner("ingress"), exposure.inner("gateway")
    return Exposure(
        ingress=IngressExposure(
            class_name=ingress.text("className", ""),
            host=ingress.text("host"),
            tls_secret=ingress.inner("tls").text("secretName", ""),
        )
        if exposure.has("ingress")
        else NoIngress(),
        gateway=GatewayExposure(parents=gateway.objects("parentRefs"), hostnames=gateway.texts("hostnames"))
        if exposure.has("gateway")
        else NoGateway(),
    )
