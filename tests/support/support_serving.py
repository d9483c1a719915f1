"""Requests driven through a scheduler and an executor to their end, without the service around them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_engine.core.admission import Accepted
from sapwood_engine.core.ports import Executor
from sapwood_engine.core.request import Request
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import Admitted, Preempted


@dataclass(slots=True)
class Observed:
    """The tokens of each request, and what was made use of on the way."""

    tokens: dict[str, list[int]]
    num_cached: int = 0
    num_preempted: int = 0
    most_rows: int = 0


def drive(scheduler: Scheduler, executor: Executor, requests: Sequence[Request], *, overlap: bool) -> Observed:
    """Submit all ``requests`` at once and run them; with ``overlap`` a step is planned while the one before runs."""
    observed = Observed({request.request_id: [] for request in requests})
    for request in requests:
        assert isinstance(scheduler.submit(request, 0.0), Accepted)
    num_in_flight = 0
    for now in itertools.count(1):
        if not scheduler.has_work():
            break
        plan = scheduler.plan(float(now))
        if plan is not None:
            executor.launch(plan)
            num_in_flight += 1
            observed.most_rows = max(observed.most_rows, len(plan.seats))
            for event in plan.events:
                observed.num_cached += event.num_cached_tokens if isinstance(event, Admitted) else 0
                observed.num_preempted += isinstance(event, Preempted)
        if num_in_flight and (not overlap or plan is None or num_in_flight == 2):
            num_in_flight -= 1
            for output in scheduler.commit(executor.collect()):
                observed.tokens[output.request_id] += output.token_ids
        assert scheduler.check_invariants() == []
    return observed
