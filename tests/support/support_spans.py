"""Spans as tests see them: kept in memory, or received over OTLP from programs that run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sapwood_tracing.setup import Tracing, TracingSettings

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
"""A client's own, sampled."""
NOT_SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00"
_RECEIVE_SECONDS = 30.0


def settings(endpoint: str = "http://127.0.0.1:9", *, sampling_ratio: float = 1.0) -> TracingSettings:
    """Return settings of a program that is called ``test``."""
    return TracingSettings(
        endpoint=endpoint, sampling_ratio=sampling_ratio, service_name="test", service_version="1", instance_id="one"
    )


class Kept:
    """Ended spans, in memory."""

    def __init__(self, *, sampling_ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing(settings(sampling_ratio=sampling_ratio), processor=SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """Return a span's attributes."""
    return dict(span.attributes or {})


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    """Return a span's trace and its own id, as they are written."""
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    """Return the id of a span's parent; None where it has none."""
    return None if span.parent is None else f"{span.parent.span_id:016x}"


@dataclass(frozen=True, slots=True)
class Received:
    """One span as it came over OTLP."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin: float
    """Unix seconds, as ``end``."""
    end: float
    attributes: Mapping[str, Any]
    is_error: bool

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Receiver:
    """An OTLP receiver over HTTP; `receiver` runs one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        """As they came."""
        self._spans: list[Received] = []
        self._news = Condition()

    def take(self, body: bytes) -> None:
        """Keep one request to export."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._news:
            self.bodies.append(body)
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_received(service, span) for span in scope.spans]
            self._news.notify_all()

    def wait_for(self, trace_id: str, names: set[str]) -> list[Received]:
        """Return the spans of a trace, as soon as there are some of all ``names``."""

        def found() -> list[Received]:
            return [span for span in self._spans if span.trace_id == trace_id]

        with self._news:
            assert self._news.wait_for(lambda: names <= {span.name for span in found()}, _RECEIVE_SECONDS), (
                f"of {names} came {[span.name for span in found()]}"
            )
            return found()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            received.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


def _received(service: str, span: ProtoSpan) -> Received:
    return Received(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begin=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        attributes=_attributes(span.attributes),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
