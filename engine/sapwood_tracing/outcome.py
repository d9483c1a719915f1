"""How spans say that something went wrong; never with words of a client's, which messages of errors quote."""

from __future__ import annotations

from opentelemetry.trace import Span, Status, StatusCode

from sapwood_tracing import names

_CLIENT_GONE = 499


def fail(span: Span, error: str) -> None:
    """Mark ``span`` as failed; ``error``: one of few words."""
    span.set_attribute(names.ERROR_TYPE, error)
    span.set_status(Status(StatusCode.ERROR, error))


def error_type(status: int) -> str:
    """Return what an HTTP status above 399 is called; 499 is a client that left."""
    return "client_disconnected" if status == _CLIENT_GONE else str(status)
