"""Which service a request is for: by the host that it was sent to, and by the model that it names.

A name inside the cluster (``NAME.NAMESPACE``, ``NAME.NAMESPACE.svc…``) narrows the choice to the service of that name,
and nothing that a service claims as a host changes that. A name from outside narrows it to the services that claim it.
Any other host (an address, ``localhost``, a name without a dot, the gateway's own) narrows nothing. The model then
picks among what is left. Where two services are left the request is refused: a guess might send one team's prompts to
another team's engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sapwood_gateway.core.routes import Routes, Service, ServiceKey


@dataclass(frozen=True, slots=True)
class Chosen:
    """One service, and the model's name: never one that a client made up."""

    service: Service
    model: str


@dataclass(frozen=True, slots=True)
class UnknownModel:
    """No service in question serves the model; ``served`` are the models that there are."""

    served: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """More than one service fits; ``services`` are those."""

    services: tuple[ServiceKey, ...]


@dataclass(frozen=True, slots=True)
class ModelMissing:
    """The request names no model, and more than one could be meant."""


Choice = Chosen | UnknownModel | Ambiguous | ModelMissing


@dataclass(frozen=True, slots=True)
class AnyModel:
    """The body names no model: the one that there is, is meant."""


def choose(routes: Routes, host: str, model: str | AnyModel) -> Choice:
    """Return the service that a request to ``host`` (a Host header) for ``model`` goes to."""
    return choose_among(services_of_host(routes, host), model)


def choose_among(named: Sequence[Service], model: str | AnyModel) -> Choice:
    """Return the one of ``named`` that a request for ``model`` goes to."""
    if isinstance(model, AnyModel):
        models = {each for service in named for each in service.models}
        if len(named) != 1 or len(models) != 1:
            return ModelMissing()
        model = models.pop()
    # A name that a service is just giving up may be another's already.
    fitting = [service for service in named if model in service.models] or [
        service for service in named if model in service.former_models
    ]
    match fitting:
        case []:
            return UnknownModel(models_of(named))
        case [service]:
            return Chosen(service, model)
        case _:
            return Ambiguous(tuple(sorted(service.key for service in fitting)))


def services_of_host(routes: Routes, host: str) -> tuple[Service, ...]:
    """Return the services that ``host`` names; all of them where it names none."""
    name = _host_name(host)
    named: Collection[Service]
    match name.split("."):
        case [first, namespace, "svc", *_]:
            named = _inside(routes, ServiceKey(namespace, first))
        case [first, namespace] if _has_namespace(routes, namespace):
            named = _inside(routes, ServiceKey(namespace, first))
        case [_, *_, last] if not last.isdigit():  # neither a name without a dot nor an IPv4 address
            named = _claiming(routes, name)
        case _:
            named = ()
    return tuple(named or routes.services.values())


def models_of(services: Iterable[Service]) -> tuple[str, ...]:
    """Return the models of all ``services``, each once, sorted."""
    return tuple(sorted({model for service in services for model in (*service.models, *service.former_models)}))


def _has_namespace(routes: Routes, namespace: str) -> bool:
    """Whether ``x.namespace`` is a name inside the cluster, not one from outside such as ``example.com``."""
    known = routes.services if routes.gateway is None else (*routes.services, routes.gateway)
    return any(key.namespace == namespace for key in known)


def _inside(routes: Routes, key: ServiceKey) -> Collection[Service]:
    return [routes.services[key]] if key in routes.services and key != routes.gateway else ()


def _claiming(routes: Routes, name: str) -> Collection[Service]:
    """Return the services with the closest claim on ``name`` of their namespace: none takes a name from another's."""
    claims = [(service, _closeness(service, name)) for service in routes.services.values()]
    closest: dict[str, int] = {}
    for service, closeness in claims:
        closest[service.key.namespace] = max(closeness, closest.get(service.key.namespace, 0))
    return [service for service, closeness in claims if 0 < closeness == closest[service.key.namespace]]


def _closeness(service: Service, name: str) -> int:
    """Return how many characters of ``name`` the closest of the service's hosts spells out; 0: none means it."""
    if name in service.hosts:
        return len(name)
    wildcards = (host[1:] for host in service.hosts if host.startswith("*."))
    return max((len(suffix) for suffix in wildcards if name.endswith(suffix)), default=0)


def _host_name(host: str) -> str:
    """``Chat.Team.:80`` -> ``chat.team``; an address in brackets names nothing."""
    return "" if host.startswith("[") else host.partition(":")[0].lower().rstrip(".")
