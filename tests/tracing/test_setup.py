"""Spans on their way to a receiver, and what becomes of them where there is none."""

from __future__ import annotations

import logging
import socket
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import Span, get_current_span
from support_spans import NOT_SAMPLED, SPAN_ID, TRACE_ID, TRACEPARENT, Kept, ids_of, parent_of, receiver, settings

from sapwood_tracing import names
from sapwood_tracing.context import NoContext, TraceContext, read_context
from sapwood_tracing.setup import OncePer, Tracing, within
from sapwood_tracing.setup import parent_of as parent_context

SAMPLED = read_context([TRACEPARENT])
EXPORTER_LOG = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
QUEUE_LOG = logging.getLogger("opentelemetry.sdk._shared_internal")


def start(tracing: Tracing, name: str, came: TraceContext | NoContext = SAMPLED) -> Span:
    return tracing.tracer.start_span(name, parent_context(came))


def test_a_receiver_gets_spans_with_who_made_them_and_the_conventions_they_follow() -> None:
    with receiver() as received:
        tracing = Tracing(settings(received.url + "/"))
        outer = start(tracing, "outer")
        tracing.tracer.start_span("inner", within(outer)).end()
        outer.end()
        tracing.close()
        outer_span, inner_span = sorted(received.wait_for(TRACE_ID, {"outer", "inner"}), key=lambda span: span.name)[
            ::-1
        ]
        assert (outer_span.parent_id, inner_span.parent_id) == (SPAN_ID, outer_span.span_id)
        (sent,) = ExportTraceServiceRequest.FromString(received.bodies[0]).resource_spans
    said = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert (said["service.name"], said["service.version"], said["service.instance.id"]) == ("test", "1", "one")
    assert sent.scope_spans[0].schema_url == names.SCHEMA_URL


@pytest.mark.parametrize(
    ("came", "ratio", "is_kept"),
    [
        (SAMPLED, 0.0, True),
        (read_context([NOT_SAMPLED]), 1.0, False),
        (NoContext(), 1.0, True),
        (NoContext(), 0.0, False),
    ],
)
def test_the_callers_decision_comes_first_and_the_ratio_is_for_who_made_none(
    came: TraceContext | NoContext, ratio: float, is_kept: bool
) -> None:
    kept = Kept(sampling_ratio=ratio)
    assert kept.tracing.keeps(came) is is_kept


def test_no_span_is_ever_the_current_one() -> None:
    kept = Kept()
    first = start(kept.tracing, "first")
    assert not get_current_span().get_span_context().is_valid
    start(kept.tracing, "second", NoContext()).end()
    first.end()
    second = kept.one("second")
    assert parent_of(second) is None
    assert ids_of(second)[0] != TRACE_ID


def test_where_nobody_receives_spans_are_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in (EXPORTER_LOG, QUEUE_LOG):
        monkeypatch.setattr(library, "filters", [])  # a tracing of another test may have told of its loss this minute
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        tracing = Tracing(settings(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        for _ in range(5_000):
            start(tracing, "one").end()
        # Once it is closed nobody holds back what its last export says, when the receiver here goes away.
        told = [record for record in caplog.records if record.name.startswith("opentelemetry")]
        tracing.close()
    assert len(told) == 1
    assert told[0].levelno >= logging.WARNING


def test_a_receiver_that_never_answers_does_not_hold_a_program_that_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing = Tracing(settings(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        for _ in range(2_000):  # several exports, of which each may take five seconds
            start(tracing, "one").end()
        tracing.close()
        assert any(thread.name == "last spans" and thread.daemon for thread in threading.enumerate())


def test_while_somebody_traces_the_library_tells_of_lost_spans_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    for library in (EXPORTER_LOG, QUEUE_LOG):
        # Tracings of other tests may still be open, and threads of closed ones may still export.
        monkeypatch.setattr(library, "filters", [lambda record: record.thread == here])
    tracing = Kept().tracing
    EXPORTER_LOG.warning("an export failed")
    EXPORTER_LOG.warning("another failed")
    QUEUE_LOG.warning("the queue is full")
    tracing.close()
    QUEUE_LOG.warning("after it")
    assert [record.message for record in caplog.records] == ["an export failed", "after it"]


def test_one_record_a_minute_passes_whoever_writes_it() -> None:
    times = iter((0.0, 0.0, 1.0, 59.0, 60.0, 61.0, 200.0))
    limit = OncePer(60.0, lambda: next(times))
    record = logging.LogRecord("name", logging.WARNING, __file__, 1, "words", (), None)
    assert [limit.filter(record) for _ in range(6)] == [True, False, False, True, False, True]
