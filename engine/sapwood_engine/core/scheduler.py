"""What the next step computes, and what a finished step means: `Scheduler.plan` and `Scheduler.commit`.

Keeps one invariant: of every sequence ``num_computed`` chases ``num_tokens`` (see `core.sequence`). A plan
goes

1. *grow* (`core.running`): every decoding sequence gets the page that its next token needs;
2. *admit* (`core.admitting`): waiting requests in the policy's order, as far as seats, step tokens and
   pages go;
3. *rows* (`core.rows`): decodes first, then a chunk of every prefilling sequence while step tokens last and, where
   somebody decodes, what the step should cost allows (`core.prefill_share`, `core.step_cost`).

Where nobody waits or runs, the step computes of prefixes that somebody should need soon (`core.warming`), one step at
a time, so that who comes meanwhile waits for no more than that.

A step may be planned while the one before is in flight (at most two are). Then its decode rows hold
`PENDING_TOKEN`, and what it computes behind a stop is discarded at its commit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.admission import Accepted, Refused, SchedulerConfig, content_refusal, max_output
from sapwood_engine.core.admitting import Admitter
from sapwood_engine.core.ordering import WaitingQueue
from sapwood_engine.core.page_table import PageTable
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefill_share import Prefill, prefill_allowance, share_prefill
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import FinishReason, Request, RequestId, TokenLogprobs, TokenOutput
from sapwood_engine.core.rows import add_chunk, add_decodes
from sapwood_engine.core.running import RunningSet
from sapwood_engine.core.scheduler_checks import find_faults
from sapwood_engine.core.sequence import Sequence
from sapwood_engine.core.step import SeatOpened, StepPlan, StepResult
from sapwood_engine.core.step_cost import StepCosts, StepWork, chunk_keys
from sapwood_engine.core.warming import WarmCounts, Warming, WarmPrefix

MAX_IN_FLIGHT = 2


@dataclass(slots=True)
class LaunchedStep:
    """What `Scheduler.commit` must know of a step: whose its rows are, in order; the first ones are
    decodes."""

    step_id: int
    sequences: list[Sequence]
    lengths: list[int]
    samples: list[bool]
    num_decodes: int
    work: StepWork
    spares: list[PageTable] = field(default_factory=list)
    """Tables whose spare pages this step may still read."""


class Scheduler:
    """The pure scheduler of one engine; every method is called from one thread.

    ``cache`` has no other user, but for those who look at it or flush it. Times are seconds of any
    monotonic clock. Pins (`Request.cache_pin_seconds`) count from the plan before a request's end, and end with
    the first plan after their time; under policies other than ``ttl`` they mean nothing, because there they would
    keep nothing and end what others use.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        capacity: Capacity,
        cache: PrefixCache,
        *,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``clock``: tells the times in `step.Admitted`, and decides nothing."""
        self._config = config
        self._capacity = capacity
        self._cache = cache
        self._max_step_tokens = min(config.max_step_tokens, capacity.max_step_tokens)
        # Never more seats than step tokens: all decodes always fit, and a prefill always finds a token
        # beside them.
        self._max_seats = min(config.max_running, capacity.max_seats, self._max_step_tokens)
        self._queue = WaitingQueue(config, first_page_tokens=cache.keys.num_tokens(cache.page_size))
        self._running = RunningSet(self._max_seats, cache, self._queue)
        self._admitter = Admitter(config, cache, self._queue, self._running, clock=clock)
        self._warming = Warming(cache, capacity)
        self._sequences: dict[RequestId, Sequence] = {}
        """Those that wait or run; what is warmed is not among them."""
        self._in_flight: deque[LaunchedStep] = deque()
        self._costs = StepCosts()
        self._num_arrivals = 0
        self._num_steps = 0
        self._unopened: dict[int, SeatOpened] = {}
        """By seat: openings that no plan has told yet"""
        self._now = 0.0
        """When the last plan was made."""

    # --- the door

    def submit(self, request: Request, now: float) -> Accepted | Refused:
        """Take ``request`` into the queue, or say why not."""
        if request.request_id in self._sequences:
            return Refused("duplicate_id", f"A request with the id {request.request_id!r} is here already.")
        output_limit = content_refusal(request, self._cache.keys) or max_output(request, self._capacity)
        if isinstance(output_limit, Refused):
            return output_limit
        displaced = None
        num_queued, limit = len(self._queue) - self._queue.num_resuming, self._config.max_queued
        if num_queued >= limit:
            displaced = self._queue.worst() if self._queue.policy.uses_priority else None
            if displaced is None or displaced.request.priority >= request.priority:
                return Refused("queue_full", f"{num_queued} requests wait already and the limit is {limit}.")
            self._queue.remove(displaced)
            del self._sequences[displaced.request.request_id]
        sequence = Sequence(
            request, arrival=self._num_arrivals, arrived_at=now, max_output=output_limit, keys=self._cache.keys
        )
        self._num_arrivals += 1
        self._give_way()
        self._sequences[request.request_id] = sequence
        self._queue.push(sequence, cached_tokens=self._admitter.look_up(sequence))
        return Accepted(displaced.request.request_id if displaced else None)

    def abort(self, request_id: RequestId) -> TokenOutput | None:
        """End a request at any stage; returns its last output, None if no such request is here (any more)."""
        sequence = self._sequences.get(request_id)
        return self._end(sequence, "abort") if sequence else None

    def has_work(self) -> bool:
        """Whether a request waits or runs, a prefix waits to be computed, or a launched step must be committed."""
        return bool(self._sequences or self._in_flight or self._warming)

    # --- what is computed while nobody asks

    def warm(self, prefixes: Iterable[WarmPrefix], now: float) -> None:
        """Compute ``prefixes`` into the cache while nobody waits or runs, the first one first."""
        self._warming.add(prefixes, now)

    def stop_warming(self) -> None:
        """Give up all prefixes that are not computed yet."""
        self._give_way()
        self._warming.clear()

    def warm_counts(self) -> WarmCounts:
        """Return how far that has come."""
        return self._warming.counts()

    def _give_way(self) -> None:
        if self._warming.active is not None:
            self._end_warming(self._warming.active, "interrupted")

    def _start_warming(self, plan: StepPlan) -> None:
        start = self._warming.start(arrival=self._num_arrivals, now=self._now)
        if start is None:
            return
        sequence, opening = start.sequence, start.opening
        self._queue.entered(sequence)
        self._running.enter(sequence, opening, sequence.key())
        if opening.copy is not None:
            plan.copies.append(opening.copy)
        request = sequence.request
        plan.opened.append(SeatOpened(sequence.seat, request.sampling, (), request.prompt_ids, ()))

    def _end_warming(self, sequence: Sequence, how: Literal["done", "dropped", "interrupted"]) -> None:
        sequence.ended = True
        self._running.end(sequence)
        self._warming.ended(how)

    # --- planning

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step, which counts as launched; None when nothing can be computed now.

        After None, if a step is in flight, commit it first; if none is, nobody waits or runs.
        """
        assert len(self._in_flight) < MAX_IN_FLIGHT, f"{len(self._in_flight)} steps are in flight already"
        self._now = now
        self._warming.expire(now)
        if self._warming.active is not None and self._in_flight:
            return None
        self._cache.note_time(now)
        self._cache.expire(now)
        running, queue = self._running, self._queue
        plan = StepPlan(self._num_steps, "decode", [], [], [], [], [])
        sequences = running.grow_decodes()
        if queue:
            chunks = sum(s.next_chunk(self._config.chunk_tokens) for s in running.prefilling)
            left = self._max_step_tokens - len(sequences) - chunks
            self._admitter.admit(plan, num_step_tokens=left, now=now)
            if queue.policy.preempts:
                # Who was sent back may even have been admitted again: it prefills now.
                sequences = [s for s in sequences if s in running.decoding and s.preempting is None]
        elif self._warming and not (self._sequences or self._in_flight or self._warming.active):
            self._start_warming(plan)
        add_decodes(plan, sequences)
        num_decodes = len(sequences)
        work = StepWork(num_decodes, sum(plan.starts) + num_decodes)
        if running.prefilling:
            work = self._add_chunks(plan, sequences, work)
        running.events += self._cache.take_evicted()
        plan.opened = self._take_opened(plan)
        if not sequences:
            return None
        if len(sequences) > num_decodes:
            plan.kind = "mixed" if num_decodes else "prefill"
        plan.predicted_seconds = self._costs.predict(work)
        plan.page_updates = running.take_page_updates(sequences)
        plan.events, running.events = running.events, []
        self._in_flight.append(LaunchedStep(plan.step_id, sequences, plan.lengths, plan.samples, num_decodes, work))
        self._num_steps += 1
        return plan

    def _add_chunks(self, plan: StepPlan, sequences: list[Sequence], decodes: StepWork) -> StepWork:
        """Add the prefills' share to a plan with these ``decodes``, and return the work of both."""
        prefilling = list(self._running.prefilling)
        prefills = [
            Prefill(s.num_scheduled, len(s.tokens) - s.num_scheduled, s.next_chunk(self._config.chunk_tokens))
            for s in prefilling
        ]
        allowance = math.inf
        if decodes.num_decodes:
            allowance = prefill_allowance(self._costs.predict(decodes), self._config.itl_target_seconds)
        elif self._warming.active is not None:
            allowance = self._config.itl_target_seconds
        budget = self._max_step_tokens - len(sequences)
        shares = share_prefill(prefills, self._costs, max_tokens=budget, seconds=allowance)
        num_keys = 0
        for sequence, num_tokens in zip(prefilling, shares, strict=True):
            if num_tokens == 0:
                continue
            num_keys += chunk_keys(sequence.num_scheduled, num_tokens)
            sequence.num_chunks += 1
            sequences.append(sequence)
            if add_chunk(plan, sequence, num_tokens):
                self._running.start_decoding(sequence)
        return replace(decodes, prefill_tokens=sum(shares), prefill_keys=num_keys)

    def request_in(self, seat: int) -> RequestId:
        """Return the request whose row in the newest plan is computed in ``seat``."""
        return next(s.request.request_id for s in self._in_flight[-1].sequences if s.seat == seat)

    def _take_opened(self, plan: StepPlan) -> list[SeatOpened]:
        """Return the openings of the plan's seats; who was admitted and has no share of this step opens later."""
        self._unopened |= {opened.seat: opened for opened in plan.opened}
        return [self._unopened.pop(seat) for seat in plan.seats if seat in self._unopened]

    # --- settling

    def commit(self, result: StepResult) -> list[TokenOutput]:
        """Settle the oldest launched step; returns what it brought each request.

        A request whose token could not be drawn ends with ``error``, alone.
        """
        step = self._pop(result.step_id)
        self._costs.observe(step.work, result.seconds)
        outputs: list[TokenOutput] = []
        for row, sequence in enumerate(step.sequences):
            sequence.num_in_flight -= 1
            if sequence.ended:
                self._running.close_if_unused(sequence)
                continue
            if row in result.unusable_rows:
                # Its KV may be where the fault lies: nobody may find it in the cache.
                sequence.num_computed = 0
                outputs.append(self._end(sequence, "error"))
                continue
            sequence.num_computed += step.lengths[row]
            if row >= step.num_decodes:
                self._settle_chunk(sequence, result.prompt_logprobs.get(row, ()))
            if step.samples[row]:
                outputs.append(self._settle_token(sequence, result, row))
            elif sequence is self._warming.active:
                if sequence.num_computed == sequence.num_prompt:
                    self._end_warming(sequence, "done")
            elif sequence.max_output == 0 and sequence.num_computed == sequence.num_prompt:
                outputs.append(self._end(sequence, "length"))
            if sequence.preempting is not None and not sequence.ended:
                self._running.send_back_if_unused(sequence)
        return outputs

    def fail(self, step_id: int) -> list[TokenOutput]:
        """Settle the oldest launched step, which failed: its requests end with ``error``, everyone else
        goes on.

        Of what they computed only that stays in the tree which was there before.
        """
        step = self._pop(step_id)
        outputs: list[TokenOutput] = []
        for sequence in step.sequences:
            sequence.num_in_flight -= 1
            # Nobody may find in the cache what the step has, or has not, written.
            sequence.num_computed = 0
            if sequence.ended:
                self._running.close_if_unused(sequence)
            elif sequence is self._warming.active:
                self._end_warming(sequence, "dropped")
            else:
                outputs.append(self._end(sequence, "error"))
        return outputs

    def _pop(self, step_id: int) -> LaunchedStep:
        step = self._in_flight.popleft()
        assert step.step_id == step_id, f"step {step_id} ends, but step {step.step_id} is the oldest in flight"
        for table in step.spares:
            table.release_spare()
        return step

    def _settle_chunk(self, sequence: Sequence, prompt_logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Give what a prefill chunk completed to the tree, so that others hit it from now on."""
        sequence.prompt_logprobs += prompt_logprobs
        table = sequence.table
        assert table is not None
        changed = table.store(sequence.key(sequence.num_computed))
        if changed is not None:
            self._running.note_table_change(sequence, changed)
            if sequence.num_in_flight:
                self._in_flight[-1].spares.append(table)
            else:
                table.release_spare()
        if sequence.num_computed >= len(sequence.tokens):
            del self._running.computing[sequence]
        self._running.num_changes += 1

    def _settle_token(self, sequence: Sequence, result: StepResult, row: int) -> TokenOutput:
        token = result.token_ids[row]
        sequence.tokens.append(token)
        num_output = len(sequence.tokens) - sequence.num_prompt
        finish: FinishReason | None = None
        if token in sequence.stop_ids and num_output > sequence.min_tokens:
            finish = "stop"
        elif num_output >= sequence.max_output:
            finish = "length"
        if finish is None and sequence.reported:
            output = TokenOutput(sequence.request.request_id, (token,))
        else:
            output = self._end(sequence, finish) if finish else self._output(sequence, None)
            output.token_ids = (token,)
        if result.logprobs and row in result.logprobs:
            output.logprobs = (result.logprobs[row],)
        return output

    # --- ending

    def _end(self, sequence: Sequence, finish: FinishReason) -> TokenOutput:
        """End ``sequence`` wherever it is; what it holds is given back as soon as no launched step uses
        it."""
        output = self._output(sequence, finish)
        sequence.ended = True
        pin_seconds = sequence.request.cache_pin_seconds
        if pin_seconds > 0 and self._cache.policy == "ttl":
            sequence.pinned_until = self._now + pin_seconds
        del self._sequences[sequence.request.request_id]
        if sequence in self._queue:
            self._queue.remove(sequence)
        else:
            self._running.end(sequence)
        return output

    def _output(self, sequence: Sequence, finish: FinishReason | None) -> TokenOutput:
        output = TokenOutput(sequence.request.request_id, (), finish)
        if not sequence.reported:
            output.num_cached_tokens = sequence.num_cached or 0
            output.num_chunks = sequence.num_chunks
            if sequence.wants_prompt_logprobs and finish != "abort" and finish != "error":
                output.prompt_logprobs = tuple(sequence.prompt_logprobs)
            sequence.reported = True
        return output

    # --- looking at it

    def load(self) -> LoadSnapshot:
        """Return the load now. O(1), because it is asked for after every step."""
        cache, counts, page_size = self._cache, self._cache.counts(), self._cache.page_size
        return LoadSnapshot(
            num_running=len(self._running) - (self._warming.active is not None),
            num_waiting=len(self._queue),
            num_waiting_tokens=self._queue.num_uncached_tokens,
            kv_capacity_tokens=cache.num_pages * page_size,
            kv_page_tokens=page_size,
            kv_active_tokens=counts.owned * page_size,
            kv_protected_tokens=counts.protected * page_size,
            kv_evictable_tokens=counts.evictable * page_size,
            kv_free_tokens=counts.free * page_size,
            radix_nodes=cache.num_nodes,
            radix_locked_nodes=cache.num_locked_nodes,
            radix_depth_max=cache.depth_mark,
            max_running=self._max_seats,
        )

    def step_costs(self) -> dict[str, float]:
        """Return the fitted seconds of a step's parts, see `StepCosts.known`."""
        return self._costs.known()

    def check_invariants(self) -> list[str]:
        """Walk everything and name each fault; an empty list means healthy. O(capacity).

        Measures the depth of the tree anew, see `PrefixCache.depth_mark`.
        """
        launched = [step.sequences for step in self._in_flight]
        return find_faults(self._cache, self._running, self._queue, launched)
