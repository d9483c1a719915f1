"""One virtual engine, and all requests of a trace at their times: what clients would measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sapwood_tools.replay.latency import LatencyModel
from sapwood_tools.replay.trace import TraceRequest
from sapwood_tools.replay.virtual_engine import FirstToken, Gaps, StepEngine

_HALVINGS = 20


@dataclass(slots=True)
class Answers:
    """By position of the request; times of the trace's clock, tokens of the trace."""

    first_at: dict[int, float] = field(default_factory=dict)
    ended_at: dict[int, float] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    gaps: list[Gaps] = field(default_factory=list)
    busy_seconds: float = 0.0

    def ttft_seconds(self, requests: Sequence[TraceRequest]) -> list[float]:
        """Return the time to the first token of each of ``requests``, which were answered."""
        return [self.first_at[number] - request.arrival_seconds for number, request in enumerate(requests)]


def answers(model: LatencyModel, requests: Sequence[TraceRequest], *, shrink: int = 1) -> Answers:
    """Return what an engine of ``model`` answers to ``requests``, in order of arrival.

    Raises `engine.CacheTooSmall` where one can never fit.
    """
    engine = StepEngine(model, shrink=shrink, log_blocks=False)
    told = Answers()
    for number, request in enumerate(requests):
        _note(told, engine, request.arrival_seconds)
        engine.offer(number, request, request.arrival_seconds)
    while engine.next_event_at() < math.inf:
        _note(told, engine, engine.next_event_at())
    told.gaps, told.busy_seconds = engine.take_gaps(), engine.busy_seconds
    return told


def _note(told: Answers, engine: StepEngine, now: float) -> None:
    for event in engine.advance(now):
        if isinstance(event, FirstToken):
            told.first_at[event.request_id] = event.at
            told.cached_tokens[event.request_id] = event.cached_tokens
        else:
            told.ended_at[event.request_id] = event.at


def paced(model: LatencyModel, requests: Sequence[TraceRequest], *, busy: float, shrink: int = 1) -> list[TraceRequest]:
    """Return ``requests`` from second 0 on, all times between them stretched alike, so that an engine of ``model`` is
    busy for the share ``busy`` of the time up to its last answer.
    """
    start = requests[0].arrival_seconds
    least, most = 1e-6, 1e6
    for _ in range(_HALVINGS):
        middle = math.sqrt(least * most)
        told = answers(model, _stretched(requests, start, middle), shrink=shrink)
        if told.busy_seconds > busy * max(told.ended_at.values()):
            least = middle
        else:
            most = middle
    return _stretched(requests, start, most)


def _stretched(requests: Sequence[TraceRequest], start: float, factor: float) -> list[TraceRequest]:
    return [replace(each, arrival_seconds=(each.arrival_seconds - start) * factor) for each in requests]
