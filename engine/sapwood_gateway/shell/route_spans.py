"""A request's way through the gateway as spans: ``gateway.route`` from its head to its answer's last byte, and in it
one of each attempt, which is the parent of what the engine tells.

Invariant: every span that is begun is ended, however the request ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiohttp import web
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from yarl import URL

from sapwood_gateway.core.fleet import Lease
from sapwood_gateway.core.routes import Replica
from sapwood_gateway.shell.metrics import AttemptFailure
from sapwood_gateway.shell.route_trace import NoTrace, RouteTrace, context_of, log_fields
from sapwood_tracing import names
from sapwood_tracing.context import NoContext, TraceContext, headers_of, unkept_context
from sapwood_tracing.outcome import error_type, fail
from sapwood_tracing.setup import Tracing, context_within, parent_of, within
from sapwood_tracing.span_clock import SpanClock


class SpannedRoutes:
    """Begins the traces of one gateway's requests."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, request: web.Request, request_id: str) -> RouteTrace:
        """Return the trace of ``request``; of one that is not kept the engine is told so, lest it begin one itself."""
        came = context_of(request)
        if self._tracing.keeps(came):
            return _RouteSpans(self._tracing.tracer, request, request_id, came)
        told = unkept_context() if isinstance(came, NoContext) else came
        return NoTrace(headers_of(told), log_fields(told.trace_id))


class _RouteSpans:
    """One sampled request."""

    def __init__(self, tracer: Tracer, request: web.Request, request_id: str, came: TraceContext | NoContext) -> None:
        self._tracer = tracer
        self._came = came
        self._clock = SpanClock()
        self._span = tracer.start_span(
            names.ROUTE,
            parent_of(came),
            SpanKind.SERVER,
            {
                names.HTTP_METHOD: request.method,
                names.URL_PATH: request.path,
                names.REQUEST_ID: request_id,
            },
            start_time=self._clock.now(),
        )
        self._attempt = self._span
        """The latest; before the first, that of the request."""
        self._has_attempt_failed = False
        self._num_attempts = 0
        self.log_fields: Mapping[str, str] = log_fields(self._span.get_span_context().trace_id)
        self.exemplar = self.log_fields

    @property
    def headers(self) -> Mapping[str, str]:
        return headers_of(context_within(self._attempt, self._came))

    def placed(self, lease: Lease, *, waited_seconds: float) -> None:
        self._span.set_attributes(
            {
                names.ROUTE_REASON: lease.reason,
                names.ROUTE_CANDIDATES: lease.num_candidates,
                names.ROUTE_QUEUE_SECONDS: waited_seconds,
            }
        )
        if lease.placed is not None:
            self._span.set_attribute(names.ROUTE_MATCHED_TOKENS, lease.placed.decision.matched_tokens)

    @contextmanager
    def attempt(self, replica: Replica, path: str) -> Iterator[None]:
        url = URL(replica.url)
        span = self._attempt = self._tracer.start_span(
            f"POST {path}",
            within(self._span),
            SpanKind.CLIENT,
            {
                names.HTTP_METHOD: "POST",
                names.URL_PATH: path,
                names.SERVER_ADDRESS: url.host or "",
                names.SERVER_PORT: url.port or 0,
                names.HTTP_RESEND_COUNT: self._num_attempts,
                names.ROUTE_REPLICA: replica.name,
            },
            start_time=self._clock.now(),
        )
        self._num_attempts += 1
        self._has_attempt_failed = False
        self._span.set_attribute(names.ROUTE_REPLICA, replica.name)
        try:
            yield
        except BaseException as error:  # the client has gone, or the gateway ends
            self._fail_attempt(type(error).__name__)
            raise
        finally:
            span.end(self._clock.now())

    def answered(self, status: int, code: str) -> None:
        self._attempt.set_attribute(names.HTTP_STATUS, status)
        if int(code) >= 400:
            self._fail_attempt(error_type(int(code)))

    def attempt_failed(self, reason: AttemptFailure) -> None:
        self._fail_attempt(reason)

    def ended(self, *, service: str, model: str, code: str) -> None:
        span, status = self._span, int(code)
        span.set_attribute(names.HTTP_STATUS, status)
        if model:
            span.set_attributes({names.ROUTE_SERVICE: service, names.REQUEST_MODEL: model})
        if status < 400:
            span.set_status(StatusCode.OK)
        else:
            fail(span, error_type(status))
        span.end(self._clock.now())

    def _fail_attempt(self, error: str) -> None:
        """Mark the attempt; what is known first says most."""
        if not self._has_attempt_failed:
            self._has_attempt_failed = True
            fail(self._attempt, error)
