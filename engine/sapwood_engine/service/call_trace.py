"""A call as spans: ``chat MODEL`` around tokenize and, of each choice, queue, kv.match, prefill and decode.

The spans of a choice are made when it ends, from times that worker and client have noted on the clock that all
processes of a machine share; so the worker needs to know nothing of traces, and a phase that was cut short is as long
as it was. Invariants: every span that is begun is ended; nothing of prompt, answer, tenant or key is in any.

::

    client     submitted │                                              │ last delta came
    worker               │      looked up │ admitted     │ first token   │ last token
                         └─── queue ──────┴─ kv.match ───┴─── prefill ───┴─── decode ──┘
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from sapwood_engine.core.step import Admitted
from sapwood_engine.errors import GenerationFailed, SapwoodError
from sapwood_engine.service.generation import Generation
from sapwood_engine.service.messages import Delta
from sapwood_engine.service.metrics import Ending, RequestTimes
from sapwood_tracing import names
from sapwood_tracing.context import NoContext, TraceContext, trace_id_text
from sapwood_tracing.outcome import error_type, fail
from sapwood_tracing.setup import Tracing, parent_of, within
from sapwood_tracing.span_clock import SpanClock

MOST_CHOICES = 8
"""Of a call, and prompts of it, that have spans: there may be thousands. Its sums are of all."""

_PROVIDER = "sapwood"
_Attributes = Mapping[str, str | int | float | Sequence[str]]


class CallTraces:
    """Begins the traces of one engine's calls."""

    def __init__(self, tracing: Tracing, *, model: str) -> None:
        self._tracing = tracing
        self._model = model

    def begin(self, path: str, came: TraceContext | NoContext) -> CallTrace | None:
        """Return the trace of a call to ``path`` that comes with ``came``; None where it is not sampled, or no call."""
        operation = names.OPERATIONS.get(path)
        if operation is None or not self._tracing.keeps(came):
            return None
        clock, tracer = SpanClock(), self._tracing.tracer
        span = tracer.start_span(
            f"{operation} {self._model}",
            parent_of(came),
            SpanKind.SERVER,
            {
                names.OPERATION_NAME: operation,
                names.PROVIDER_NAME: _PROVIDER,
                names.HTTP_METHOD: "POST",
                names.URL_PATH: path,
            },
            start_time=clock.now(),
        )
        return CallTrace(tracer, span, self._model, clock)


class CallTrace:
    """One sampled call, until `ended`."""

    def __init__(self, tracer: Tracer, span: Span, model: str, clock: SpanClock) -> None:
        self.trace_id = trace_id_text(span.get_span_context().trace_id)
        self._tracer = tracer
        self._span = span
        self._model = model
        self._clock = clock
        self._num_tokenized = 0
        self._choices: list[ChoiceTrace] = []
        self._failure: str | None = None

    def asked(self, generations: Sequence[Generation], *, stream: bool) -> None:
        """The call is understood, and asks for ``generations``, which differ in their prompts."""
        first = generations[0]
        self._span.set_attributes(
            {
                names.REQUEST_MODEL: self._model,
                names.RESPONSE_MODEL: self._model,
                names.REQUEST_MAX_TOKENS: first.stop.max_tokens,
                names.REQUEST_TEMPERATURE: first.sampling.temperature,
                names.REQUEST_TOP_P: first.sampling.top_p,
                names.REQUEST_CHOICE_COUNT: first.n,
                names.REQUEST_STREAM: stream,
                names.NUM_PROMPTS: len(generations),
                names.USAGE_INPUT_TOKENS: sum(len(each.prompt_ids) for each in generations),
            }
        )

    def tokenized(self, began: float, ended: float) -> None:
        """A prompt was made of a text; monotonic seconds."""
        if self._num_tokenized < MOST_CHOICES:
            self.phase(names.TOKENIZE, began, ended, {})
        self._num_tokenized += 1

    def choice(self, index: int, times: RequestTimes) -> ChoiceTrace:
        """Return the trace of a choice that is submitted; ``index``: among those of its prompt."""
        self._choices.append(ChoiceTrace(self, len(self._choices), index, times))
        times.trace_id = self.trace_id
        return self._choices[-1]

    def failed(self, error: SapwoodError) -> None:
        """The call has no answer, or none to its end."""
        is_abort = isinstance(error, GenerationFailed) and error.reason == "abort"
        self._failure = self._failure or ("aborted" if is_abort else type(error).__name__)

    def phase(self, name: str, began: float, ended: float, attributes: _Attributes, *, error: str = "") -> None:
        """Make the span of a phase; monotonic seconds; ``error``: by what it was cut short."""
        span = self._tracer.start_span(
            name, within(self._span), attributes=attributes, start_time=self._clock.at(began)
        )
        if error:
            fail(span, error)
        span.end(self._clock.at(max(began, ended)))

    def ended(self, status: int, *, request_id: str) -> None:
        """The call is over; ``status``: what it counts as, 499 where its client left."""
        span, told = self._span, [each for each in self._choices if each.finish is not None]
        span.set_attributes(
            {
                names.REQUEST_ID: request_id,
                names.HTTP_STATUS: status,
                names.USAGE_OUTPUT_TOKENS: sum(each.times.num_output_tokens for each in self._choices),
                names.USAGE_CACHE_READ_TOKENS: sum(each.num_cached for each in self._choices if each.index == 0),
                names.RESPONSE_FINISH_REASONS: [each.finish or "" for each in told[:MOST_CHOICES]],
            }
        )
        if self._failure is None and status < 400:
            span.set_status(StatusCode.OK)
        else:
            fail(span, self._failure or error_type(status))
        span.end(self._clock.now())


@dataclass(slots=True)
class ChoiceTrace:
    """What is noted of one choice."""

    call: CallTrace
    number: int
    """Among all of the call."""
    index: int
    """Among those of its prompt."""
    times: RequestTimes
    finish: Literal["stop", "length"] | None = None
    num_cached: int = 0
    _admission: Admitted | None = None
    _first_at: float | None = None
    _last_at: float | None = None
    _num_chunks: int = 0
    _num_preemptions: int = 0

    def admitted(self, event: Admitted) -> None:
        """It has a seat for the first time."""
        self._admission, self.num_cached = event, event.num_cached_tokens

    def preempted(self) -> None:
        """It has lost its seat, and waits again inside of the phase that it was in."""
        self._num_preemptions += 1

    def heard(self, delta: Delta, told_at: float) -> None:
        """The worker said something of it at ``told_at``."""
        self._last_at = told_at
        if delta.num_chunks is not None:
            self._num_chunks = delta.num_chunks
        if delta.token_ids and self._first_at is None:
            self._first_at = told_at

    def ended(self, how: Ending) -> None:
        """It is over: make its spans."""
        is_whole = how in ("stop", "length")
        if how == "stop" or how == "length":
            self.finish = how
        if self.number >= MOST_CHOICES:
            return
        end = self._last_at if is_whole and self._last_at is not None else time.monotonic()
        bounds = self._bounds(end)
        for place, (name, began, ended, attributes) in enumerate(bounds, start=1):
            cut = "" if is_whole or place < len(bounds) else _CUT[how]
            self.call.phase(name, began, ended, {names.CHOICE: self.number, **attributes}, error=cut)

    def _bounds(self, end: float) -> list[tuple[str, float, float, _Attributes]]:
        """Return the phases that it was in, each with its begin and end."""
        seat = self._admission
        if seat is None:
            return [(names.QUEUE, self.times.arrived, end, {})]
        looked_up_at, cached = seat.admitted_at - seat.match_seconds, {names.CACHED_TOKENS: seat.num_cached_tokens}
        prefill = {
            **cached,
            names.COMPUTED_TOKENS: seat.num_prompt_tokens - seat.num_cached_tokens,
            names.CHUNKS: self._num_chunks,
        }
        first_at = end if self._first_at is None else self._first_at
        phases: list[tuple[str, float, float, _Attributes]] = [
            (names.QUEUE, self.times.arrived, looked_up_at, {}),
            (names.MATCH, looked_up_at, seat.admitted_at, cached),
            (names.PREFILL, seat.admitted_at, first_at, prefill),
        ]
        if self._first_at is not None:
            decode = {
                names.OUTPUT_TOKENS: self.times.num_output_tokens,
                names.PREEMPTIONS: self._num_preemptions,
                names.DETOKENIZE_SECONDS: self.times.detokenize_seconds,
            }
            phases.append((names.DECODE, first_at, end, decode))
        return phases


_CUT: Mapping[Ending, str] = {"abort": "aborted", "error": "failed"}
