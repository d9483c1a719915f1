"""One request as it came in, whole, so that it can be sent more than once, and given to a service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from sapwood_gateway.core.choose import AnyModel, Chosen, choose
from sapwood_gateway.core.routes import Routes, Service
from sapwood_gateway.shell.openai import BadRequest, refusal_of

REQUEST_ID_KEY = web.RequestKey("request_id", str)
"""Set for every request before its handler runs."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent to a replica, and where."""

    request: web.Request
    body: bytes
    service: Service
    model: str

    @property
    def request_id(self) -> str:
        """The id in the headers and logs of gateway and engine."""
        return self.request[REQUEST_ID_KEY]


class _Body(msgspec.Struct):
    """All that the gateway reads of a body; the engine checks the rest."""

    model: Any = None


def call_of(request: web.Request, body: bytes, routes: Routes) -> Call:
    """Choose the service; raises `BadRequest` where the body is not a JSON object or no single service is meant."""
    model = _model_of(body)
    if model is None:
        named: str | AnyModel = AnyModel()
    elif isinstance(model, str):
        named = model
    else:
        raise BadRequest(400, "model: it must be a string", code="invalid_value", param="model")
    choice = choose(routes, request.host, named)
    if not isinstance(choice, Chosen):
        raise refusal_of(choice, model or "")
    return Call(request, body, choice.service, choice.model)


def _model_of(body: bytes) -> Any:
    """Return what the body names as its model; None where it names none. Raises `BadRequest` if it is no JSON object.

    msgspec passes over megabytes of messages in milliseconds. It is stricter than the engine, though (half a surrogate
    pair, NaN), so what it refuses the standard library has a look at.
    """
    try:
        return msgspec.json.decode(body, type=_Body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadRequest(400, "The body must be a JSON object.", code="invalid_body")
    return document.get("model")
