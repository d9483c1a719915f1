"""Who may call which service: from a request's key to a tenant, and to what that tenant may see.

A key is known to the services of its tenant's namespace alone. A caller sees the services that want no key, and of
the others those whose namespace knows the key; of these the models that the tenant may call. What one does not see is
answered like what does not exist, so nobody learns which it is. Whoever shows no key that is known, but names what is
not open to all, is told to show one: also that in the same words whether or not there is such a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sapwood_gateway.core.choose import (
    Ambiguous,
    AnyModel,
    Choice,
    Chosen,
    ModelMissing,
    UnknownModel,
    choose_among,
    services_of_host,
)
from sapwood_gateway.core.routes import Routes, Service, ServiceKey
from sapwood_gateway.core.tenants import ANONYMOUS, Tenant, Tenants, UnknownKey

Reason = Literal["no_key", "unknown_key", "suspended"]


@dataclass(frozen=True, slots=True)
class Denied:
    """The caller has to show another key, or none will do."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Admitted:
    """The caller may call this model of this service."""

    service: Service
    model: str
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a caller once the head of its request is."""

    named: tuple[Service, ...]
    """The services that the request's host names."""
    visible: tuple[Service, ...]
    """Those of them that the caller may call, each with the models that it may call."""
    tenants: Mapping[ServiceKey, Tenant]
    """Who the caller is, by each service that lets it in."""
    denied: Denied | None
    """Why no service that wants a key knows the caller; None where one does, or none wants a key."""

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that the body can say will let the request in."""
        return self.denied is not None and not self.visible

    def choose(self, model: str | AnyModel) -> Admitted | Denied | UnknownModel | Ambiguous | ModelMissing:
        """Return where a request for ``model`` goes, or why it goes nowhere."""
        # Without a known key a name that an open service shares with one that wants a key stays ambiguous: a key that
        # is misspelt must not send a team's prompts to another team's engine.
        if self.denied is not None and self.is_hopeless:
            return self.denied
        choice = choose_among(self.visible if self.denied is None else self.named, model)
        if self.denied is not None and self._is_about_keys(choice):
            return self.denied
        if not isinstance(choice, Chosen):
            return choice
        key = choice.service.key
        return Admitted(next(each for each in self.named if each.key == key), choice.model, self.tenants[key])

    def _is_about_keys(self, choice: Choice) -> bool:
        """Whether ``choice``, made among all services, would tell of one that the caller does not see."""
        match choice:
            case Chosen(service):
                return service.key not in self.tenants
            case Ambiguous(services):
                return any(key not in self.tenants for key in services)
            case UnknownModel():
                return True
            case ModelMissing():
                return False


def caller_of(routes: Routes, host: str, tenants: Tenants, key: str | None) -> Caller:
    """Return who calls with ``key`` (None: with none), as far as the services are concerned that ``host`` names."""
    named = services_of_host(routes, host)
    visible: list[Service] = []
    known: dict[ServiceKey, Tenant] = {}
    refused: set[Reason] = set()
    for service in named:
        tenant: Tenant | UnknownKey = ANONYMOUS
        if service.authentication == "ApiKey":
            tenant = UnknownKey() if key is None else tenants.find(service.key.namespace, key)
        if isinstance(tenant, UnknownKey):
            refused.add("no_key" if key is None else "unknown_key")
        elif tenant.is_suspended:
            refused.add("suspended")
        else:
            known[service.key] = tenant
            visible += _seen(service, tenant)
    denied = None
    if refused and all(tenant is ANONYMOUS for tenant in known.values()):
        denied = Denied("suspended" if "suspended" in refused else refused.pop())
    return Caller(named, tuple(visible), known, denied)


def _seen(service: Service, tenant: Tenant) -> Sequence[Service]:
    """Return the service with the models that ``tenant`` may call; nothing where there are none."""
    base = tuple(filter(tenant.may_call, service.models[:1]))
    adapters = tuple(filter(tenant.may_call_adapter, service.models[1:]))
    former = tuple(filter(tenant.may_call, service.former_models))
    seen = replace(service, models=base + adapters, former_models=former)
    return [seen] if seen.models or seen.former_models else []


def cache_tenant(service: Service, tenant: Tenant, *, says_namespace: bool, nonce: str) -> str | None:
    """Return with whom cached prefixes of a request may be shared, as the engine's namespaces know it; None: with all.

    ``says_namespace``: whether the body has a cache_salt or extra_key. What it says is its own tenant's: it would
    otherwise be a word that strangers of the group could guess. ``nonce``: of this request alone, unguessable.
    """
    if service.authentication == "None":
        return None
    own = f"tenant:{tenant.id}"
    match service.cache_sharing:
        case "None":
            return f"request:{nonce}"
        case "Tenant":
            return own
        case "Group":
            shares = tenant.group is not None and not says_namespace
            return f"group:{tenant.namespace}/{tenant.group}" if shares else own
        case "Public":
            return own if says_namespace else "public"


def hides_cached_tokens(service: Service) -> bool:
    """Whether answers may not tell how much of a prompt was cached: it shows what strangers have asked."""
    return service.authentication != "None" and service.cache_sharing == "Public"
