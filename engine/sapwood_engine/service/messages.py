"""The messages between the HTTP process and the worker process, and how they are encoded.

msgpack through msgspec, one tagged union a direction, so that an unknown or malformed message is an error
where it arrives. The HTTP process binds both sockets and the worker connects; messages of one direction
keep their order.

::

    HTTP process                                   worker process
      service.client      -- ToWorker  (PUSH/PULL) -->  service.engine_loop
      (tokenizer, SSE)    <-- FromWorker (PUSH/PULL) --  (scheduler, executor)
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sapwood_contract.curve import Curve
from sapwood_contract.http import KvEvents, LoadSnapshot
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import FinishReason, Request, TokenLogprobs
from sapwood_engine.core.step import Admitted, Evicted, Preempted, StepKind
from sapwood_engine.core.warming import WarmCounts

AdminAction = Literal["cache", "blocks", "survey", "paths", "warm", "flush", "check"]


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base: frozen, tagged with its class name, encoded as an array."""


# --- HTTP process -> worker


class Submit(_Message, frozen=True):
    """Start one generation. Answered by `TokenBatch` deltas until one carries a finish, or by `Refused`."""

    request: Request


class Abort(_Message, frozen=True):
    """End one generation, matched exactly; unknown or ended ids are no fault. Answered by a finish of
    ``abort``.
    """

    request_id: str


class AdminCall(_Message, frozen=True):
    """Ask the worker something; answered by one `AdminReply` with the same ``call_id``."""

    call_id: int
    action: AdminAction
    arguments: dict[str, Any] = {}


class Shutdown(_Message, frozen=True):
    """End the worker once the requests it runs are done; sent at the end of a drain."""


ToWorker = Submit | Abort | AdminCall | Shutdown


# --- worker -> HTTP process


class Progress(_Message, frozen=True):
    """A phase of the start has begun or moved: what a person sees while weights load and kernels compile."""

    phase: str
    detail: str
    fraction: float | None = None


class Ready(_Message, frozen=True):
    """The worker serves. ``facts`` are the lines of the ready card (backend, instruction set, why)."""

    capacity: Capacity
    facts: dict[str, str]
    startup_seconds: dict[str, float]
    kv_events: KvEvents | None = None


class Delta(_Message, frozen=True):
    """New tokens of one request."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    num_cached_tokens: int | None = None
    """Set in the first delta of a request."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of ``token_ids`` where asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """For prompt tokens 1 … n-1, in the first delta, where asked for."""
    error: str | None = None
    """A sentence for the client where ``finish`` is ``error``."""
    num_chunks: int | None = None
    """In how many steps the prompt was computed; set in the first delta of a request."""


class StepStats(_Message, frozen=True):
    """What one step did, for metrics."""

    kind: StepKind
    num_tokens: int
    seconds: float


class TokenBatch(_Message, frozen=True):
    """Everything one turn of the worker's loop has to say; ``load`` is the one published snapshot."""

    deltas: list[Delta]
    load: LoadSnapshot
    step: StepStats | None = None
    admitted: list[Admitted] = []
    preempted: list[Preempted] = []
    evicted: list[Evicted] = []
    num_invariant_failures: int = 0
    curve: Curve | None = None
    """The miss-ratio curve, where it has changed; once a second at most, and when there is nothing left to do."""
    step_costs: dict[str, float] | None = None
    """Seconds of each part of a step as fitted, see `StepCosts.known`; told as the curve is."""
    warmed: WarmCounts | None = None
    """How far prefixes are computed that nobody has asked for yet, where that has changed."""
    told_at: float = 0.0
    """When the worker said it, by the clock that all processes of a machine share."""


class Refused(_Message, frozen=True):
    """The scheduler would not take the request."""

    request_id: str
    reason: Literal["never_fits", "queue_full", "duplicate_id", "bad_content"]
    message: str
    """A sentence with both numbers."""


class AdminReply(_Message, frozen=True):
    """Answer to an `AdminCall`."""

    call_id: int
    result: dict[str, Any]
    error: str | None = None


class Fatal(_Message, frozen=True):
    """The worker cannot go on (or cannot start) and ends; ``message`` says why."""

    message: str


FromWorker = Progress | Ready | TokenBatch | Refused | AdminReply | Fatal


class Codec:
    """Encodes messages of both directions; one instance a socket and thread."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._to_worker = msgspec.msgpack.Decoder(ToWorker)
        self._from_worker = msgspec.msgpack.Decoder(FromWorker)

    def encode(self, message: ToWorker | FromWorker) -> bytes:
        """Return the message as msgpack."""
        return self._encoder.encode(message)

    def decode_to_worker(self, data: bytes) -> ToWorker:
        """Read a message that the HTTP process sent; `msgspec.ValidationError` when it is malformed."""
        return self._to_worker.decode(data)

    def decode_from_worker(self, data: bytes) -> FromWorker:
        """Read a message that the worker sent; `msgspec.ValidationError` when it is malformed."""
        return self._from_worker.decode(data)
