"""The workers: turns in parallel, a key by itself, no failure forgotten, nothing cut short without need."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from support_virtual_time import run_in_virtual_time

from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.handlers.store import ServiceKey
from sapwood_operator.handlers.work_queue import Pace, WorkQueue
from sapwood_operator.handlers.workers import Converged, NothingThere, TryAgain, Turn, Workers

PACE = Pace(rest_seconds=1.0, first_retry_seconds=2.0, last_retry_seconds=16.0)
A, B, C = (ServiceKey("team", name) for name in "abc")


@dataclass
class Turns:
    """A reconcile that takes ten seconds and answers what it is told to."""

    answers: dict[ServiceKey, list[Turn | Exception]] = field(default_factory=dict)
    began: list[tuple[float, ServiceKey]] = field(default_factory=list)
    ended: list[tuple[float, ServiceKey]] = field(default_factory=list)
    cancelled: list[ServiceKey] = field(default_factory=list)

    async def __call__(self, key: ServiceKey) -> Turn:
        clock = asyncio.get_running_loop().time
        self.began.append((clock(), key))
        try:
            await asyncio.sleep(10.0)
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        self.ended.append((clock(), key))
        answers = self.answers.get(key, [])
        answer = answers.pop(0) if answers else Converged()
        if isinstance(answer, Exception):
            raise answer
        return answer


def play(
    turns: Turns, script: Callable[[Workers[ServiceKey]], Coroutine[Any, Any, None]], *, num_workers: int = 2
) -> OperatorMetrics:
    """Run workers beside ``script``, and end them after it."""
    metrics = OperatorMetrics()

    async def main() -> None:
        queue: WorkQueue[ServiceKey] = WorkQueue(PACE, lambda: 1.0)
        workers = Workers(queue, turns, kind="InferenceService", num_workers=num_workers, metrics=metrics)
        running = asyncio.create_task(workers.run())
        await script(workers)
        running.cancel()
        await workers.finish(within_seconds=5.0)

    run_in_virtual_time(main())
    return metrics


def test_as_many_keys_have_their_turn_at_once_as_there_are_workers() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        for key in (A, B, C):
            workers.wake(key)
        await asyncio.sleep(60.0)

    turns = Turns()
    play(turns, script)
    assert turns.began == [(0.0, A), (0.0, B), (10.0, C)]


def test_a_key_that_is_woken_during_its_turn_has_the_next_one_after_it() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(3.0)
        workers.wake(A)
        await asyncio.sleep(60.0)

    turns = Turns()
    play(turns, script)
    assert turns.began == [(0.0, A), (11.0, A)]


def test_a_turn_that_must_be_tried_again_is_and_is_counted() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(100.0)

    turns = Turns({A: [TryAgain("Conflict", "changed"), TryAgain("Busy", "later", 40.0)]})
    metrics = play(turns, script)
    assert [time for time, _ in turns.began] == [0.0, 12.0, 62.0]
    assert b'sapwood_operator_reconcile_errors_total{kind="InferenceService"} 2.0' in metrics.render().body


def test_a_mistake_in_one_turn_is_tried_again_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        workers.wake(B)
        await asyncio.sleep(30.0)

    turns = Turns({A: [KeyError("a mistake")]})
    play(turns, script, num_workers=1)
    assert [key for _, key in turns.ended] == [A, B, A]
    assert "reconcile failed" in caplog.text


def test_a_timer_brings_the_next_turn() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(100.0)

    turns = Turns({A: [Converged(again_after_seconds=50.0)]})
    play(turns, script)
    assert [time for time, _ in turns.began] == [0.0, 60.0]


def test_a_service_that_is_gone_has_no_more_turns() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(1000.0)

    turns = Turns({A: [NothingThere()]})
    play(turns, script)
    assert len(turns.began) == 1


def test_at_the_end_a_turn_may_finish_and_none_begins() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(6.0)
        workers.wake(B)

    turns = Turns()
    play(turns, script, num_workers=1)
    assert turns.ended == [(10.0, A)]
    assert [key for _, key in turns.began] == [A]


def test_at_the_end_a_turn_that_takes_too_long_is_given_up() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(1.0)

    turns = Turns()
    play(turns, script)
    assert turns.cancelled == [A]


def test_the_time_of_each_turn_is_measured() -> None:
    async def script(workers: Workers[ServiceKey]) -> None:
        workers.wake(A)
        await asyncio.sleep(math.pi * 10)

    text = play(Turns(), script).render().body.decode()
    assert 'sapwood_operator_reconcile_seconds_sum{kind="InferenceService"} 10.0' in text
