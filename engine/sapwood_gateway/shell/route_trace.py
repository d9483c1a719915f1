"""What a request's way through the gateway is told of, span by span; here for requests that are not traced.

`route_spans` makes the spans. It loads what makes and sends them, which a gateway without a receiver does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from sapwood_gateway.core.fleet import Lease
from sapwood_gateway.core.routes import Replica
from sapwood_tracing.context import TRACEPARENT, TRACESTATE, NoContext, TraceContext, read_context, trace_id_text

if TYPE_CHECKING:  # who counts attempts knows calls, and a call its trace
    from sapwood_gateway.shell.metrics import AttemptFailure


class RouteTrace(Protocol):
    """One request, from `RouteTraces.begin` to `ended`."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What tells the engine whose trace it is; empty: what the client said goes on as it came."""
        ...

    @property
    def log_fields(self) -> Mapping[str, str]:
        """What every record of the request carries."""
        ...

    @property
    def exemplar(self) -> Mapping[str, str]:
        """What a metric says of the request; empty where its trace is not kept."""
        ...

    def placed(self, lease: Lease, *, waited_seconds: float) -> None:
        """A replica was chosen for it, after so long in the queue."""
        ...

    def attempt(self, replica: Replica, path: str, /) -> AbstractContextManager[None]:
        """For so long it is with ``replica``."""
        ...

    def answered(self, status: int, code: str) -> None:
        """The replica of the attempt answered with ``status``; ``code``: what came of the answer."""
        ...

    def attempt_failed(self, reason: AttemptFailure) -> None:
        """The attempt came to nothing, or to less than a whole answer."""
        ...

    def ended(self, *, service: str, model: str, code: str) -> None:
        """It is over; what is not known is empty."""
        ...


class RouteTraces(Protocol):
    """Begins the traces of a gateway's requests."""

    def begin(self, request: web.Request, request_id: str) -> RouteTrace: ...


@dataclass(frozen=True, slots=True)
class NoTrace:
    """No spans."""

    headers: Mapping[str, str] = field(default_factory=dict)
    log_fields: Mapping[str, str] = field(default_factory=dict)
    exemplar: Mapping[str, str] = field(default_factory=dict, init=False)

    def placed(self, lease: Lease, *, waited_seconds: float) -> None:
        """Nothing."""

    def attempt(self, _replica: Replica, _path: str, /) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def answered(self, status: int, code: str) -> None:
        """Nothing."""

    def attempt_failed(self, reason: AttemptFailure) -> None:
        """Nothing."""

    def ended(self, *, service: str, model: str, code: str) -> None:
        """Nothing."""


NO_TRACE = NoTrace()


class NoTraces:
    """No traces are kept; a client's own goes on to the engine, and into the log."""

    def begin(self, request: web.Request, _request_id: str) -> RouteTrace:
        """Return what makes no spans."""
        came = context_of(request)
        if isinstance(came, NoContext):
            return NO_TRACE
        return NoTrace(log_fields=log_fields(came.trace_id))


def context_of(request: web.Request) -> TraceContext | NoContext:
    """Return whose trace a request says that it belongs to."""
    if TRACEPARENT not in request.headers:
        return NoContext()
    return read_context(request.headers.getall(TRACEPARENT), request.headers.getall(TRACESTATE, ()))


def log_fields(trace_id: int) -> dict[str, str]:
    """Return what the records of a request in this trace carry."""
    return {"trace_id": trace_id_text(trace_id)}
