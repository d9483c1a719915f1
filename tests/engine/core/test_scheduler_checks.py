"""The integrity check of the scheduler names every fault that is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support_scheduling import NAMESPACE, request

from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.ordering import WaitingQueue
from sapwood_engine.core.page_table import PageTable, open_table
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall
from sapwood_engine.core.running import RunningSet
from sapwood_engine.core.scheduler_checks import find_faults
from sapwood_engine.core.sequence import Sequence


@dataclass(slots=True)
class Scene:
    """Two requests run, with one row each in flight; a third waits."""

    cache: PrefixCache
    queue: WaitingQueue
    running: RunningSet
    first: Sequence
    second: Sequence
    waiting: Sequence

    def faults(self) -> list[str]:
        return find_faults(self.cache, self.running, self.queue, [[self.first, self.second]])


def table_of(sequence: Sequence) -> PageTable:
    assert sequence.table is not None
    return sequence.table


def scene() -> Scene:
    cache = PrefixCache(num_pages=16, page_size=4)
    queue = WaitingQueue(SchedulerConfig(), first_page_tokens=4)
    running = RunningSet(4, cache, queue)
    sequences = []
    for arrival, name in enumerate(["first", "second", "waiting"]):
        prompt = [arrival] * 6
        sequence = Sequence(request(name, prompt), arrival=arrival, arrived_at=0.0, max_output=4)
        queue.push(sequence, cached_tokens=0)
        sequences.append(sequence)
        if name != "waiting":
            opening = open_table(cache, NAMESPACE, sequence.key(), num_tokens=6, limit_tokens=5, headroom_pages=0)
            assert not isinstance(opening, Shortfall)
            queue.started(sequence)
            running.enter(sequence, opening, sequence.key())
            sequence.num_in_flight = 1
    return Scene(cache, queue, running, *sequences)


def take_the_other_seat(s: Scene) -> None:
    s.second.seat = s.first.seat


def lose_a_page(s: Scene) -> None:
    table_of(s.first).pages.pop()


def use_the_other_page(s: Scene) -> None:
    table_of(s.first).pages[0] = table_of(s.second).pages[0]


def miscount_rows(s: Scene) -> None:
    s.first.num_in_flight = 2


def compute_what_was_not_scheduled(s: Scene) -> None:
    s.first.num_computed = 3


def schedule_beyond_the_pages(s: Scene) -> None:
    s.first.num_scheduled = 100


def sample_too_much(s: Scene) -> None:
    s.first.num_sampled = 5


def wait_with_pages(s: Scene) -> None:
    s.waiting.table = table_of(s.first)


def stay_without_reason(s: Scene) -> None:
    s.running.leaving[s.waiting] = None


def run_without_pages(s: Scene) -> None:
    s.first.table = None


def leave_without_giving_the_seat_back(s: Scene) -> None:
    del s.running.prefilling[s.first]


def test_a_healthy_scene_has_no_faults() -> None:
    assert scene().faults() == []


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (take_the_other_seat, "is taken 2 times"),
        (lose_a_page, "is lost"),
        (use_the_other_page, "is owned 2 times"),
        (miscount_rows, "request 'first': 1 rows in flight, 2 counted"),
        (compute_what_was_not_scheduled, "request 'first': computed 3, scheduled 0, tokens 6"),
        (schedule_beyond_the_pages, "request 'first': 100 tokens scheduled for 2 pages"),
        (sample_too_much, "request 'first': 0 tokens out, 5 sampled, at most 4"),
        (wait_with_pages, "request 'waiting' waits but holds pages"),
        (stay_without_reason, "request 'waiting' is kept without a row in flight"),
        (run_without_pages, "request 'first' runs without pages"),
        (leave_without_giving_the_seat_back, "2 seats free and 1 taken of 4"),
    ],
)
def test_a_planted_fault_is_named(plant: Callable[[Scene], None], sentence: str) -> None:
    planted = scene()
    plant(planted)
    assert any(sentence in fault for fault in planted.faults()), planted.faults()
