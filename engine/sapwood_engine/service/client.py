"""The engine as the API sees it: text deltas of one call, from token deltas of many requests.

Invariants: every choice that was submitted ends with a finish from the worker or is aborted by its exact
id, however its caller leaves; when the worker dies every open stream gets `WorkerDied`. Only the event
loop's thread comes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sapwood_contract.http import EngineState, KvEvents, LoadSnapshot, RequestList
from sapwood_contract.launch import MetricsCompatName
from sapwood_engine.checkpoint.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.request import RequestId
from sapwood_engine.errors import (
    Draining,
    GenerationFailed,
    Loading,
    Overloaded,
    RequestError,
    SapwoodError,
    WorkerDied,
)
from sapwood_engine.service.admin_calls import AdminCalls
from sapwood_engine.service.generation import (
    SEED_VALUES,
    ChoiceText,
    Generation,
    TextDelta,
    TokenInfo,
    check_generation,
    choice_request,
)
from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.messages import (
    Abort,
    AdminAction,
    AdminReply,
    Delta,
    Fatal,
    FromWorker,
    Progress,
    Ready,
    Refused,
    Submit,
    TokenBatch,
)
from sapwood_engine.service.metrics import Ending, EngineMetrics, RequestTimes
from sapwood_engine.service.prefixes import Prefixes
from sapwood_engine.service.recent_requests import Call, RecentRequests
from sapwood_engine.service.warm_up import WarmUp
from sapwood_metrics.exposition import Scraped
from sapwood_text.tokenizer import Tokenizer

if TYPE_CHECKING:  # OpenTelemetry's SDK is loaded where traces are kept
    from sapwood_engine.service.call_trace import ChoiceTrace

__all__ = ["EngineClient", "Generation", "TextDelta", "TokenInfo"]

_log = logging.getLogger(__name__)

_RETRY_WHILE_LOADING_SECONDS = 5
_MOST_RETRY_SECONDS = 60


@dataclass(slots=True)
class _Stream:
    """One call being answered."""

    generation: Generation
    call: Call
    queue: asyncio.Queue[TextDelta | SapwoodError] = field(default_factory=asyncio.Queue)
    num_cached_tokens: int | None = None


@dataclass(slots=True)
class _Choice:
    """One engine request of a call."""

    engine_id: RequestId
    index: int
    stream: _Stream
    text: ChoiceText
    times: RequestTimes
    trace: ChoiceTrace | None


class EngineClient:
    """One served model."""

    def __init__(
        self,
        channel: HttpChannel,
        *,
        model_name: str,
        max_queued: int,
        drain_seconds: float,
        seed: int | None = None,
        warm_wait_seconds: float = 0.0,
        on_progress: Callable[[Progress], None] | None = None,
        metrics_compat: MetricsCompatName = "none",
    ) -> None:
        """``seed``: of the seeds drawn for requests that bring none; None takes one from the system.

        ``warm_wait_seconds``: see `service.warm_up`.
        """
        self.model_name = model_name
        self.created = int(time.time())
        self.capacity: Capacity | None = None
        self.facts: dict[str, str] = {}
        self.sampling_defaults = OPENAI_DEFAULTS
        self.load = LoadSnapshot()
        self.metrics = EngineMetrics(model_name, compat=metrics_compat)
        self._channel = channel
        self._recent = RecentRequests()
        self.model_revision = ""
        self.kv_events: KvEvents | None = None
        self._max_queued = max_queued
        self._drain_seconds = drain_seconds
        self._on_progress = on_progress
        self._seeds = random.Random(seed)
        self._state: EngineState = "loading"
        self._tokenizer: Tokenizer | None = None
        self._choices: dict[str, _Choice] = {}
        self._admin_calls = AdminCalls(channel)
        self._serials = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ready = asyncio.Event()
        self.warm_up = WarmUp(warm_wait_seconds)
        self.prefixes = Prefixes(self)
        self._look_again: asyncio.TimerHandle | None = None
        """Whether it may be ready by then."""
        self._ended = False
        self._exit_code: int | None = None
        self._fatal: str | None = None

    # --- state

    @property
    def state(self) -> EngineState:
        """Where the engine is in its life; ``ready`` means that requests are taken."""
        return self._state

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises `Loading` while it is not yet loaded."""
        if self._tokenizer is None:
            raise Loading(retry_after_seconds=_RETRY_WHILE_LOADING_SECONDS)
        return self._tokenizer

    def checkpoint_found(
        self, model_revision: str, tokenizer: Tokenizer, sampling_defaults: SamplingDefaults = OPENAI_DEFAULTS
    ) -> None:
        """Called once, when the checkpoint is found and its tokenizer loaded."""
        self.model_revision = model_revision
        self.metrics.checkpoint_found(model_revision)
        self.sampling_defaults = sampling_defaults
        self._tokenizer = tokenizer
        self.become_ready()

    async def wait_until_ready(self) -> None:
        """Return once requests are taken; raises `WorkerDied` when the worker ends first."""
        await self._ready.wait()
        self._raise_if_dead()

    @property
    def has_asked(self) -> bool:
        """Whether the worker owes an answer."""
        return bool(self._choices or self._admin_calls)

    @property
    def fatal_message(self) -> str | None:
        """Why the worker said that it must end, if it did."""
        return self._fatal

    # --- answering

    async def generate(self, generation: Generation) -> AsyncGenerator[TextDelta, None]:
        """Yield the deltas of all choices, interleaved; each choice ends with exactly one
        ``finish_reason``.

        Closing it early aborts every choice that still runs. Raises before the first delta: `RequestError`
        of the kind that fits. At any time: `WorkerDied`, or `GenerationFailed` when a choice ended without
        an answer.
        """
        check_generation(generation, self._open_door())
        stream = _Stream(generation, self._recent.began(generation, time.monotonic()))
        if generation.tokenize_seconds is not None:
            self.metrics.phase("tokenize", generation.tokenize_seconds)
        choices = self._submit(stream)
        num_open = len(choices)
        begin = time.monotonic()
        try:
            while num_open:
                delta = await stream.queue.get()
                if isinstance(delta, SapwoodError):
                    raise delta
                num_open -= delta.finish_reason is not None
                yield delta
        finally:
            for choice in choices:
                self._abandon(choice)
            _log.info(
                "call ended",
                extra={
                    "request_id": generation.request_id,
                    "num_choices": generation.n,
                    "num_prompt_tokens": len(generation.prompt_ids),
                    "num_cached_tokens": stream.num_cached_tokens,
                    "num_output_tokens": sum(choice.text.num_output_tokens for choice in choices),
                    "num_unfinished": num_open,
                    "seconds": round(time.monotonic() - begin, 4),
                },
            )

    def _open_door(self) -> Capacity:
        """Return the capacity, if requests are taken now."""
        self._raise_if_dead()
        if self._state == "draining":
            raise Draining(retry_after_seconds=max(1, math.ceil(self._drain_seconds)))
        if self._state != "ready" or self.capacity is None:
            raise Loading(retry_after_seconds=_RETRY_WHILE_LOADING_SECONDS)
        return self.capacity

    def _raise_if_dead(self) -> None:
        if self._ended:
            raise WorkerDied(self._exit_code)

    def _submit(self, stream: _Stream) -> list[_Choice]:
        generation = stream.generation
        seed = self._seeds.randrange(SEED_VALUES) if generation.seed is None else generation.seed
        serial = next(self._serials)
        namespace = replace(generation.namespace, model_revision=self.model_revision)
        choices: list[_Choice] = []
        try:
            for index in range(generation.n):
                engine_id = RequestId(f"{generation.request_id}#{serial}.{index}")
                times = RequestTimes(arrived=time.monotonic(), num_prompt_tokens=len(generation.prompt_ids))
                text = ChoiceText(generation, self.tokenizer)
                trace = None if generation.trace is None else generation.trace.choice(index, times)
                choices.append(_Choice(engine_id, index, stream, text, times, trace))
                self._choices[engine_id] = choices[-1]
                stream.call.choices.append(times)
                self._idle.clear()
                self._channel.send(Submit(choice_request(generation, namespace, engine_id, seed=seed, index=index)))
                self.metrics.submitted(engine_id)
        except BaseException:
            for choice in choices:
                self._abandon(choice)
            self._recent.ended(stream.call, "error", time.monotonic())
            raise
        return choices

    def _abandon(self, choice: _Choice) -> None:
        """Nobody waits for this choice any more: tell the worker, unless it has ended."""
        if self._forget(choice, "abort"):
            self.metrics.ended(choice.times, "abort", now=time.monotonic())
            self._tell_abort(choice)

    def _tell_abort(self, choice: _Choice) -> None:
        if not self._ended:
            # That the worker is gone is told to every stream by `worker_ended`.
            with contextlib.suppress(WorkerDied):
                self._channel.send(Abort(choice.engine_id))

    def _forget(self, choice: _Choice, how: Ending) -> bool:
        known = self._choices.pop(choice.engine_id, None) is not None
        if known:
            self._recent.choice_ended(choice.stream.call, how, time.monotonic())
            if choice.trace is not None:
                choice.trace.ended(how)
        if not self._choices:
            self._idle.set()
        return known

    # --- what the worker says

    def receive(self, message: FromWorker) -> None:
        """Take in one message of the worker."""
        match message:
            case TokenBatch():
                self._receive_batch(message)
            case Refused():
                self._receive_refused(message)
            case AdminReply():
                self._admin_calls.answered(message)
            case Progress():
                if self._state == "loading" and message.phase in ("compile", "warm"):
                    self._set_state("warming")
                if self._on_progress is not None:
                    self._on_progress(message)
            case Ready():
                self.capacity, self.facts = message.capacity, message.facts
                self.kv_events = message.kv_events
                self.metrics.started(message.startup_seconds, message.facts)
                self.become_ready()
            case Fatal():
                self._fatal = message.message

    def worker_ended(self, exit_code: int | None) -> None:
        """The worker process is gone: every open stream and admin call ends with `WorkerDied`."""
        self._ended, self._exit_code = True, exit_code
        self.load = LoadSnapshot()
        self.metrics.worker_ended()
        self._set_state("draining")
        for choice in list(self._choices.values()):
            self._fail(choice, WorkerDied(exit_code), "error")
        self._admin_calls.fail(WorkerDied(exit_code))
        self._ready.set()

    def _receive_batch(self, batch: TokenBatch) -> None:
        self.load = batch.load
        self.metrics.observe(batch)
        if batch.warmed is not None:
            self.warm_up.counts = batch.warmed
            self.become_ready()
        for admitted in batch.admitted:
            choice = self._choices.get(admitted.request_id)
            if choice is not None and not admitted.resumed:
                choice.times.queue_seconds = admitted.queue_seconds
                choice.stream.call.admitted(
                    queue_seconds=admitted.queue_seconds, num_cached_tokens=admitted.num_cached_tokens
                )
                if choice.trace is not None:
                    choice.trace.admitted(admitted)
        for preempted in batch.preempted:
            choice = self._choices.get(preempted.request_id)
            if choice is not None and choice.trace is not None:
                choice.trace.preempted()
        for delta in batch.deltas:
            choice = self._choices.get(delta.request_id)
            if choice is None:  # its caller has left, or a stop string ended it
                continue
            if choice.trace is not None:
                choice.trace.heard(delta, batch.told_at)
            try:
                self._deliver(choice, delta)
            except Exception:
                # A fault of ours in one text is no reason to end the others.
                _log.exception("delivery failed", extra={"request_id": choice.stream.generation.request_id})
                self._tell_abort(choice)
                self._fail(choice, GenerationFailed("The engine could not write this answer."), "error")

    def _deliver(self, choice: _Choice, delta: Delta) -> None:
        stream = choice.stream
        generation = stream.generation
        if delta.num_cached_tokens is not None:
            # A later sibling finds what the first one computed; the caller is told what was there before.
            found = (stream.num_cached_tokens, delta.num_cached_tokens)
            stream.num_cached_tokens = min(num for num in found if num is not None)
        num_cached = stream.num_cached_tokens or 0
        now = time.monotonic()
        pushed = choice.text.push(delta)
        choice.times.detokenize_seconds += time.monotonic() - now
        self.metrics.tokens(choice.times, pushed.num_tokens, num_cached_tokens=num_cached, now=now)
        finish = pushed.finish
        stream.queue.put_nowait(
            TextDelta(
                index=choice.index,
                text=pushed.text,
                token_ids=tuple(delta.token_ids[: pushed.num_tokens]),
                logprobs=tuple(map(choice.text.describe, delta.logprobs[: pushed.num_tokens])),
                finish_reason=finish if finish == "stop" or finish == "length" else None,
                stop_reason=pushed.stop_reason,
                num_prompt_tokens=len(generation.prompt_ids),
                num_cached_tokens=num_cached,
                num_output_tokens=choice.text.num_output_tokens,
                prompt_logprobs=_prompt_logprobs(choice, delta),
            )
        )
        if finish == "abort" or finish == "error":
            self._fail(choice, _failure(delta), finish)
        elif finish is not None:
            self._forget(choice, finish)
            self.metrics.ended(choice.times, finish, now=now)
            if delta.finish is None:
                self._tell_abort(choice)

    def _fail(self, choice: _Choice, error: SapwoodError, reason: Literal["abort", "error"]) -> None:
        if self._forget(choice, reason):
            self.metrics.ended(choice.times, reason, now=time.monotonic())
            choice.stream.queue.put_nowait(error)

    def _receive_refused(self, refused: Refused) -> None:
        self.metrics.refused(refused.request_id)
        choice = self._choices.get(refused.request_id)
        if choice is not None and self._forget(choice, "error"):
            choice.stream.queue.put_nowait(self._refusal(refused))

    def _refusal(self, refused: Refused) -> SapwoodError:
        if refused.reason == "queue_full":
            return Overloaded(
                num_queued=self.load.num_waiting,
                limit=self._max_queued,
                retry_after_seconds=self._retry_after_full(),
            )
        error = RequestError(refused.message)
        error.code = "context_length_exceeded" if refused.reason == "never_fits" else "invalid_value"
        return error

    def _retry_after_full(self) -> int:
        """Seconds until, at the pace of late, half of the queue will have been served."""
        running = max(1, self.load.num_running)
        seconds = self.metrics.recent_duration_seconds * self.load.num_waiting / running / 2
        return min(_MOST_RETRY_SECONDS, max(1, math.ceil(seconds)))

    def become_ready(self) -> None:
        """Be so, if all is loaded and nothing more is to be computed first."""
        if self._state not in ("loading", "warming") or self.capacity is None or self._tokenizer is None:
            return
        now = time.monotonic()
        self.warm_up.loaded(now)
        if self._look_again is not None:
            self._look_again.cancel()
        if seconds := self.warm_up.seconds_left(now):
            self._set_state("warming")
            self._look_again = asyncio.get_running_loop().call_later(seconds, self.become_ready)
            return
        self._set_state("ready")
        self._ready.set()

    def _set_state(self, state: EngineState) -> None:
        self._state = state
        self.metrics.set_state(state)

    # --- for operators

    async def admin(self, action: AdminAction, **arguments: Any) -> dict[str, Any]:
        """Ask the worker and return its answer; `WorkerDied`, `Loading` while it loads, `SapwoodError`
        as it says.
        """
        self._raise_if_dead()
        if self.capacity is None:
            raise Loading(retry_after_seconds=_RETRY_WHILE_LOADING_SECONDS)
        return await self._admin_calls.ask(action, arguments)

    async def abort(self, request_id: str) -> int:
        """Tell every running choice of the calls named ``request_id`` to stop; return how many there were."""
        choices = [c for c in self._choices.values() if c.stream.generation.request_id == request_id]
        for choice in choices:
            self._tell_abort(choice)
        return len(choices)

    async def drain(self, deadline_seconds: float | None = None) -> None:
        """Take no new requests; return when the running ones have ended, at the deadline by force.

        ``deadline_seconds``: None takes what ``--drain-seconds`` says.
        """
        if deadline_seconds is None:
            deadline_seconds = self._drain_seconds
        self._set_state("draining")
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._idle.wait()
        except TimeoutError:
            error = GenerationFailed("The engine shuts down; this answer is incomplete.", reason="abort")
            for choice in list(self._choices.values()):
                self._tell_abort(choice)
                self._fail(choice, error, "abort")

    def requests(self, max_ended: int) -> RequestList:
        """Return the calls that wait or run, and the ``max_ended`` that ended last."""
        return self._recent.listed(time.monotonic(), max_ended)

    def count_call(self, status: int) -> None:
        """Note that a call of the OpenAI API has ended, as `contract.metrics.HTTP_CODES` says."""
        self.metrics.call_ended(status)

    def render_metrics(self, accept: str = "") -> Scraped:
        """Return the metrics in the form that an Accept header of ``accept`` asks for."""
        return self.metrics.render(accept)


def _prompt_logprobs(choice: _Choice, delta: Delta) -> tuple[TokenInfo | None, ...] | None:
    if delta.prompt_logprobs is None:
        return None
    return (None, *map(choice.text.describe, delta.prompt_logprobs))


def _failure(delta: Delta) -> GenerationFailed:
    if delta.finish == "abort":
        return GenerationFailed("The answer was aborted before its end.", reason="abort")
    return GenerationFailed(delta.error or "The engine could not finish this answer.")
