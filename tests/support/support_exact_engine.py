"""The engine's scheduler in virtual time, driven step after step as its loop does: what a virtual engine is held to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sapwood_engine.core.admission import Accepted, SchedulerConfig
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace, Request, RequestId, SamplingParams, StopRules
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import StepPlan, StepResult
from sapwood_engine.core.step_cost import chunk_keys
from sapwood_tools.replay.latency import LatencyModel
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest

_PAGE_TOKENS = 16


@dataclass(slots=True)
class Timeline:
    """When what happened, by number of the request; gaps of all streams together."""

    first_at: dict[int, float] = field(default_factory=dict)
    ended_at: dict[int, float] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    num_steps: int = 0


def exact_timeline(model: LatencyModel, requests: Sequence[TraceRequest], *, shrink: int) -> Timeline:
    """Return what an engine of ``model`` makes of ``requests``, the overheads of requests aside.

    As `service.engine_loop` with overlap: messages are taken, steps planned until two are in flight, one collected.
    """
    limits = model.limits
    cache = PrefixCache(num_pages=limits.kv_tokens // _PAGE_TOKENS, page_size=_PAGE_TOKENS)
    capacity = Capacity(cache.num_pages, _PAGE_TOKENS, limits.kv_tokens, limits.max_running, limits.max_step_tokens, 2)
    config = SchedulerConfig(
        max_running=limits.max_running,
        max_queued=len(requests),
        max_step_tokens=limits.max_step_tokens,
        chunk_tokens=limits.chunk_tokens,
        itl_target_seconds=limits.itl_target_seconds,
        ttft_target_seconds=limits.ttft_target_seconds,
    )
    scheduler = Scheduler(config, capacity, cache)
    waiting = deque(enumerate(requests))
    in_flight: deque[tuple[StepPlan, float]] = deque()
    last_at: dict[str, float] = {}
    told = Timeline()
    now = 0.0
    while waiting or scheduler.has_work():
        if not scheduler.has_work():
            now = max(now, waiting[0][1].arrival_seconds)
        while waiting and waiting[0][1].arrival_seconds <= now:
            number, request = waiting.popleft()
            assert scheduler.submit(_request(number, request, shrink), request.arrival_seconds) == Accepted()
        while len(in_flight) < 2 and (plan := scheduler.plan(now)) is not None:
            begin = in_flight[-1][1] if in_flight else now
            in_flight.append((plan, begin + _seconds(model, plan)))
            told.num_steps += 1
        plan, end = in_flight.popleft()
        begin, now = now, end
        tokens = [1 if samples else -1 for samples in plan.samples]
        for output in scheduler.commit(StepResult(plan.step_id, tokens, _seconds(model, plan))):
            number = int(output.request_id)
            if output.request_id in last_at:
                told.gaps.append(now - last_at[output.request_id])
            else:
                told.first_at[number] = now
                told.cached_tokens[number] = output.num_cached_tokens or 0
            last_at[output.request_id] = now
            if output.finish:
                told.ended_at[number] = now
    return told


def _request(number: int, request: TraceRequest, shrink: int) -> Request:
    num_tokens = -(-request.prompt.num_tokens // shrink)
    block_tokens = BLOCK_TOKENS // shrink
    ids = [token for block in request.blocks for token in [block] * block_tokens][:num_tokens]
    rules = StopRules(max(1, -(-request.output_tokens // shrink)))
    return Request(RequestId(str(number)), Namespace("replay"), tuple(ids), SamplingParams(0, 0.0), rules)


def _seconds(model: LatencyModel, plan: StepPlan) -> float:
    """A row of one token counts as a decode, which a prompt's last token alone is too."""
    rows = list(zip(plan.starts, plan.lengths, strict=True))
    decodes = [start + 1 for start, length in rows if length == 1]
    return model.steps.of(
        prefill_tokens=sum(length for _, length in rows if length > 1),
        prefill_keys=sum(chunk_keys(start, length) for start, length in rows if length > 1),
        num_decodes=len(decodes),
        decode_keys=sum(decodes),
    )
