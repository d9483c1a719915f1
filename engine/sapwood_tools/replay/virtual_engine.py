"""An engine in virtual time, step by step as its scheduler plans them, at a cost that does not grow with the steps.

The prefix cache is the engine's own, and so are the shares that prefills get of a step (`core.prefill_share`). Times
are a latency model's. Steps that are planned alike are one `StepRun`, so that a request costs a few runs instead of
hundreds of steps. As in an engine with overlap a step is planned when the one before it begins: a request that comes
while a step computes is not in the next one either.

Simpler than in `core.scheduler` is this: a request gets the pages of its whole answer when it is admitted, so nobody is
sent back for want of memory and who would be waits instead; nobody is overdue; answers leave nothing in the cache; a
prompt is given to it when it is computed whole, or as soon as another waits for its beginning.
`tests/tools/test_virtual_engine.py` holds it beside the scheduler itself.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.block_log import BlockEvent
from sapwood_engine.core.prefill_share import Prefill, prefill_allowance, share_prefill
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.step_cost import StepCosts
from sapwood_tools.replay.latency import LatencyModel
from sapwood_tools.replay.step_run import StepRun, run_of, steps_alike
from sapwood_tools.replay.trace import BLOCK_TOKENS, TraceRequest
from sapwood_tools.replay.virtual_pages import VirtualPages
from sapwood_tools.replay.virtual_queue import Job, VirtualQueue

_LIMITS = SchedulerConfig()


class FirstToken(NamedTuple):
    """A client has its first token."""

    request_id: int
    at: float
    """By the client: what a request takes beside steps is in it."""
    cached_tokens: int
    """Of the trace."""


class Ended(NamedTuple):
    """A client has its whole answer."""

    request_id: int
    at: float
    """As of `FirstToken`."""


Event = FirstToken | Ended


class Gaps(NamedTuple):
    """So many times between two tokens of a stream, all of them alike."""

    seconds: float
    number: int


class StepEngine:
    """One replica. Time never goes back: `advance` to a time before offering at it.

    ``shrink``: prompts and answers have so many times fewer tokens in the engine than in the trace, to replay a trace
    of a large model on a small one. What is told is in tokens of the trace, whatever the shrinking.
    """

    def __init__(
        self, model: LatencyModel, *, capacity_blocks: int | None = None, shrink: int = 1, log_blocks: bool = True
    ) -> None:
        """``capacity_blocks``: of the cache, in blocks of the trace; None: what the model says."""
        if shrink < 1 or BLOCK_TOKENS % shrink:
            raise ValueError(f"shrink: {shrink} cannot be used: it must divide {BLOCK_TOKENS}")
        limits, steps = model.limits, model.steps
        if capacity_blocks is None:
            capacity_blocks = limits.kv_tokens * shrink // BLOCK_TOKENS
        self._pages = VirtualPages(capacity_blocks, shrink=shrink, log_blocks=log_blocks)
        self._model, self._limits, self._shrink = model, limits, shrink
        self._max_seats = min(limits.max_running, limits.max_step_tokens)
        self._costs = StepCosts((steps.prefill_token, steps.prefill_key, steps.decode, steps.decode_key, steps.base))
        self._queue = VirtualQueue(
            self._pages.look_up, ttft_target_seconds=limits.ttft_target_seconds, max_step_tokens=limits.max_step_tokens
        )
        self._unanswered: set[int] = set()
        self._prefilling: list[Job] = []
        self._computing: list[Job] = []
        """Whose prompts the cache does not hold whole yet."""
        self._decoding: list[tuple[int, int, Job]] = []
        """By the number of the decode step with which each ends."""
        self._decode_steps = 0
        self._decode_keys = 0
        """What all who decode would read in the next step."""
        self._run: StepRun[Job] | None = None
        self._next: StepRun[Job] | None = None
        """What was planned while the last step of the run computes."""
        self._refreshed_at = -1
        self._is_stuck = False
        """The last pass through the queue admitted nobody, and nothing has changed since."""
        self._num_seated = self._num_jobs = 0
        self.busy_seconds = 0.0
        """Spent on steps, as far as they are told."""
        self._to_warm: deque[Job] = deque()
        self._gaps: list[Gaps] = []
        self._events: list[Event] = []

    # --- requests

    def offer(self, request_id: int, request: TraceRequest, now: float) -> None:
        """Take ``request`` at ``now``; ``request_id``, from 0 on, names it in events.

        Raises `CacheTooSmall` where it can never fit.
        """
        job = self._pages.job(request_id, request, now, num_outputs=request.output_tokens)
        if self._run is not None:
            self._settle_until(self._run, now)
        self._unanswered.add(request_id)
        self._queue.push(job)
        self._is_stuck = False
        if self._run is None:
            self._run = self._plan(now)

    def advance(self, now: float) -> Sequence[Event]:
        """Let everything happen up to ``now``; return what happened since the last call, in the engine's order.

        What clients see may be stamped a little later than ``now``, see `FirstToken.at`.
        """
        while self._run is not None and self._run.end <= now:
            self._turn(self._run)
        events, self._events = self._events, []
        return events

    def next_event_at(self) -> float:
        """Return a time before which nothing is to be told and no load changes, if nothing is offered; infinite at
        rest.
        """
        return math.inf if self._run is None else self._run.end

    def warm(self, prefixes: Iterable[TraceRequest], now: float) -> None:
        """Compute ``prefixes`` one after the other whenever nobody waits or runs, as after ``/admin/warm``."""
        for prefix in prefixes:
            self._to_warm.append(self._pages.job(-1, prefix, now, num_outputs=0))
        if self._run is None:
            self._run = self._plan(now)

    def unanswered(self) -> list[int]:
        """Return the requests that it has taken and not answered in full: what is lost if the engine is."""
        return sorted(self._unanswered)

    # --- what it tells

    @property
    def cache(self) -> PrefixCache:
        """What it holds; to be looked at."""
        return self._pages.cache

    @property
    def num_requests(self) -> int:
        """Waiting and running."""
        return self._queue.num_waiting + self._num_seated

    @property
    def num_to_warm(self) -> int:
        """Prefixes that were not begun yet."""
        return len(self._to_warm)

    @property
    def waiting_tokens(self) -> int:
        """To be computed of requests that wait, less what the cache held when it was looked at for each."""
        return self._queue.uncached_tokens * self._shrink

    def load(self) -> LoadSnapshot:
        """Return what an engine would tell of its load."""
        counts = self.cache.counts()
        return LoadSnapshot(
            num_running=self._num_seated,
            num_waiting=self._queue.num_waiting,
            num_waiting_tokens=self.waiting_tokens,
            kv_capacity_tokens=self.cache.num_pages * BLOCK_TOKENS,
            kv_page_tokens=BLOCK_TOKENS,
            kv_active_tokens=counts.owned * BLOCK_TOKENS,
            kv_protected_tokens=counts.protected * BLOCK_TOKENS,
            kv_evictable_tokens=counts.evictable * BLOCK_TOKENS,
            kv_free_tokens=counts.free * BLOCK_TOKENS,
            radix_nodes=self.cache.num_nodes,
            max_running=self._max_seats,
        )

    def take_gaps(self) -> list[Gaps]:
        """Return the times between tokens since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def take_block_events(self) -> list[BlockEvent]:
        """Return what entered and left the cache since the last call."""
        return self.cache.take_block_events()

    # --- runs of steps

    def _settle_until(self, run: StepRun[Job], now: float) -> None:
        """Keep what is planned already at ``now``: the step that computes and the one behind it."""
        if run.is_scheduled:
            return
        step = run.step_at(now)
        if step < run.num_steps:
            run.num_steps = step + 1
            return
        self._schedule(run)
        self._next = self._plan(run.end)
        if self._next is not None:
            self._next.num_steps = 1

    def _turn(self, run: StepRun[Job]) -> None:
        """The last step of ``run`` ends. What follows was planned when that step began, so before its end counts."""
        following, self._next = self._next, None
        if not run.is_scheduled:
            self._schedule(run)
            following = self._plan(run.end)
        has_changed = self._commit(run)
        if following is None:
            following = self._plan(run.end)
        elif has_changed and self._queue.num_waiting:
            following.num_steps = 1
        self._run = following

    def _schedule(self, run: StepRun[Job]) -> None:
        """The last step of ``run`` begins: what comes behind it is planned as if it were done."""
        run.is_scheduled = True
        num_steps, seconds = run.num_steps, run.seconds
        self.busy_seconds += seconds
        if run.num_decodes:
            self._gaps.append(Gaps(seconds / num_steps, num_steps * run.num_decodes))
            self._decode_steps += num_steps
            self._decode_keys += num_steps * run.num_decodes
            while self._decoding and self._decoding[0][0] <= self._decode_steps:
                job = heapq.heappop(self._decoding)[2]
                self._decode_keys -= job.num_tokens + job.num_outputs
                run.ended.append(job)
        for job, share in run.prefills:
            job.done += share * num_steps
            if job.done < job.num_tokens:
                continue
            self._prefilling.remove(job)
            run.computed.append(job)
            if job.num_outputs > 1:
                self._num_jobs += 1
                heapq.heappush(self._decoding, (self._decode_steps + job.num_outputs - 1, self._num_jobs, job))
                self._decode_keys += job.num_tokens + 1
            else:
                run.ended.append(job)

    def _commit(self, run: StepRun[Job]) -> bool:
        """The last step of ``run`` has ended; return whether somebody may come in who could not before."""
        has_changed = bool(run.computed or run.ended)
        for job in self._computing:
            if 0 < job.wanted <= job.done < job.num_tokens:
                self._pages.store(job)
                has_changed = True
        for job in run.computed:
            self._computing.remove(job)
            self._pages.store(job)
            if job.request_id >= 0:
                at = run.end + self._model.requests.of(job.num_tokens)
                self._events.append(FirstToken(job.request_id, at, self._pages.trace_tokens(job)))
        for job in run.ended:
            self._end(job, run.end)
        if has_changed:
            self._is_stuck = False
        return has_changed

    def _end(self, job: Job, now: float) -> None:
        self._pages.close(job)
        self._num_seated -= 1
        if job.request_id >= 0:
            self._unanswered.discard(job.request_id)
            self._events.append(Ended(job.request_id, now + self._model.requests.of(job.num_tokens)))

    # --- planning

    def _plan(self, begin: float) -> StepRun[Job] | None:
        """Return the steps that can be planned now, the first of them at ``begin``; None where there is nothing."""
        if self._queue.num_waiting and not self._is_stuck:
            self._admit()
        elif self._to_warm and not self._num_seated:
            self._open(self._to_warm.popleft())
        num_decodes = len(self._decoding)
        if not self._prefilling:
            if not num_decodes:
                return None
            run: StepRun[Job] = run_of(
                self._model.steps, begin, num_decodes=num_decodes, decode_keys=self._decode_keys, prefills=[]
            )
            run.num_steps = self._decoding[0][0] - self._decode_steps
            return run
        return self._plan_prefills(begin, num_decodes)

    def _plan_prefills(self, begin: float, num_decodes: int) -> StepRun[Job]:
        steps, chunk = self._model.steps, self._limits.chunk_tokens
        prefills = [
            Prefill(job.done, job.num_tokens - job.done, min(chunk, job.num_tokens - job.done))
            for job in self._prefilling
        ]
        allowance = math.inf
        if num_decodes:
            alone = steps.of(prefill_tokens=0, prefill_keys=0, num_decodes=num_decodes, decode_keys=self._decode_keys)
            allowance = prefill_allowance(alone, self._limits.itl_target_seconds)
        budget = self._limits.max_step_tokens - num_decodes
        shares = share_prefill(prefills, self._costs, max_tokens=budget, seconds=allowance)
        run = run_of(
            steps,
            begin,
            num_decodes=num_decodes,
            decode_keys=self._decode_keys,
            prefills=[(job, job.done, share) for job, share in zip(self._prefilling, shares, strict=True) if share],
        )
        most = steps_alike(steps, prefills, shares, num_decodes=num_decodes, allowance=allowance)
        for job, share in run.prefills:
            if job.wanted > job.done:
                most = min(most, -(-(job.wanted - job.done) // share))
        if num_decodes:
            most = min(most, self._decoding[0][0] - self._decode_steps)
        run.num_steps = most
        return run

    # --- admission

    def _admit(self) -> None:
        """As `core.admitting`: in the order of ranks, past those that do not fit or that wait for another's prompt."""
        chunk, queue = self._limits.chunk_tokens, self._queue
        budget = self._limits.max_step_tokens - len(self._decoding)
        budget -= sum(min(chunk, job.num_tokens - job.done) for job in self._prefilling)
        if budget <= 0 or self._num_seated >= self._max_seats:
            return
        if self._refreshed_at != self._pages.version:
            self._refreshed_at = self._pages.version
            queue.refresh()
        num_admitted = num_skips = 0
        for _ in range(_LIMITS.max_looks):
            if budget <= 0 or self._num_seated >= self._max_seats or (job := queue.take()) is None:
                break
            if self._computing or job.looked_at >= 0:
                queue.renew(job)
                if self._is_held_back(job):
                    continue
            if self._open(job):
                queue.admitted(job)
                budget -= min(chunk, job.num_tokens - job.done)
                num_admitted += 1
                continue
            num_skips += 1
            if num_skips > _LIMITS.max_skips:
                break
        queue.end_pass()
        self._is_stuck = not num_admitted

    def _is_held_back(self, job: Job) -> bool:
        """Whether somebody computes a beginning of ``job`` that the cache does not hold yet; lets him know how far."""
        for leader in self._computing:
            wanted = self._pages.shared_tokens(job, leader)
            if wanted - job.cached >= _LIMITS.min_shared_tokens:
                leader.wanted = wanted if leader.wanted <= leader.done else min(leader.wanted, wanted)
                return True
        return False

    def _open(self, job: Job) -> bool:
        """Give ``job`` a seat and pages; return whether there are enough."""
        if not self._pages.open(job):
            return False
        self._num_seated += 1
        self._prefilling.append(job)
        self._computing.append(job)
        return True
