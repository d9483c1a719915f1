"""How long reused and evicted pages had been idle: told in seconds, from ticks and the times of plans."""

from __future__ import annotations

from support_fake_executor import capacity_for_tests
from support_prefix_cache import allocate, match, serve
from support_scheduling import Engine, request

from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.step import Admitted, Evicted, PlanEvent
from sapwood_engine.core.tick_times import TickTimes


def test_a_tick_is_of_the_time_noted_before_it() -> None:
    times = TickTimes()
    times.note(0, 10.0)
    times.note(3, 20.0)
    times.note(3, 25.0)  # nothing happened in between
    times.note(4, 30.0)
    assert [times.time_of(tick) for tick in (0, 1, 3, 4, 5, 99)] == [10.0, 10.0, 10.0, 25.0, 30.0, 30.0]


def test_notes_are_bounded_and_old_times_known_less_exactly() -> None:
    times = TickTimes(most_notes=64)
    for number in range(10_000):
        times.note(number, float(number))
    assert len(times) <= 64
    for age in (1, 30, 300, 3_000, 9_999):
        found = times.time_of(10_000 - age)
        assert found <= 10_000 - age
        assert 10_000 - found <= max(32, 80 * age)
    assert times.time_of(9_990) == 9_989


def test_without_a_time_nothing_is_sampled() -> None:
    cache = PrefixCache(num_pages=2, page_size=4)
    serve(cache, range(8))
    assert match(cache, range(8)).reuse_gap_seconds == ()
    allocate(cache, 1)
    assert cache.take_evicted() == [Evicted(4, "capacity")]


def test_a_match_tells_how_long_its_end_had_not_been_used_and_an_eviction_how_long_its_first_page() -> None:
    cache = PrefixCache(num_pages=4, page_size=4)
    cache.note_time(100.0)
    serve(cache, range(8))
    cache.note_time(130.0)
    assert match(cache, range(8)).reuse_gap_seconds == (30.0,)
    assert match(cache, range(50, 58)).reuse_gap_seconds == ()
    cache.note_time(170.0)
    allocate(cache, 3)
    assert cache.take_evicted() == [Evicted(4, "capacity", (40.0,))]


def events_of(engine: Engine) -> list[PlanEvent]:
    plan = engine.step()
    assert plan is not None
    return plan.events


def test_the_events_of_a_plan_carry_the_samples() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=8))
    engine.submit(request("first", range(20), max_tokens=1))
    (first,) = events_of(engine)
    assert isinstance(first, Admitted)
    assert first.reuse_gap_seconds == ()
    engine.now = 60.0
    engine.submit(request("again", range(20), max_tokens=1))
    (again,) = events_of(engine)
    assert isinstance(again, Admitted)
    assert again.reuse_gap_seconds == (60.0,)
    engine.now = 99.0
    engine.submit(request("other", range(50, 80), max_tokens=1))
    evicted = [event for event in events_of(engine) if isinstance(event, Evicted)]
    assert [event.idle_seconds for event in evicted] == [(39.0,)]


def test_a_resumption_is_no_reuse() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=8))
    for name in ("one", "two"):
        engine.submit(request(name, [len(engine.answers)] * 12, max_tokens=16))
    engine.run()
    resumed = [event for event in engine.admitted if event.resumed]
    assert resumed
    assert all(event.reuse_gap_seconds == () for event in engine.admitted)
