"""Every refusal and failure as OpenAI's error object: ``{"error": {message, type, param, code}}``.

The body is valid JSON whatever the client sent: values are quoted as text, never echoed as numbers. Of what may be a
prompt or a secret only the kind is told: errors end up in the logs of those who ask. What went wrong inside is logged,
not told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sapwood_engine.api.answers import ErrorAnswer, ErrorDetail
from sapwood_engine.errors import InvalidField, RequestError, SapwoodError, WorkerDied
from sapwood_text.errors import UnusableText
from sapwood_text.fields import REFUSED

log = logging.getLogger(__name__)

INTERNAL_ERROR = ErrorAnswer(
    ErrorDetail("The server failed on this request; its log says why.", "server_error", None, "internal_error")
)

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left; nobody reads it, but metrics and logs do."""
OUTCOME = "outcome"
"""Key in a scope's state: the status that a call counts as, that of its answer unless this had begun and went wrong."""

_PRIVATE_FIELDS = frozenset(
    {
        *("messages", "prompt", "suffix", "stop", "chat_template_kwargs", "tools", "functions", "metadata"),
        *("prefixes", "user", "safety_identifier", "extra_key", "cache_salt", "prompt_cache_key", "routing_key"),
    }
)
"""What stands in or below them is somebody's text."""
_WORDS_OF_THE_API = frozenset({"role", "type"})
"""Below them a word is quoted all the same: it is no text of anybody's."""
_UNREAD_CODES = frozenset({"unknown_parameter", "unsupported_parameter"})
"""Of fields that nobody reads here, and which may hold anything."""

_HTTP_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


class MalformedBody(RequestError):
    """The body is not the JSON object that the endpoint reads."""

    code = "invalid_body"


class PromptTooLong(RequestError):
    """A text that cannot fit the context, seen from its length alone; else it is `ContextLengthExceeded`."""

    code = "context_length_exceeded"

    def __init__(self, *, num_characters: int, limit_tokens: int, param: str) -> None:
        super().__init__(
            f"This model takes at most {limit_tokens} tokens; the prompt's {num_characters} characters are "
            f"more than {limit_tokens} tokens. Shorten the prompt."
        )
        self.param = param


class WebPageRefused(RequestError):
    """A web page asks for a change: it may be any page that the operator's browser has open."""

    status = 403
    code = "origin_not_allowed"

    def __init__(self) -> None:
        super().__init__("Web pages (requests with an Origin header) may not change anything here.")


class UnsupportedMediaType(RequestError):
    """The body is not declared as JSON; a browser sends such a body across sites without asking."""

    status = 415
    code = "unsupported_media_type"


def _clean(text: str) -> str:
    """Half a surrogate pair, which JSON can smuggle in as an escape, has no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def error_answer(error: SapwoodError) -> tuple[int, ErrorAnswer]:
    """Return status and body for ``error``."""
    if isinstance(error, RequestError):
        param = None if error.param is None else _clean(error.param)
        return error.status, ErrorAnswer(ErrorDetail(_clean(str(error)), error.type, param, error.code))
    code = "worker_died" if isinstance(error, WorkerDied) else "generation_failed"
    return 500, ErrorAnswer(ErrorDetail(_clean(str(error)), "server_error", None, code))


def error_response(error: SapwoodError) -> Response:
    """Return the answer for ``error``, with Retry-After where it says when to come back."""
    status, answer = error_answer(error)
    headers = {}
    if isinstance(error, RequestError) and error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    return json_response(answer, status=status, headers=headers)


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``value`` (dataclasses, structs, builtins) as JSON."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), media_type="application/json")


def from_validation(error: Mapping[str, Any]) -> RequestError:
    """Turn one of pydantic's errors into ours; its ``loc`` is a path that begins at ``body`` or ``query``."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "json_invalid":
        return MalformedBody(f"The body is not valid JSON: {context.get('error')} (character {error['loc'][-1]}).")
    path = [str(part) for part in error["loc"][1:]]
    if kind == REFUSED:
        path += [context["field"]] if context["field"] else []
        shown = _shown(path, context["value"], is_read=context["code"] not in _UNREAD_CODES)
        return InvalidField(".".join(path), shown, context["fix"], code=context["code"])
    if kind == "missing" and path:
        return InvalidField(".".join(path), None, "this field is required", code="missing_required_parameter")
    if not path:
        if isinstance(error["input"], bytes):
            return UnsupportedMediaType("Send the body as JSON, with 'Content-Type: application/json'.")
        return MalformedBody("The body must be a JSON object.")
    message = str(error["msg"])
    return InvalidField(".".join(path), _shown(path, error["input"], is_read=True), message[:1].lower() + message[1:])


@dataclass(frozen=True, slots=True)
class _Kind:
    """Stands for a value that is not quoted."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _shown(path: Sequence[str], value: object, *, is_read: bool) -> object:
    """Return what an error may quote of ``value`` at ``path``: itself, or what kind of value it is."""
    if not isinstance(value, str | bytes | list | tuple | dict) or value == "***":
        return value
    field = ".".join(path)
    is_word = isinstance(value, str) and field.rpartition(".")[2] in _WORDS_OF_THE_API
    if is_read and (is_word or field.partition(".")[0] not in _PRIVATE_FIELDS):
        return value
    kinds = {str: "this text", bytes: "this text", dict: "this object"}
    return _Kind(kinds.get(type(value), "this list"))


async def _on_known(request: Request, error: Exception) -> Response:
    assert isinstance(error, SapwoodError)
    if not isinstance(error, RequestError):
        log.error("request failed: %s", error, extra={"path": request.scope["route"].path})
    return error_response(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(from_validation(error.errors()[0]))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = ErrorDetail(
        f"{request.method} {_clean(request.url.path)}: {error.detail}.",
        "invalid_request_error" if error.status_code < 500 else "server_error",
        None,
        _HTTP_CODES.get(error.status_code),
    )
    headers = dict(error.headers or {})
    if error.status_code == 405 and (methods := _documented_methods(request)):
        headers["Allow"] = ", ".join(methods)
    return json_response(ErrorAnswer(detail), status=error.status_code, headers=headers)


def _documented_methods(request: Request) -> list[str]:
    """Return every method of the path: the router tells those of the path's first route alone."""
    paths = request.app.openapi()["paths"]
    return sorted(method.upper() for method in paths.get(request.scope["path"], ()))


async def _on_unusable_text(_: Request, error: Exception) -> Response:
    assert isinstance(error, UnusableText)
    return error_response(InvalidField(error.field, error.value, error.fix, code=error.code))


def install_error_handlers(app: FastAPI) -> None:
    """Make every refusal of ``app`` an OpenAI error object; faults of ours are left to `edge.Edge`."""
    app.add_exception_handler(SapwoodError, _on_known)
    app.add_exception_handler(UnusableText, _on_unusable_text)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
