"""W3C Trace Context: what is believed of what a client sends, and what is told to others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sapwood_tracing.context import NoContext, TraceContext, headers_of, read_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_says_whose_trace_it_is() -> None:
    context = read_context([GOOD])
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), 1)
    assert context.is_sampled


def test_what_is_written_is_read_again_with_its_state() -> None:
    context = read_context([f"00-{TRACE}-{SPAN}-00"], ["rojo=00f067aa0ba902b7", "congo=t61rcWkgMzE"])
    assert isinstance(context, TraceContext)
    assert not context.is_sampled
    headers = headers_of(context)
    assert headers == {
        "traceparent": f"00-{TRACE}-{SPAN}-00",
        "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    }
    assert read_context([headers["traceparent"]], [headers["tracestate"]]) == context


@pytest.mark.parametrize(
    "value",
    [
        "",
        "garbage",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"{GOOD}, {GOOD}",
        f"{GOOD}\n",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 512}",
        f"٠٠-{TRACE}-{SPAN}-01",
    ],
)
def test_a_traceparent_that_cannot_be_read_is_none(value: str) -> None:
    assert read_context([value]) == NoContext()


def test_no_traceparent_or_several_are_none() -> None:
    assert read_context([]) == read_context([GOOD, GOOD]) == NoContext()


def test_of_a_later_version_what_is_known_is_read() -> None:
    assert read_context([f"cc-{TRACE}-{SPAN}-01-what-will-be"]) == read_context([GOOD])
    assert read_context([f" {GOOD}\t"]) == read_context([GOOD])


@pytest.mark.parametrize("state", ["k=" + "v" * 600, "k=\x00", "k=ü", "k=v\r\nSet-Cookie: x"])
def test_a_state_that_cannot_be_passed_on_is_left_out_and_the_trace_is_kept(state: str) -> None:
    assert read_context([GOOD], [state]) == read_context([GOOD])


@given(st.text(), st.lists(st.text(), max_size=3))
def test_nothing_that_a_client_sends_is_an_error(parent: str, states: list[str]) -> None:
    read_context([parent], states)


@given(
    trace_id=st.integers(min_value=1, max_value=2**128 - 1),
    span_id=st.integers(min_value=1, max_value=2**64 - 1),
    flags=st.integers(min_value=0, max_value=255),
)
def test_opentelemetry_reads_the_same(trace_id: int, span_id: int, flags: int) -> None:
    headers = headers_of(TraceContext(trace_id, span_id, flags))
    theirs = get_current_span(TraceContextTextMapPropagator().extract(headers)).get_span_context()
    assert (theirs.trace_id, theirs.span_id, theirs.trace_flags) == (trace_id, span_id, flags)
    assert read_context([headers["traceparent"]]) == TraceContext(trace_id, span_id, flags)
