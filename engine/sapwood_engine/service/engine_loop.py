"""The worker's loop: take messages, plan, launch, collect, commit, tell; one `TokenBatch` a turn.

With overlap a step is planned while the one before computes, so the device never waits for a plan.
Invariants: every submitted request is answered by a finish or a refusal; a failed step ends its requests
and nothing else; a failed integrity check stops reuse and is counted, and the engine serves on.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sapwood_contract.curve import Curve, describe_curve
from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.admission import Refused as SchedulerRefused
from sapwood_engine.core.block_log import BlockEvent
from sapwood_engine.core.ports import Executor
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, TokenOutput
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import Admitted, Evicted, PlanEvent, Preempted, StepPlan
from sapwood_engine.core.warming import WarmCounts
from sapwood_engine.errors import StepFailed
from sapwood_engine.service.messages import (
    Abort,
    AdminCall,
    AdminReply,
    Delta,
    FromWorker,
    Refused,
    Shutdown,
    StepStats,
    Submit,
    TokenBatch,
    ToWorker,
)
from sapwood_engine.service.prefix_calls import PrefixCalls

_log = logging.getLogger(__name__)

_CHECK_INTERVAL_SECONDS = 30.0
_CHECK_UNDER_LOAD_SECONDS = 300.0
_CHECK_UNDER_LOAD_NODES = 4096
_CHECK_UNDER_LOAD_PAGES = 32_768
"""Under load a check holds up the next step. It costs some 4 µs a node and 0.7 µs a page: with so many at most 40 ms,
part of which a step in flight computes. A larger cache is checked at rest only."""
_CHECK_SHARE = 100
"""An integrity check may take one part in this many of the time."""
_FAULTS_LOGGED = 10
_CACHE_NODES = 1000
_FITTED_SECONDS = 1.0
"""The curve and the costs of steps are told once in so many seconds at most, and when there is nothing left to do."""
_STEP_FAILED = "A step of the model failed; this answer is incomplete."
_NOTHING_TO_DRAW = (
    "No token could be drawn: the model's logits are not finite, or every token is banned; this answer is incomplete."
)


@dataclass(slots=True)
class _News:
    """What happened since the last `TokenBatch`."""

    deltas: list[Delta] = field(default_factory=list)
    events: list[PlanEvent] = field(default_factory=list)
    step: StepStats | None = None
    num_invariant_failures: int = 0
    replies: list[AdminReply] = field(default_factory=list)


class Pipe(Protocol):
    """The worker's end of the pipes; `ipc.WorkerChannel` is one."""

    def send(self, message: FromWorker) -> None:
        """Queue ``message``; never blocks."""

    def receive_ready(self) -> Iterable[ToWorker]:
        """Yield what has arrived, without waiting."""

    def wait(self, seconds: float | None) -> bool:
        """Sleep until a message arrives (True) or the time is up (False); None waits for ever."""


class Blocks(Protocol):
    """Who is told of blocks; `kv_events.BlockPublisher` is one."""

    def publish(self, events: Sequence[BlockEvent]) -> None:
        """Take ``events`` in their order; never blocks."""

    def snapshot(self, blocks: Sequence[BlockEvent]) -> bytes:
        """Return ``blocks``, all there are, in the form in which they are published."""


class EngineLoop:
    """Drives one scheduler and one executor; everything runs on the thread that calls `run`."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        cache: PrefixCache,
        executor: Executor,
        channel: Pipe,
        overlap: bool,
        blocks: Blocks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._executor = executor
        self._channel = channel
        self._blocks = blocks
        self._clock = clock
        self._epoch = secrets.token_hex(8)
        """Drawn at every start: a node's serial is another's in another epoch."""
        self._most_in_flight = 2 if overlap else 1
        self._in_flight: deque[StepPlan] = deque()
        self._news = _News()
        self._told_load: LoadSnapshot | None = None
        self._fitted_due = clock()
        self._curve_requests = -1
        """Requests that the curve had counted when it was last told."""
        self._told_costs: dict[str, float] = {}
        self._told_warmed = scheduler.warm_counts()
        self._prefix_calls = PrefixCalls(cache, scheduler, clock)
        self._stopping = False
        self._check_due = clock() + _CHECK_INTERVAL_SECONDS
        self._check_under_load_due = clock() + _CHECK_UNDER_LOAD_SECONDS
        self._changed_since_check = False

    def run(self) -> None:
        """Serve until a `Shutdown` has come and everything submitted before it has ended."""
        self._tell()  # what there is, before anything is asked
        while self._scheduler.has_work() or not self._stopping:
            if not self._scheduler.has_work():
                self._wait_for_messages()
            for message in self._channel.receive_ready():
                self._take(message)
            self._launch()
            self._check_under_load()
            if self._in_flight:
                self._collect()
            elif self._scheduler.has_work():
                raise AssertionError("requests wait or run, no step is in flight, and none was planned")
            self._tell()

    # --- steps

    def _launch(self) -> None:
        while len(self._in_flight) < self._most_in_flight:
            plan = self._scheduler.plan(self._clock())
            if plan is None:
                return
            self._news.events += plan.events
            self._in_flight.append(plan)
            self._executor.launch(plan)
            self._changed_since_check = True

    def _collect(self) -> None:
        plan = self._in_flight[0]
        try:
            result = self._executor.collect()
        except StepFailed as error:
            _log.error("step failed", extra={"step_id": plan.step_id, "reason": str(error)}, exc_info=error.__cause__)
            for output in self._scheduler.fail(plan.step_id):
                self._news.deltas.append(_delta(output, error=_STEP_FAILED))
        else:
            if result.unusable_rows:
                _log.error("no token could be drawn", extra={"step_id": plan.step_id, "rows": result.unusable_rows})
            self._news.deltas += [_delta(output, error=_NOTHING_TO_DRAW) for output in self._scheduler.commit(result)]
            self._news.step = StepStats(plan.kind, len(plan.token_ids), result.seconds)
            _log.debug(
                "step",
                extra={
                    "kind": plan.kind,
                    "rows": len(plan.seats),
                    "tokens": len(plan.token_ids),
                    "seconds": result.seconds,
                    "predicted_seconds": plan.predicted_seconds,
                },
            )
        self._in_flight.popleft()

    def _tell(self) -> None:
        self._publish_blocks()
        news, load = self._news, self._scheduler.load()
        self._news = _News()
        curve, costs = self._fitted_to_tell()
        warmed = self._warmed_to_tell()
        has_news = news.deltas or news.events or news.step or news.num_invariant_failures
        if has_news or curve or costs or warmed or load != self._told_load:
            self._told_load = load
            self._channel.send(
                TokenBatch(
                    deltas=news.deltas,
                    load=load,
                    step=news.step,
                    admitted=[event for event in news.events if isinstance(event, Admitted)],
                    preempted=[event for event in news.events if isinstance(event, Preempted)],
                    evicted=[event for event in news.events if isinstance(event, Evicted)],
                    num_invariant_failures=news.num_invariant_failures,
                    curve=curve,
                    step_costs=costs,
                    warmed=warmed,
                    told_at=self._clock(),
                )
            )
        # After the batch: whoever got an answer has the load of its turn already.
        for reply in news.replies:
            self._channel.send(reply)

    def _fitted_to_tell(self) -> tuple[Curve | None, dict[str, float] | None]:
        """Return the miss-ratio curve and the costs of steps, each where it has changed and it is time."""
        now = self._clock()
        if now < self._fitted_due and self._scheduler.has_work():
            return None, None
        curve, costs = None, None
        measured, known = self._cache.miss_ratio, self._scheduler.step_costs()
        if measured is not None and measured.num_requests != self._curve_requests:
            self._curve_requests = measured.num_requests
            curve = measured.curve()
        if known != self._told_costs:
            costs = self._told_costs = known
        if curve or costs:
            self._fitted_due = now + _FITTED_SECONDS
        return curve, costs

    def _warmed_to_tell(self) -> WarmCounts | None:
        counts = self._scheduler.warm_counts()
        if counts == self._told_warmed:
            return None
        self._told_warmed = counts
        return counts

    def _publish_blocks(self) -> None:
        if self._blocks is not None and (events := self._cache.take_block_events()):
            self._blocks.publish(events)

    # --- messages

    def _take(self, message: ToWorker) -> None:
        match message:
            case Submit(request):
                self._submit(request)
            case Abort(request_id):
                output = self._scheduler.abort(RequestId(request_id))
                if output is not None:
                    self._news.deltas.append(_delta(output))
            case AdminCall():
                self._news.replies.append(self._answer(message))
            case Shutdown():
                self._scheduler.stop_warming()
                self._stopping = True

    def _submit(self, request: Request) -> None:
        answer = self._scheduler.submit(request, self._clock())
        if isinstance(answer, SchedulerRefused):
            self._channel.send(Refused(request.request_id, answer.reason, answer.message))
        elif answer.displaced is not None:
            self._channel.send(Refused(answer.displaced, "queue_full", "A request of higher priority took its place."))

    def _answer(self, call: AdminCall) -> AdminReply:
        try:
            return AdminReply(call.call_id, self._administer(call))
        except Exception as error:
            _log.exception("admin call failed", extra={"action": call.action})
            return AdminReply(call.call_id, {}, f"{type(error).__name__}: {error}")

    def _administer(self, call: AdminCall) -> dict[str, Any]:
        match call.action:
            case "cache":
                tree = self._cache.snapshot(
                    max_nodes=call.arguments.get("max_nodes", _CACHE_NODES),
                    token_ids=call.arguments.get("token_ids", 0),
                )
                told = {"epoch": self._epoch, "page_size": self._cache.page_size, "enabled": self._cache.enabled}
                return {**told, **tree, "curve": describe_curve(self._cache.curve())}
            case "blocks":
                if self._blocks is None:
                    return {}
                self._publish_blocks()
                return {"batch": self._blocks.snapshot(self._cache.block_snapshot())}
            case "survey":
                return self._prefix_calls.survey(call.arguments)
            case "paths":
                return self._prefix_calls.paths(call.arguments)
            case "warm":
                return self._prefix_calls.warm(call.arguments)
            case "flush":
                return {"num_tokens": self._flush(call.arguments)}
            case "check":
                return {"faults": self._check()}

    def _flush(self, fields: dict[str, Any]) -> int:
        """Drop everything where ``fields`` are empty, else the namespace whose fields they are.

        The model's revision is not among them: the worker serves one. Counted at once, not with the next plan.
        """
        flushed: list[Namespace | None] = [None]
        if fields:
            flushed = [
                namespace
                for namespace in self._cache.namespaces()
                if all(getattr(namespace, name) == value for name, value in fields.items())
            ]
        num_tokens = sum(self._cache.flush(namespace) for namespace in flushed)
        self._news.events += self._cache.take_evicted()
        return num_tokens

    # --- when there is nothing to compute

    def _wait_for_messages(self) -> None:
        """Sleep until a message comes; first, if the time has come, check that the cache is as it should
        be.
        """
        now = self._clock()
        if self._changed_since_check and now >= self._check_due:
            self._check()
            self._tell()
            now = self._clock()
        # Sleeping on towards the next check, if one is wanted: an engine at rest wakes once, then sleeps
        # for good.
        self._channel.wait(max(0.0, self._check_due - now) if self._changed_since_check else None)

    def _check_under_load(self) -> None:
        """Check now and then also where the engine never rests, if that takes no longer than a step."""
        is_small = self._cache.num_pages <= _CHECK_UNDER_LOAD_PAGES and self._cache.num_nodes <= _CHECK_UNDER_LOAD_NODES
        if is_small and self._changed_since_check and self._clock() >= self._check_under_load_due:
            self._check()

    def _check(self) -> list[str]:
        """Check every invariant; on a fault serve on, but never from the cache, which may hold wrong KV."""
        begin = self._clock()
        faults = self._scheduler.check_invariants()
        self._changed_since_check = False
        now = self._clock()
        self._check_under_load_due = now + _CHECK_UNDER_LOAD_SECONDS
        self._check_due = now + max(_CHECK_INTERVAL_SECONDS, _CHECK_SHARE * (now - begin))
        if faults:
            self._news.num_invariant_failures += 1
            _log.error("the cache is broken: reuse is off from now on", extra={"faults": faults[:_FAULTS_LOGGED]})
            self._cache.enabled = False
            try:
                self._flush({})
            except AssertionError as error:
                _log.error("what was cached could not all be dropped", extra={"reason": str(error)})
        return faults


def _delta(output: TokenOutput, *, error: str | None = None) -> Delta:
    """``error`` is what the client is told if the output's finish is one."""
    return Delta(
        output.request_id,
        output.token_ids,
        output.finish,
        output.num_cached_tokens,
        output.logprobs,
        output.prompt_logprobs,
        error if output.finish == "error" else None,
        output.num_chunks,
    )
