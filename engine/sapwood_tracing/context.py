"""Whose trace a request belongs to: W3C Trace Context (level 1), in and out.

What cannot be read is as if it were not there: the request begins a trace of its own. The standard library alone,
because logs want a trace's id where no traces are kept; and because OpenTelemetry's own reader writes what a client
sent in ``tracestate`` into the log.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
SAMPLED = 1

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MOST_PARENT_CHARACTERS = 512
_STATE = re.compile(r"[\x20-\x7e\t]*", re.ASCII)
_MOST_STATE_CHARACTERS = 512
"""What everybody must pass on; a longer one is left out, as the standard lets us."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of somebody's, whose children are to come."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""
    """``tracestate``, passed on as it came."""

    @property
    def is_sampled(self) -> bool:
        """Whether the caller keeps the trace."""
        return bool(self.flags & SAMPLED)


@dataclass(frozen=True, slots=True)
class NoContext:
    """Nobody's: a request begins a trace of its own."""


def read_context(parents: Sequence[str], states: Sequence[str] = ()) -> TraceContext | NoContext:
    """Return the context that the ``traceparent`` headers ``parents`` name; ``states``: the ``tracestate`` ones.

    The standard allows one traceparent: of several none is believed.
    """
    if len(parents) != 1 or len(parents[0]) > _MOST_PARENT_CHARACTERS:
        return NoContext()
    match = _PARENT.fullmatch(parents[0].strip(" \t"))
    if match is None:
        return NoContext()
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return NoContext()
    state = ",".join(states)
    is_state = len(state) <= _MOST_STATE_CHARACTERS and _STATE.fullmatch(state) is not None
    return TraceContext(int(trace_id, 16), int(span_id, 16), int(flags, 16), state if is_state else "")


def unkept_context() -> TraceContext:
    """Return a context of a trace that nobody keeps, for those who would begin one of their own without it."""
    return TraceContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, 0)


def headers_of(context: TraceContext) -> dict[str, str]:
    """Return the headers that tell a server of ``context``."""
    parent = f"00-{trace_id_text(context.trace_id)}-{context.span_id:016x}-{context.flags:02x}"
    return {TRACEPARENT: parent} | ({TRACESTATE: context.state} if context.state else {})


def trace_id_text(trace_id: int) -> str:
    """Return a trace's id as every tool shows it: 32 hexadecimal digits."""
    return f"{trace_id:032x}"
