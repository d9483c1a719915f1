"""What the scheduler says of its load."""

from __future__ import annotations

from support_fake_executor import capacity_for_tests
from support_scheduling import Engine, request

from sapwood_engine.core.admission import SchedulerConfig


def prompt(first: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt of another ``first`` shares."""
    return [first * 1000 + i for i in range(num_tokens)]


def test_the_load_adds_up_to_the_capacity_at_every_moment() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=16, page_size=4, max_seats=2))
    for index in range(4):
        engine.submit(request(str(index), prompt(index, 10), max_tokens=6))
    load = engine.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (0, 4, 40)
    while engine.scheduler.has_work():
        engine.step()
        load = engine.scheduler.load()
        states = (
            load.kv_active_tokens,
            load.kv_protected_tokens,
            load.kv_evictable_tokens,
            load.kv_free_tokens,
        )
        assert sum(states) == load.kv_capacity_tokens == 64
    assert (load.num_running, load.num_waiting, load.radix_locked_nodes) == (0, 0, 0)


def test_the_most_that_run_at_once_are_told_as_they_are_in_truth() -> None:
    for max_running, max_seats, told in ((8, 2, 2), (2, 8, 2)):
        engine = Engine(
            config=SchedulerConfig(max_running=max_running),
            capacity=capacity_for_tests(num_pages=16, page_size=4, max_seats=max_seats),
        )
        assert engine.scheduler.load().max_running == told


def test_the_waiting_tokens_are_those_that_the_cache_does_not_hold() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", max_running=1, chunk_tokens=8))
    engine.submit(request("cached", prompt(1, 20), max_tokens=1))
    engine.run()
    engine.submit(request("runs", prompt(2, 40), max_tokens=1))
    engine.step()
    engine.submit(request("waits", [*prompt(1, 20), *prompt(3, 5)], max_tokens=1))
    assert engine.scheduler.load().num_waiting_tokens == 5
    engine.cache.flush()
    engine.submit(request("waits too", prompt(4, 6), max_tokens=1))
    assert engine.scheduler.load().num_waiting_tokens == 5 + 6
    engine.run()
    assert engine.scheduler.load().num_waiting_tokens == 0
    engine.submit(request("again", prompt(4, 6), max_tokens=1))
    assert engine.scheduler.load().num_waiting_tokens == 1
    engine.run()
    assert engine.scheduler.load().num_waiting_tokens == 0


def test_a_look_at_a_waiting_request_tells_what_it_must_compute_by_now() -> None:
    engine = Engine(config=SchedulerConfig(policy="fcfs", chunk_tokens=8))
    engine.submit(request("leads", prompt(1, 40), max_tokens=1))
    engine.submit(request("held back", prompt(1, 41), max_tokens=1))
    waiting = []
    for _ in range(3):
        engine.step()
        waiting.append(engine.scheduler.load().num_waiting_tokens)
    assert waiting == [41, 33, 25]
