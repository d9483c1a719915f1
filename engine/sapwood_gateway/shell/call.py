"""One request as it came in, whole, so that it can be sent more than once, and given to a service."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from sapwood_gateway.core.callers import Caller
from sapwood_gateway.core.choose import AnyModel
from sapwood_gateway.core.prices import DEFAULT_ANSWER_TOKENS, answer_limit
from sapwood_gateway.core.routes import Service
from sapwood_gateway.core.tenants import ANONYMOUS, Tenant
from sapwood_gateway.shell.auth import NO_PASSPORT, Auth, Passport
from sapwood_gateway.shell.openai import BadRequest
from sapwood_gateway.shell.route_trace import RouteTrace

REQUEST_ID_KEY = web.RequestKey("request_id", str)
"""Set for every request before its handler runs."""
TRACE_KEY = web.RequestKey[RouteTrace]("trace", object)  # type: ignore[arg-type]  # a protocol is no class to check
"""Set where a request's handling begins."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent to a replica, and where."""

    request: web.Request
    body: bytes
    service: Service
    model: str
    tenant: Tenant = ANONYMOUS
    passport: Passport = field(default=NO_PASSPORT, repr=False)
    max_answer_tokens: int = DEFAULT_ANSWER_TOKENS
    """How long all choices of its answer may get together, as far as the body says."""

    @property
    def request_id(self) -> str:
        """The id in the headers and logs of gateway and engine."""
        return self.request[REQUEST_ID_KEY]

    @property
    def trace(self) -> RouteTrace:
        """Who is told of its way."""
        return self.request[TRACE_KEY]


class _Body(msgspec.Struct):
    """All that the gateway reads of a body; the engine checks the rest."""

    model: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    n: Any = None
    cache_salt: Any = None
    extra_key: Any = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    """As it is written: a long one in ids would become millions of objects."""


def call_of(request: web.Request, body: bytes, caller: Caller, auth: Auth) -> Call:
    """Choose the service; raises `GatewayError` where the body is not a JSON object, no single service is meant, or
    ``caller`` may not call it.
    """
    fields = _fields_of(body)
    model = fields.model
    if model is None:
        named: str | AnyModel = AnyModel()
    elif isinstance(model, str):
        named = model
    else:
        raise BadRequest(400, "model: it must be a string", code="invalid_value", param="model")
    admitted = auth.admit(caller, named)
    says_namespace = fields.cache_salt is not None or fields.extra_key is not None
    passport = auth.passport(admitted, says_namespace=says_namespace)
    limit = answer_limit(
        fields.max_completion_tokens, fields.max_tokens, fields.n, num_prompts=_num_prompts(fields.prompt)
    )
    return Call(
        request, body, admitted.service, admitted.model, admitted.tenant, passport=passport, max_answer_tokens=limit
    )


def _fields_of(body: bytes) -> _Body:
    """Return what the gateway reads of a body. Raises `BadRequest` if it is no JSON object.

    msgspec passes over megabytes of messages in milliseconds. It is stricter than the engine, though (half a surrogate
    pair, NaN), so what it refuses the standard library has a look at.
    """
    try:
        return msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadRequest(400, "The body must be a JSON object.", code="invalid_body")
    read: dict[str, Any] = {name: document.get(name) for name in _Body.__struct_fields__}
    return _Body(**read | {"prompt": msgspec.Raw(json.dumps(read["prompt"]).encode())})


def _num_prompts(prompt: msgspec.Raw) -> int:
    """Return how many prompts a body asks for at once: a list of texts or of lists is several, one of ids is one."""
    if not re.match(rb"\s*\[\s*[\"\[]", prompt):
        return 1
    try:
        return len(msgspec.json.decode(prompt, type=list[msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return len(json.loads(bytes(prompt)))
    except (ValueError, RecursionError):
        return 1
