"""One program's spans, from their making to an OTLP receiver over HTTP.

Nothing global: whoever traces holds a `Tracing`, and no span is ever the current one of a thread or task, so that none
can leak into another request. A receiver that is down or slow costs spans, and a warning a minute.

OpenTelemetry's own environment variables hold for what is not set here: ``OTEL_EXPORTER_OTLP_HEADERS`` (a token that
the receiver asks for), ``OTEL_EXPORTER_OTLP_CERTIFICATE``, ``OTEL_RESOURCE_ATTRIBUTES``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer, set_span_in_context

from sapwood_tracing import names
from sapwood_tracing.context import NoContext, TraceContext

_TRACES_PATH = "/v1/traces"
_MOST_SPANS_WAITING = 2048
_SPANS_A_REQUEST = 512
_PAUSE_SECONDS = 1.0
"""Between two exports, unless many spans wait: a trace is there while somebody still looks for it."""
_EXPORT_SECONDS = 5.0
"""How long one export may take with its retries."""
_CLOSE_SECONDS = 2.0
_WARN_SECONDS = 60.0
_LIBRARY_LOGS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)
"""Who tells of failed exports, and of spans that had no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Where spans go, and how many."""

    endpoint: str
    """Base address of the receiver."""
    sampling_ratio: float
    """Of requests that belong to nobody's trace, 0 to 1; in a trace the caller's decision holds."""
    service_name: str
    service_version: str
    instance_id: str
    """Which of several programs of one name."""


class Tracing:
    """Makes spans and sends them until `close`."""

    def __init__(self, settings: TracingSettings, *, processor: SpanProcessor | None = None) -> None:
        """``processor``: gets the spans instead of the receiver."""
        self._sampling_ratio = settings.sampling_ratio
        self._quiet = OncePer(_WARN_SECONDS)
        for name in _LIBRARY_LOGS:
            logging.getLogger(name).addFilter(self._quiet)
        resource = Resource.create(
            {
                names.SERVICE_NAME: settings.service_name,
                names.SERVICE_VERSION: settings.service_version,
                names.SERVICE_INSTANCE_ID: settings.instance_id,
            }
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # `keeps` is asked before a span is made
            resource=resource,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor if processor is not None else _to_receiver(settings.endpoint))
        self.tracer: Tracer = self._provider.get_tracer(
            "sapwood", settings.service_version, schema_url=names.SCHEMA_URL
        )

    def keeps(self, came: TraceContext | NoContext) -> bool:
        """Tell whether the request that came with ``came`` is traced: as its caller says, or else by the ratio.

        Asked first, because OpenTelemetry takes 30 µs to come to a no.
        """
        return came.is_sampled if isinstance(came, TraceContext) else random.random() < self._sampling_ratio

    def close(self) -> None:
        """Send what is left, for `_CLOSE_SECONDS` at most; spans that end later are lost."""
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        for name in _LIBRARY_LOGS:
            logging.getLogger(name).removeFilter(self._quiet)


def _to_receiver(endpoint: str) -> SpanProcessor:
    url = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(url if url.endswith(_TRACES_PATH) else url + _TRACES_PATH, timeout=_EXPORT_SECONDS)
    return BatchSpanProcessor(
        exporter,
        max_queue_size=_MOST_SPANS_WAITING,
        max_export_batch_size=_SPANS_A_REQUEST,
        schedule_delay_millis=1000 * _PAUSE_SECONDS,
    )


class OncePer(logging.Filter):
    """Lets one record pass, then none for so many seconds; for several loggers together."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._next = clock()

    def filter(self, _record: logging.LogRecord) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def parent_of(context: TraceContext | NoContext) -> Context:
    """Return what makes a span a child of ``context``; never of whatever span may be current."""
    if isinstance(context, NoContext):
        return Context()
    remote = SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(context.flags))
    return set_span_in_context(NonRecordingSpan(remote), Context())


def within(span: Span) -> Context:
    """Return what makes a span a child of ``span``."""
    return set_span_in_context(span, Context())


def context_within(span: Span, came: TraceContext | NoContext) -> TraceContext:
    """Return ``span`` as a parent of what others do; ``came``: the context that its request came with."""
    own = span.get_span_context()
    state = came.state if isinstance(came, TraceContext) else ""
    return TraceContext(own.trace_id, own.span_id, own.trace_flags, state)
