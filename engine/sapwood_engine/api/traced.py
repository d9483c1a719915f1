"""Around the edge: whose trace a request belongs to, and the span of a call from its first byte to its last.

Every record that is logged inside carries the trace's id, where there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from sapwood_engine.api.errors import OUTCOME
from sapwood_tracing.context import TRACEPARENT, TRACESTATE, NoContext, TraceContext, read_context, trace_id_text

if TYPE_CHECKING:  # OpenTelemetry's SDK is loaded where traces are kept
    from sapwood_engine.service.call_trace import CallTrace, CallTraces

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own, which an environment variable would turn on, and which tells what clients wrote."""
_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()
TRACE = "trace"
"""Key in a scope's state: the `CallTrace` of a call that is traced."""


class Traced:
    """Wraps ``app``; ``traces`` None: no traces are kept."""

    def __init__(self, app: ASGIApp, *, traces: CallTraces | None) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        came = _context_of(scope)
        is_kept = self._traces is not None and scope["method"] == "POST"
        trace = self._traces.begin(scope["path"], came) if self._traces is not None and is_kept else None
        if trace is not None:
            with bound_contextvars(trace_id=trace.trace_id):
                await self._trace(trace, scope, receive, send)
        elif isinstance(came, TraceContext):
            with bound_contextvars(trace_id=trace_id_text(came.trace_id)):
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _trace(self, trace: CallTrace, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state[TRACE] = trace
        try:
            await self._app(scope, receive, send)
        finally:
            trace.ended(state[OUTCOME], request_id=state["request_id"])  # the edge has left both


def _context_of(scope: Scope) -> TraceContext | NoContext:
    """Return whose trace a request says that it belongs to; its headers' names are in lower case, as ASGI has it."""
    parents = [value for name, value in scope["headers"] if name == _PARENT]
    if not parents:
        return NoContext()
    states = [value for name, value in scope["headers"] if name == _STATE]
    return read_context([each.decode("latin-1") for each in parents], [each.decode("latin-1") for each in states])


def trace_of(scope: Scope) -> CallTrace | None:
    """Return the trace of the call of ``scope``; None where it is not traced."""
    trace: CallTrace | None = scope["state"].get(TRACE)
    return trace
