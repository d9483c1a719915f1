"""Who sends a request, and what goes on to the engine about it.

Before a body is read, a caller is refused whom no body could let in; which service is meant is known after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from sapwood_contract.trust import CACHED_TOKENS_HEADER, CREDENTIAL_HEADER, PRIORITY_CEILING_HEADER, TENANT_HEADER
from sapwood_gateway.core.callers import Admitted, Caller, Denied, cache_tenant, caller_of, hides_cached_tokens
from sapwood_gateway.core.choose import AnyModel, models_of
from sapwood_gateway.core.routes import Routes, Service
from sapwood_gateway.core.tenants import Tenants
from sapwood_gateway.shell import openai

_BEARER = "bearer"


@dataclass(frozen=True, slots=True)
class Passport:
    """What an engine is told of one request besides what its client says."""

    cache_tenant: str | None
    """As `block_names.PromptSpace.tenant`."""
    headers: Mapping[str, str]
    """Empty: the engine knows no gateway, and the client's own Authorization goes on."""


NO_PASSPORT = Passport(None, {})


class Auth:
    """Decides for one event loop; what it knows is asked for at each request."""

    def __init__(
        self,
        *,
        tenants: Callable[[], Tenants] = Tenants,
        credential_of: Callable[[Service], str | None] = lambda _: None,
        denied: Callable[[], None] = lambda: None,
    ) -> None:
        """``credential_of``: what the engines of a service ask for; ``denied``: called for each caller refused."""
        self._tenants = tenants
        self._credential_of = credential_of
        self._denied = denied

    def caller(self, request: web.Request, routes: Routes) -> Caller:
        """Return who sends ``request``, of which the head is known; raises `openai.Unauthorized` if nothing helps."""
        caller = caller_of(routes, request.host, self._tenants(), _key_of(request))
        if caller.denied is not None and caller.is_hopeless:
            raise self._refusal(caller.denied)
        return caller

    def admit(self, caller: Caller, model: str | AnyModel) -> Admitted:
        """Return the service that ``caller`` means; raises `openai.GatewayError` where there is no single one."""
        chosen = caller.choose(model)
        if isinstance(chosen, Denied):
            raise self._refusal(chosen)
        if not isinstance(chosen, Admitted):
            raise openai.refusal_of(chosen, "" if isinstance(model, AnyModel) else model)
        return chosen

    def passport(self, admitted: Admitted, *, says_namespace: bool) -> Passport:
        """Return what an engine is told; raises `openai.Unavailable` where it could not know that it comes from here.

        ``says_namespace``: as of `callers.cache_tenant`.
        """
        service = admitted.service
        credential = self._credential_of(service)
        if service.authentication == "None":
            return NO_PASSPORT if credential is None else Passport(None, {CREDENTIAL_HEADER: credential})
        if credential is None:
            raise openai.no_credential(service.key)
        nonce = secrets.token_hex(16)
        shared_with = cache_tenant(service, admitted.tenant, says_namespace=says_namespace, nonce=nonce)
        assert shared_with is not None
        headers = {
            CREDENTIAL_HEADER: credential,
            TENANT_HEADER: shared_with,
            PRIORITY_CEILING_HEADER: str(admitted.tenant.priority_ceiling),
        }
        if hides_cached_tokens(service):
            headers[CACHED_TOKENS_HEADER] = "hide"
        return Passport(shared_with, headers)

    def model(self, caller: Caller, model: str) -> None:
        """Raise `openai.GatewayError` unless ``caller`` may call some ``model``."""
        served = models_of(caller.visible)
        if model not in served:
            raise openai.model_not_found(model, served) if caller.denied is None else self._refusal(caller.denied)

    def _refusal(self, denied: Denied) -> openai.GatewayError:
        self._denied()
        return openai.unauthorized(denied)


def _key_of(request: web.Request) -> str | None:
    """Return the key in the Authorization header; None where there is none, also of another scheme."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == _BEARER else None
