"""What the gateway answers itself, in OpenAI's form: errors, and the list of models.

::

    GatewayError            carries status, type, code, param and when to come back
    ├── BadRequest          400, 404, 405, 408, 413, 415: the client's doing
    ├── Unauthorized        401, 403: another key is needed, or none will do
    ├── TooMany             429: more than a queue, or the caller's quota, has room for
    └── Unavailable         502, 503, 504: no replica could answer, or the gateway holds too much already

No text of a client enters a message but the name of a model, cut to 80 characters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from sapwood_gateway.core.balance import NoReplica
from sapwood_gateway.core.callers import Denied
from sapwood_gateway.core.choose import Ambiguous, ModelMissing, UnknownModel
from sapwood_gateway.core.quotas import Exceeded, SeatsTaken
from sapwood_gateway.core.routes import ServiceKey

_MAX_QUOTED_CHARACTERS = 80
_WAIT_FOR_REPLICA_SECONDS = 5
"""Retry-After where a pod must first become ready."""


class GatewayError(Exception):
    """One answer that is not an engine's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str,
        code: str,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.code = code
        self.param = param
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(GatewayError):
    """The client must change something."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(status, message, type_="invalid_request_error", code=code, param=param)


class Unauthorized(GatewayError):
    """The caller may not; no text of a key is ever repeated."""

    def __init__(self, status: int, message: str, *, code: str) -> None:
        super().__init__(status, message, type_="invalid_request_error", code=code)


class TooMany(GatewayError):
    """There are too many requests; the same one may succeed after ``retry_after_seconds``."""

    def __init__(self, message: str, *, code: str, retry_after_seconds: int) -> None:
        super().__init__(429, message, type_="rate_limit_error", code=code, retry_after_seconds=retry_after_seconds)


class Unavailable(GatewayError):
    """It cannot be answered now; the same request may succeed a little later."""

    def __init__(self, status: int, message: str, *, code: str, retry_after_seconds: int = 1) -> None:
        super().__init__(
            status, message, type_="service_unavailable", code=code, retry_after_seconds=retry_after_seconds
        )


INTERNAL_ERROR = GatewayError(
    500, "The gateway failed on this request; its log says why.", type_="server_error", code="internal_error"
)
CUT_SHORT = GatewayError(
    502,
    "The engine ended before its answer did; what was sent so far is incomplete.",
    type_="server_error",
    code="upstream_ended",
)


def gateway_stops() -> Unavailable:
    """Return the error for a request that outlasts the drain; a new one each time, for it is raised."""
    return Unavailable(
        503,
        "The gateway stops and its time to finish is over; what was sent so far is incomplete.",
        code="gateway_stopping",
    )


def refusal_of(choice: UnknownModel | Ambiguous | ModelMissing, model: str) -> BadRequest:
    """Return the error for a request that no single service can be found for."""
    match choice:
        case UnknownModel(served):
            return model_not_found(model, served)
        case Ambiguous(services):
            hosts = ", ".join(f"{key.name}.{key.namespace}" for key in services)
            return BadRequest(
                400,
                f"More than one service serves the model {_quote(model)}: name one in the Host header ({hosts}).",
                code="ambiguous_model",
                param="model",
            )
        case ModelMissing():
            return BadRequest(400, "model: this field is required", code="missing_required_parameter", param="model")


def model_not_found(model: str, served: Sequence[str]) -> BadRequest:
    """Return the 404 for a model that is not served."""
    return BadRequest(
        404,
        f"The model {_quote(model)} is not served here; served: {', '.join(served) or 'none'}.",
        code="model_not_found",
        param="model",
    )


def unauthorized(denied: Denied) -> Unauthorized:
    """Return the error for a caller whom no service in question knows."""
    match denied.reason:
        case "no_key":
            return Unauthorized(401, "Give an API key: 'Authorization: Bearer <key>'.", code="invalid_api_key")
        case "unknown_key":
            return Unauthorized(401, "The API key is not known here.", code="invalid_api_key")
        case "suspended":
            return Unauthorized(
                403, "This API key's tenant is suspended; ask whoever runs the service.", code="tenant_suspended"
            )


def no_credential(service: ServiceKey) -> Unavailable:
    """Return the 503 for a service whose engines would not know this gateway."""
    return Unavailable(
        503,
        f"The service {service} asks for API keys, and this gateway has no credential for its engines: whoever runs "
        "the gateway must start it with --secret-file.",
        code="no_credential",
        retry_after_seconds=_WAIT_FOR_REPLICA_SECONDS,
    )


def no_replica(service: ServiceKey, refused: NoReplica) -> Unavailable:
    """Return the 503 for a service whose replicas cannot take a request, saying how they are."""
    if not refused.reasons:
        state = "it has no replica"
    else:
        words = sorted(set(refused.reasons))
        counts = ", ".join(f"{refused.reasons.count(word)} {word.replace('_', ' ')}" for word in words)
        state = f"of its replicas: {counts}"
    return Unavailable(
        503,
        f"The service {service} has no replica that is ready: {state}. Try again in {_WAIT_FOR_REPLICA_SECONDS} s.",
        code="no_replica_ready",
        retry_after_seconds=_WAIT_FOR_REPLICA_SECONDS,
    )


def queue_full(service: ServiceKey) -> TooMany:
    """Return the 429 for a request that has no place to wait in; how many of others wait is not its caller's matter."""
    return TooMany(
        f"As many requests wait for the service {service} as may, and this one has no place among them. "
        f"Try again in {_WAIT_FOR_REPLICA_SECONDS} s.",
        code="queue_full",
        retry_after_seconds=_WAIT_FOR_REPLICA_SECONDS,
    )


def service_changed(service: ServiceKey) -> Unavailable:
    """Return the 503 for a request that was let in under other rules than hold now that it could be sent."""
    return Unavailable(
        503,
        f"The service {service} asks for other credentials than when this request came, and it has waited since. "
        "Try again in 1 s.",
        code="service_changed",
    )


def queue_timeout(service: ServiceKey, seconds: float) -> Unavailable:
    """Return the 503 for a request that has waited as long as it may."""
    return Unavailable(
        503,
        f"The service {service} had no replica with room for this request within {seconds:g} s. "
        f"Try again in {_WAIT_FOR_REPLICA_SECONDS} s.",
        code="queue_timeout",
        retry_after_seconds=_WAIT_FOR_REPLICA_SECONDS,
    )


def quota_refusal(refused: Exceeded | SeatsTaken) -> TooMany:
    """Return the 429 for a request beyond what its caller may use."""
    if isinstance(refused, SeatsTaken):
        return TooMany(
            f"You have {refused.limit} requests under way, as many as you may. Try again when one has ended.",
            code="rate_limited",
            retry_after_seconds=1,
        )
    if refused.asked:
        message = (
            f"This request may use {refused.asked} tokens, and you {refused.limit} a {refused.period}: "
            "shorten the prompt or lower max_tokens."
        )
    else:
        message = (
            f"You may use {refused.limit} {refused.kind} a {refused.period}, and this one goes beyond. "
            f"Try again in {refused.retry_after_seconds} s."
        )
    return TooMany(
        message,
        code="rate_limited" if refused.period == "minute" else "quota_exceeded",
        retry_after_seconds=refused.retry_after_seconds,
    )


def quotas_unknown() -> Unavailable:
    """Return the 503 for a request that cannot be counted, where it must be."""
    return Unavailable(
        503, "What you have used cannot be counted now. Try again in 1 s.", code="quota_store_unavailable"
    )


def error_response(error: GatewayError) -> web.Response:
    """Return the answer for ``error``."""
    headers = {} if error.retry_after_seconds is None else {"Retry-After": str(error.retry_after_seconds)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error.body(), status=error.status, headers=headers)


def error_event(error: GatewayError) -> bytes:
    """Return ``error`` as the last event of a stream."""
    return b"data: " + _encode(error.body()) + b"\n\n"


def model_card(model: str, created: int) -> dict[str, Any]:
    """Return what ``/v1/models`` says of one model; ``created``: Unix time."""
    return {"id": model, "object": "model", "created": created, "owned_by": "sapwood"}


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return ``value`` as JSON, with the content type as the engine writes it."""
    return web.Response(
        body=_encode(value), status=status, headers={**(headers or {}), "Content-Type": "application/json"}
    )


def _encode(value: Any) -> bytes:
    # Plain ASCII: half a surrogate pair, which JSON can smuggle into a model's name, has no UTF-8.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _quote(text: str) -> str:
    quoted = repr(text[: _MAX_QUOTED_CHARACTERS + 1])
    return quoted if len(quoted) <= _MAX_QUOTED_CHARACTERS else quoted[:_MAX_QUOTED_CHARACTERS] + "…"
