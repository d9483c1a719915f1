"""What the next step computes, and what a finished step means: `Scheduler.plan` and `Scheduler.commit`.

Keeps one invariant: of every sequence ``num_computed`` chases ``num_tokens`` (see `core.sequence`). A plan
goes

1. *grow*: every decoding sequence gets the page that its next token needs; where KV is short the newest
   goes back;
2. *admit*: waiting requests in the policy's order, as far as seats, step tokens and pages go;
3. *rows*: decodes first, then a chunk of every prefilling sequence while step tokens last.

A step may be planned while the one before is in flight (at most two are). Then its decode rows hold
`PENDING_TOKEN`, what it computes behind a stop is discarded at its commit, and a page that a launched step
may read or write is given back at that step's commit, never earlier: a sequence that ends or is sent back
meanwhile keeps its pages so long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.core.admission import (
    Accepted,
    Refused,
    SchedulerConfig,
    max_output,
    shared_whole_page_tokens,
)
from sapwood_engine.core.ordering import WaitingQueue
from sapwood_engine.core.page_table import Opening, PageTable, open_table
from sapwood_engine.core.ports import Capacity
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.request import FinishReason, Request, RequestId, TokenLogprobs, TokenOutput
from sapwood_engine.core.rows import add_chunk, add_decodes
from sapwood_engine.core.running import RunningSet
from sapwood_engine.core.scheduler_checks import find_faults
from sapwood_engine.core.sequence import PreemptionReason, Sequence
from sapwood_engine.core.step import (
    Admitted,
    PageUpdate,
    PlanEvent,
    Preempted,
    SeatOpened,
    StepPlan,
    StepResult,
)

MAX_IN_FLIGHT = 2
LOOK_UPS_PER_PLAN = 16
"""Waiting requests whose cached prefix is looked up anew in a plan that may admit; some 10 µs each."""


@dataclass(slots=True)
class LaunchedStep:
    """What `Scheduler.commit` must know of a step: whose its rows are, in order; the first ones are
    decodes."""

    step_id: int
    sequences: list[Sequence]
    lengths: list[int]
    samples: list[bool]
    num_decodes: int
    spares: list[PageTable] = field(default_factory=list)
    """Tables whose spare pages this step may still read."""


class Scheduler:
    """The pure scheduler of one engine; every method is called from one thread.

    ``cache`` has no other user, but for those who look at it or flush it. Times are seconds of any
    monotonic clock.
    """

    def __init__(self, config: SchedulerConfig, capacity: Capacity, cache: PrefixCache) -> None:
        self._config = config
        self._capacity = capacity
        self._cache = cache
        self._max_step_tokens = min(config.max_step_tokens, capacity.max_step_tokens)
        # Never more seats than step tokens: all decodes always fit, and a prefill always finds a token
        # beside them.
        self._running = RunningSet(min(config.max_running, capacity.max_seats, self._max_step_tokens))
        self._queue = WaitingQueue(config, page_size=cache.page_size)
        self._sequences: dict[RequestId, Sequence] = {}
        self._in_flight: deque[LaunchedStep] = deque()
        self._events: list[PlanEvent] = []
        self._table_changes: dict[Sequence, int] = {}
        """Running sequence -> first page index from which its seat's page table is out of date."""
        self._num_arrivals = 0
        self._num_resuming = 0
        """Waiting sequences that were sent back."""
        self._num_steps = 0
        self._exhausted_at = -1
        """Pages available when an admission pass admitted nobody; until more are there or something else
        changes (-1) another would not either."""

    # --- the door

    def submit(self, request: Request, now: float) -> Accepted | Refused:
        """Take ``request`` into the queue, or say why not."""
        if request.request_id in self._sequences:
            return Refused("duplicate_id", f"A request with the id {request.request_id!r} is here already.")
        output_limit = max_output(request, self._capacity)
        if isinstance(output_limit, Refused):
            return output_limit
        displaced = None
        num_queued = len(self._queue) - self._num_resuming
        if num_queued >= self._config.max_queued:
            displaced = self._queue.worst() if self._queue.policy.uses_priority else None
            if displaced is None or displaced.request.priority >= request.priority:
                limit = self._config.max_queued
                return Refused("queue_full", f"{num_queued} requests wait already and the limit is {limit}.")
            self._queue.remove(displaced)
            del self._sequences[displaced.request.request_id]
        sequence = Sequence(request, arrival=self._num_arrivals, arrived_at=now, max_output=output_limit)
        self._num_arrivals += 1
        self._sequences[request.request_id] = sequence
        self._queue.push(sequence, cached_tokens=self._look_up(sequence))
        self._exhausted_at = -1
        return Accepted(displaced.request.request_id if displaced else None)

    def abort(self, request_id: RequestId) -> TokenOutput | None:
        """End a request at any stage; returns its last output, None if no such request is here (any more)."""
        sequence = self._sequences.get(request_id)
        return self._end(sequence, "abort") if sequence else None

    def has_work(self) -> bool:
        """Whether a request waits or runs, or a launched step must be committed."""
        return bool(self._sequences or self._in_flight)

    # --- planning

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step, which counts as launched; None when nothing can be computed now.

        After None, if a step is in flight, commit it first; if none is, nobody waits or runs.
        """
        assert len(self._in_flight) < MAX_IN_FLIGHT, f"{len(self._in_flight)} steps are in flight already"
        plan = StepPlan(self._num_steps, "decode", [], [], [], [], [])
        sequences = self._grow_decodes()
        if self._queue:
            self._admit(plan, len(sequences), now)
            if self._queue.policy.preempts:
                sequences = [s for s in sequences if s.table is not None and s.preempting is None]
        add_decodes(plan, sequences)
        num_decodes = len(sequences)
        if self._running.prefilling:
            self._add_chunks(plan, sequences)
        self._events += self._cache.take_evicted()
        if not sequences:
            return None
        if len(sequences) > num_decodes:
            plan.kind = "mixed" if num_decodes else "prefill"
        if self._table_changes:
            self._add_page_updates(plan, sequences)
        plan.events, self._events = self._events, []
        self._in_flight.append(LaunchedStep(plan.step_id, sequences, plan.lengths, plan.samples, num_decodes))
        self._num_steps += 1
        return plan

    def _add_chunks(self, plan: StepPlan, sequences: list[Sequence]) -> None:
        budget = self._max_step_tokens - len(sequences)
        for sequence in list(self._running.prefilling):
            num_tokens = min(self._chunk(sequence), budget)
            if num_tokens == 0:
                continue
            budget -= num_tokens
            add_chunk(plan, sequence, num_tokens)
            sequences.append(sequence)
            if sequence.num_sampled > sequence.num_output:
                self._running.start_decoding(sequence)

    def _chunk(self, sequence: Sequence) -> int:
        """Return how many tokens of a prefilling sequence the next step computes if step tokens do not run
        out."""
        if sequence.preempting is not None:
            return 0
        return min(self._config.chunk_tokens, len(sequence.tokens) - sequence.num_scheduled)

    def _add_page_updates(self, plan: StepPlan, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            first = self._table_changes.pop(sequence, None)
            if first is not None:
                assert sequence.table is not None
                plan.page_updates.append(
                    PageUpdate(sequence.seat, first, tuple(sequence.table.pages[first:]))
                )

    def _table_changed(self, sequence: Sequence, first: int) -> None:
        self._table_changes[sequence] = min(first, self._table_changes.get(sequence, first))

    # --- growing

    def _grow_decodes(self) -> list[Sequence]:
        """Return the decoding sequences whose next token has a slot, pages given to those that needed one."""
        ready: list[Sequence] = []
        growing: list[Sequence] = []
        for sequence in self._running.decoding:
            if sequence.num_sampled < sequence.max_output and sequence.preempting is None:
                assert sequence.table is not None
                (ready if sequence.num_scheduled < sequence.table.num_slots else growing).append(sequence)
        if not growing:
            return ready
        pages = self._cache.allocate(len(growing))
        if not isinstance(pages, Shortfall):
            for sequence, page in zip(growing, pages, strict=True):
                self._grow(sequence, page)
            return ready + growing
        for sequence in self._running.by_seniority(growing, uses_priority=self._queue.policy.uses_priority):
            self._grow_one(sequence)
        return [
            s
            for s in ready + growing
            if s.table is not None and s.preempting is None and s.num_scheduled < s.table.num_slots
        ]

    def _grow_one(self, sequence: Sequence) -> None:
        """Give ``sequence`` a page, sending others back as needed, or itself if it is the first to go.

        Where pages come with the commit of a launched step, ``sequence`` sits out this step instead.
        """
        while sequence.table is not None and sequence.preempting is None:
            pages = self._cache.allocate(1)
            if not isinstance(pages, Shortfall):
                self._grow(sequence, pages[0])
            if not isinstance(pages, Shortfall) or self._running.num_coming_pages():
                return
            victim = self._running.victim(uses_priority=self._queue.policy.uses_priority)
            assert victim is not None, "a running sequence is its own victim at the latest"
            self._preempt(victim, "kv_full")

    def _grow(self, sequence: Sequence, page: int) -> None:
        assert sequence.table is not None
        self._table_changed(sequence, sequence.table.grow(page))

    # --- admitting

    def _admit(self, plan: StepPlan, num_decodes: int, now: float) -> None:
        """Admit waiting requests in the policy's order while seats, step tokens and pages last.

        A request that does not fit now is passed over, unless it is overdue.
        """
        running, queue, preempts = self._running, self._queue, self._queue.policy.preempts
        budget = self._max_step_tokens - num_decodes - sum(self._chunk(s) for s in running.prefilling)
        available = self._cache.num_available()
        if budget <= 0 or available <= self._exhausted_at or not (running.num_free_seats or preempts):
            return
        queue.refresh(self._look_up, count=LOOK_UPS_PER_PLAN)
        queue.begin_pass()
        num_skips = num_admitted = 0
        for _ in range(self._config.max_looks):
            if budget <= 0 or (taken := queue.take()) is None:
                break
            sequence, overdue = taken
            if not overdue and self._is_held_back(sequence):
                continue
            opening = self._open(sequence)
            if opening is not None:
                self._start(plan, sequence, opening, now)
                sequence.overdue = overdue
                budget -= self._chunk(sequence)
                num_admitted += 1
                continue
            num_skips += 1
            if overdue or num_skips > self._config.max_skips or not running.num_free_seats:
                break
        queue.end_pass()
        if not num_admitted:
            self._exhausted_at = available

    def _look_up(self, sequence: Sequence) -> int:
        return self._cache.peek(
            sequence.request.namespace, sequence.key(), limit_tokens=sequence.reusable_tokens
        )

    def _is_held_back(self, sequence: Sequence) -> bool:
        """Whether a running sequence is computing a prefix of ``sequence`` that the cache does not hold
        yet."""
        if not self._running.computing or not self._cache.enabled:
            return False
        namespace, key, cached = sequence.request.namespace, sequence.key(), self._look_up(sequence)
        for leader in self._running.computing:
            if leader.request.namespace == namespace:
                shared = shared_whole_page_tokens(
                    key,
                    leader.key(),
                    page_size=self._cache.page_size,
                    limit_tokens=sequence.reusable_tokens,
                )
                if shared - cached >= self._config.min_shared_tokens:
                    return True
        return False

    def _open(self, sequence: Sequence) -> Opening | None:
        """Find pages for ``sequence``, under a preempting policy by sending back those of lower priority."""
        victims: list[Sequence] = []
        if self._queue.policy.preempts:
            victims = self._running.priority_victims(
                sequence.request.priority, max_preemptions=self._config.max_priority_preemptions
            )
            needed = -(-len(sequence.tokens) // self._cache.page_size)
            held = sum(len(s.table.pages) for s in victims if s.table)
            if self._cache.num_available() + held < needed:
                victims = []
        while True:
            if self._running.num_free_seats:
                opening = open_table(
                    self._cache,
                    sequence.request.namespace,
                    sequence.key(),
                    limit_tokens=sequence.reusable_tokens,
                    headroom_pages=self._headroom_pages(),
                )
                if not isinstance(opening, Shortfall):
                    return opening
            if not victims:
                return None
            self._preempt(victims.pop(0), "priority")

    def _headroom_pages(self) -> int:
        """Return the pages that an admission must leave: room for every running sequence to grow a little."""
        growth = self._config.headroom_tokens if self._num_resuming else 1
        return self._running.headroom_pages(page_size=self._cache.page_size, growth_tokens=growth)

    def _start(self, plan: StepPlan, sequence: Sequence, opening: Opening, now: float) -> None:
        request = sequence.request
        resumed = sequence.num_cached is not None
        if resumed:
            self._num_resuming -= 1
        else:
            sequence.num_cached = opening.num_cached
        self._queue.started(sequence)
        self._running.enter(sequence)
        sequence.table = opening.table
        sequence.num_computed = sequence.num_scheduled = opening.num_cached
        self._table_changed(sequence, 0)
        if opening.copy is not None:
            plan.copies.append(opening.copy)
        plan.opened.append(
            SeatOpened(
                sequence.seat,
                request.sampling,
                tuple(sorted(sequence.stop_ids)),
                request.prompt_ids,
                tuple(sequence.tokens[sequence.num_prompt :]),
            )
        )
        self._events.append(
            Admitted(
                request.request_id,
                num_prompt_tokens=sequence.num_prompt,
                num_cached_tokens=0 if resumed else opening.num_cached,
                num_recomputed_tokens=max(0, sequence.num_lost - opening.num_cached),
                queue_seconds=now - sequence.arrived_at,
                resumed=resumed,
            )
        )

    # --- sending back

    def _preempt(self, sequence: Sequence, reason: PreemptionReason) -> None:
        """Send ``sequence`` back to wait: now, or at the commit of the launched step that has a row of it."""
        sequence.preempting = reason
        if not sequence.num_in_flight:
            self._send_back(sequence)

    def _send_back(self, sequence: Sequence) -> None:
        """Its computed KV stays in the tree, so that resuming is a prefix hit while memory lasts."""
        assert sequence.table is not None
        assert sequence.preempting is not None
        self._events.append(
            Preempted(sequence.request.request_id, sequence.num_computed, sequence.preempting)
        )
        self._leave(sequence)
        sequence.table.close(sequence.key(sequence.num_computed))
        sequence.wait_again()
        self._num_resuming += 1
        self._queue.push(sequence, cached_tokens=sequence.num_lost)

    def _leave(self, sequence: Sequence) -> None:
        self._running.leave(sequence)
        self._queue.stopped(sequence)
        self._table_changes.pop(sequence, None)
        self._exhausted_at = -1

    # --- settling

    def commit(self, result: StepResult) -> list[TokenOutput]:
        """Settle the oldest launched step; returns what it brought each request."""
        step = self._pop(result.step_id)
        outputs: list[TokenOutput] = []
        for row, sequence in enumerate(step.sequences):
            sequence.num_in_flight -= 1
            if sequence.ended:
                self._close_if_unused(sequence)
                continue
            sequence.num_computed += step.lengths[row]
            if row >= step.num_decodes:
                self._settle_chunk(sequence, result.prompt_logprobs.get(row, ()))
            if step.samples[row]:
                outputs.append(self._settle_token(sequence, result, row))
            elif sequence.max_output == 0 and sequence.num_computed == len(sequence.tokens):
                outputs.append(self._end(sequence, "length"))
            if sequence.preempting is not None and not sequence.num_in_flight and not sequence.ended:
                self._send_back(sequence)
        return outputs

    def fail(self, step_id: int) -> list[TokenOutput]:
        """Settle the oldest launched step, which failed: its requests end with ``error``, everyone else
        goes on.

        Nothing that they computed is kept beyond what was in the tree before.
        """
        step = self._pop(step_id)
        outputs: list[TokenOutput] = []
        for sequence in step.sequences:
            sequence.num_in_flight -= 1
            if sequence.ended:
                self._close_if_unused(sequence)
                continue
            sequence.num_computed = 0
            outputs.append(self._end(sequence, "error"))
        return outputs

    def _pop(self, step_id: int) -> LaunchedStep:
        step = self._in_flight.popleft()
        assert step.step_id == step_id, (
            f"step {step_id} settled, but step {step.step_id} is the oldest in flight"
        )
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
            self._table_changed(sequence, changed)
            if sequence.num_in_flight:
                self._in_flight[-1].spares.append(table)
            else:
                table.release_spare()
        if sequence.num_computed >= len(sequence.tokens):
            del self._running.computing[sequence]
        self._exhausted_at = -1

    def _settle_token(self, sequence: Sequence, result: StepResult, row: int) -> TokenOutput:
        token = result.token_ids[row]
        sequence.tokens.append(token)
        finish: FinishReason | None = None
        if token in sequence.stop_ids and sequence.num_output > sequence.min_tokens:
            finish = "stop"
        elif sequence.num_output >= sequence.max_output:
            finish = "length"
        output = self._end(sequence, finish) if finish else self._output(sequence, None)
        output.token_ids = (token,)
        if row in result.logprobs:
            output.logprobs = (result.logprobs[row],)
        return output

    # --- ending

    def _output(self, sequence: Sequence, finish: FinishReason | None) -> TokenOutput:
        output = TokenOutput(sequence.request.request_id, (), finish)
        if not sequence.reported:
            output.num_cached_tokens = sequence.num_cached or 0
            if sequence.wants_prompt_logprobs and finish != "abort":
                output.prompt_logprobs = tuple(sequence.prompt_logprobs)
            sequence.reported = True
        return output

    def _end(self, sequence: Sequence, finish: FinishReason) -> TokenOutput:
        """End ``sequence`` wherever it is, and give back what it holds as soon as no launched step uses
        it."""
        output = self._output(sequence, finish)
        sequence.ended = True
        del self._sequences[sequence.request.request_id]
        if sequence in self._queue:
            self._queue.remove(sequence)
            self._num_resuming -= sequence.num_cached is not None
        else:
            self._leave(sequence)
            self._running.leaving[sequence] = None
            self._close_if_unused(sequence)
        return output

    def _close_if_unused(self, sequence: Sequence) -> None:
        if sequence.num_in_flight:
            return
        assert sequence.table is not None
        sequence.table.close(sequence.key(sequence.num_computed))
        sequence.table = None
        del self._running.leaving[sequence]
        self._exhausted_at = -1

    # --- looking at it

    def load(self) -> LoadSnapshot:
        """The load now, in O(1) but for the depth of the tree."""
        counts, page_size = self._cache.counts(), self._cache.page_size
        return LoadSnapshot(
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_waiting_tokens=self._queue.num_tokens,
            kv_capacity_tokens=self._cache.num_pages * page_size,
            kv_page_tokens=page_size,
            kv_active_tokens=counts.owned * page_size,
            kv_protected_tokens=counts.protected * page_size,
            kv_evictable_tokens=counts.evictable * page_size,
            kv_free_tokens=counts.free * page_size,
            radix_nodes=self._cache.num_nodes,
            radix_locked_nodes=self._cache.num_locked_nodes,
            radix_depth_max=self._cache.max_depth(),
        )

    def check_invariants(self) -> list[str]:
        """Walk everything and name each fault; an empty list means healthy. O(capacity)."""
        launched = [step.sequences for step in self._in_flight]
        return find_faults(self._cache, self._running, self._queue, launched)
