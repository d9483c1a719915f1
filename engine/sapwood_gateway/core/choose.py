"""Which service a request is for: by the host that it was sent to, and by the model that it names.

A host that is a service's name (``NAME``, ``NAME.NAMESPACE``, ``NAME.NAMESPACE.svc…``) or one of its outside names
narrows the choice to that service, or to those of that name in several namespaces; any other host (an address, the
gateway's own name) narrows nothing. The model then picks among what is left. Where two services are left the request
is refused: a guess might send one team's prompts to another team's engine.
"""

from __future__ import annotations

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
    named = services_of_host(routes, host)
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
    named = [service for service in routes.services.values() if name in service.hosts]
    match name.split("."):
        case [first]:
            named += [service for key, service in routes.services.items() if key.name == first]
        case [first, namespace] | [first, namespace, "svc", *_]:
            named += [service for key, service in routes.services.items() if key == (namespace, first)]
    return tuple(dict.fromkeys(named or routes.services.values()))


def models_of(services: tuple[Service, ...]) -> tuple[str, ...]:
    """Return the models of all ``services``, each once, sorted."""
    return tuple(sorted({model for service in services for model in (*service.models, *service.former_models)}))


def _host_name(host: str) -> str:
    """``Chat.Team.:80`` -> ``chat.team``; an address in brackets names nothing."""
    return "" if host.startswith("[") else host.partition(":")[0].lower().rstrip(".")
