"""The miss-ratio curve: what it counts, when it says nothing, and that it is what caches of other sizes really hit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_fake_executor import capacity_for_tests
from support_reuse_logs import ServedLog, conversation_turns, mean_and_most, serve_conversations, served_ratio
from support_scheduling import NAMESPACE, Engine, request

from sapwood_contract.curve import Curve, CurvePoint, describe_curve, hit_ratio_at, no_curve
from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.keys import token_key
from sapwood_engine.core.miss_ratio import LEAST_SAMPLES, MissRatio
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.step import PlanEvent, Preempted

PAGE_SIZE = 16


def measured(
    *,
    num_pages: int = 40,
    sample_rate: float = 1.0,
    halve_after_requests: int = 10_000,
    partial_pages: bool = True,
) -> MissRatio:
    return MissRatio(
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        token_bytes=4,
        sample_rate=sample_rate,
        halve_after_requests=halve_after_requests,
        partial_pages=partial_pages,
    )


def serve(curve: MissRatio, prompt: Sequence[int], *, num_cached: int = 0, most_cached: int | None = None) -> None:
    most = len(prompt) - 1 if most_cached is None else most_cached
    key = token_key(prompt)
    trail = curve.admitted(NAMESPACE, key, num_tokens=len(prompt), num_cached=num_cached, most_cached=most)
    curve.ended(trail, key)


def prompt_of(number: int, num_tokens: int = 10 * PAGE_SIZE) -> list[int]:
    return [number * 1_000 + at for at in range(num_tokens)]


def curve_of(*points: tuple[float | None, float]) -> Curve:
    return Curve(True, 0.05, 1_000, 100, tuple(CurvePoint(*point) for point in points), math.nan, 0)


# --- reading a curve


def test_between_two_points_a_curve_is_a_straight_line() -> None:
    curve = curve_of((50.0, 0.2), (100.0, 0.4), (None, 0.9))
    assert [hit_ratio_at(curve, tokens) for tokens in (0, 25, 50, 75, 100)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_beyond_the_last_finite_point_a_curve_says_what_is_sure() -> None:
    curve = curve_of((50.0, 0.2), (100.0, 0.4), (None, 0.9))
    assert hit_ratio_at(curve, 1e9) == 0.4
    assert hit_ratio_at(curve, math.inf) == 0.9


def test_what_is_not_known_is_nan_and_never_zero() -> None:
    for curve in (no_curve(100), measured().curve()):
        assert math.isnan(hit_ratio_at(curve, 100.0))
        assert math.isnan(hit_ratio_at(curve, math.inf))
        assert math.isnan(curve.working_set_tokens)
        assert describe_curve(curve)["working_set_tokens"] is None


def test_a_curve_says_nothing_before_it_has_enough_samples() -> None:
    curve = measured()
    while curve.curve().num_samples < LEAST_SAMPLES:
        assert curve.curve().points == ()
        serve(curve, prompt_of(1))
    assert len(curve.curve().points) == 66


def test_a_described_curve_has_the_fields_that_admin_cache_promises() -> None:
    curve = measured()
    for _ in range(20):
        serve(curve, prompt_of(1))
    described = describe_curve(curve.curve())
    assert set(described) == {
        "enabled",
        "sample_rate",
        "num_samples",
        "capacity_tokens",
        "points",
        "working_set_tokens",
        "regret_tokens",
    }
    assert set(described["points"][0]) == {"capacity_tokens", "hit_ratio"}
    assert described["points"][-1]["capacity_tokens"] is None


# --- counting


def test_prompts_that_come_again_in_turn_are_hit_by_a_cache_that_holds_them_all_and_by_no_smaller_one() -> None:
    curve = measured(num_pages=40)  # three prompts of ten pages
    for number in [*range(3)] * 100:
        serve(curve, prompt_of(number))
    of_all = (159 / 160) * 297 / 300
    assert hit_ratio_at(curve.curve(), 20 * PAGE_SIZE) == 0
    assert hit_ratio_at(curve.curve(), 40 * PAGE_SIZE) == pytest.approx(of_all)
    assert hit_ratio_at(curve.curve(), math.inf) == pytest.approx(of_all)
    assert 20 * PAGE_SIZE < curve.curve().working_set_tokens < 31 * PAGE_SIZE


def test_no_hit_is_counted_where_none_is_allowed() -> None:
    curve = measured()
    for _ in range(50):
        serve(curve, prompt_of(1), most_cached=0)
    assert hit_ratio_at(curve.curve(), math.inf) == 0


def test_a_choice_beside_the_first_of_its_call_is_used_and_not_counted() -> None:
    once, twice = measured(), measured()
    for curve, num_siblings in ((once, 0), (twice, 2)):
        for number in [*range(6)] * 10:
            serve(curve, prompt_of(number))
            key = token_key(prompt_of(number))
            for _ in range(num_siblings):
                trail = curve.admitted(
                    NAMESPACE, key, num_tokens=160, num_cached=159, most_cached=159, is_counted=False
                )
                curve.ended(trail, key)
    assert once.curve() == twice.curve()


def test_the_last_page_of_a_prompt_that_the_live_cache_has_in_part_counts_in_part() -> None:
    curve = measured()
    for number in range(100):
        serve(curve, [*range(20), *([number] * 12)], num_cached=20 if number else 0)
    assert hit_ratio_at(curve.curve(), 40 * PAGE_SIZE) == pytest.approx(99 * 20 / (100 * 32))


def test_part_of_a_page_that_the_live_cache_has_is_near_even_where_the_whole_page_is_far() -> None:
    curve = measured(num_pages=20)
    shared, own = [*range(20)], [*range(500, 544)]  # 4 pages, the second one shared in part
    serve(curve, shared + own)
    for number in range(1, 14):
        serve(curve, prompt_of(number))
    serve(curve, [*shared, *range(900, 912)], num_cached=0)
    hit_before = hit_ratio_at(curve.curve(), curve.capacity_tokens) * (64 + 13 * 160 + 32)
    serve(curve, shared + own, num_cached=20)
    num_tokens = 64 + 13 * 160 + 32 + 64
    assert hit_ratio_at(curve.curve(), curve.capacity_tokens) * num_tokens == pytest.approx(hit_before + 20)
    assert hit_ratio_at(curve.curve(), math.inf) * num_tokens == pytest.approx(16 + 63)


def test_a_tail_that_comes_again_is_known_at_sizes_where_the_live_cache_has_nothing_of_it() -> None:
    curve = measured(num_pages=20)
    for number in [*range(5)] * 20:  # 50 pages and 5 tails by turns: none is ever found
        serve(curve, [*prompt_of(number), *range(6)])
    assert hit_ratio_at(curve.curve(), curve.capacity_tokens) == 0
    assert hit_ratio_at(curve.curve(), math.inf) == pytest.approx(95 * 165 / (100 * 166))


@pytest.mark.parametrize(("num_tokens", "num_hit"), [(160, 144), (161, 160), (166, 160)])
def test_where_parts_of_pages_are_not_reused_a_prompt_is_hit_as_far_as_its_last_whole_page(
    num_tokens: int, num_hit: int
) -> None:
    curve = measured(partial_pages=False)
    for number in range(100):
        serve(curve, prompt_of(1, num_tokens), num_cached=num_hit if number else 0)
    assert hit_ratio_at(curve.curve(), math.inf) == pytest.approx(99 * num_hit / (100 * num_tokens))


def test_what_a_preempted_request_computed_is_regretted_like_any_other_once_it_is_evicted() -> None:
    cache = PrefixCache(num_pages=8, page_size=PAGE_SIZE, mrc_sample_rate=1.0)
    engine = Engine(capacity=capacity_for_tests(num_pages=8, page_size=PAGE_SIZE), cache=cache)
    engine.submit(request("stays", prompt_of(1, 48), max_tokens=75))
    engine.submit(request("goes", prompt_of(2, 48), max_tokens=75))
    events: list[PlanEvent] = []
    while not any(isinstance(event, Preempted) for event in events):
        plan = engine.step()
        assert plan is not None
        events += plan.events
    engine.abort("goes")
    engine.run()
    assert cache.curve().regret_tokens == 0
    engine.submit(request("again", prompt_of(2, 48), max_tokens=1))
    engine.run()
    assert cache.curve().regret_tokens == 47


def test_an_old_load_fades() -> None:
    curve = measured(halve_after_requests=64)
    for _ in range(200):
        serve(curve, prompt_of(1))
    assert hit_ratio_at(curve.curve(), math.inf) > 0.95
    for number in range(2, 500):
        serve(curve, prompt_of(number))
    assert hit_ratio_at(curve.curve(), math.inf) < 0.02


def test_a_flush_forgets_what_was_used() -> None:
    curve = measured()
    for number in range(100):
        serve(curve, prompt_of(number % 2))
        curve.forget(None)
    assert hit_ratio_at(curve.curve(), math.inf) == 0


def test_regret_is_what_a_cache_of_twice_the_size_would_have_held_and_ours_did_not() -> None:
    curve = measured(num_pages=20)
    for number in [*range(3)] * 10:  # 30 pages by turns: none is ever found
        serve(curve, prompt_of(number))
    assert curve.curve().regret_tokens == 27 * 159
    for _ in range(10):  # found
        serve(curve, prompt_of(2), num_cached=159)
    assert curve.curve().regret_tokens == 27 * 159
    for number in [*range(3, 8)] * 3:  # 50 pages by turns: too many for twice the size as well
        serve(curve, prompt_of(number))
    assert curve.curve().regret_tokens == 27 * 159


@pytest.mark.parametrize(("num_between", "regret_tokens"), [(1, 0), (2, 80), (3, 80), (5, 0)])
def test_a_beginning_that_only_sampled_marks_tell_of_is_regretted_within_twice_the_size(
    num_between: int, regret_tokens: int
) -> None:
    curve = measured(num_pages=20)
    serve(curve, prompt_of(1))
    for number in range(2, 2 + num_between):
        serve(curve, prompt_of(number))
    serve(curve, prompt_of(1)[:80] + prompt_of(99)[:80], num_cached=80 if num_between == 1 else 0)
    assert curve.curve().regret_tokens == regret_tokens


def test_where_the_live_cache_once_found_prompts_to_part_is_known_when_all_of_them_are_gone() -> None:
    curve = measured(sample_rate=1e-6)
    shared = prompt_of(1, 1_600)
    for number in range(60):
        serve(curve, shared + prompt_of(2 + number), num_cached=1_600 if number == 1 else 0)
    # The second prompt was found to part there; all after it are known by that.
    assert hit_ratio_at(curve.curve(), math.inf) == pytest.approx(59 * 1_600 / (60 * 1_760))


def test_what_a_request_did_not_keep_is_not_found() -> None:
    curve = measured()
    key = token_key(prompt_of(1))
    for _ in range(40):
        trail = curve.admitted(NAMESPACE, key, num_tokens=160, num_cached=0, most_cached=159)
        curve.ended(trail, key[: 4 * 2 * PAGE_SIZE])
    assert hit_ratio_at(curve.curve(), math.inf) == pytest.approx(39 * 32 / (40 * 160))


def test_a_curve_falls_silent_where_what_it_was_told_has_faded() -> None:
    curve = measured(halve_after_requests=32)
    for _ in range(32):
        serve(curve, prompt_of(1))
    assert curve.curve().points
    for _ in range(320):
        serve(curve, prompt_of(1, PAGE_SIZE))  # one mark each
    assert curve.curve().points == ()


def test_what_another_running_request_computes_is_no_regret() -> None:
    curve = measured(num_pages=20)
    key = token_key(prompt_of(1))
    for _ in range(5):
        curve.admitted(NAMESPACE, key, num_tokens=160, num_cached=0, most_cached=159)
    assert curve.curve().regret_tokens == 0


def test_of_a_large_cache_no_more_is_sampled_than_memory_is_meant_for() -> None:
    assert measured(num_pages=100, sample_rate=0.05).curve().sample_rate == 0.05
    assert measured(num_pages=10**6, sample_rate=0.05).curve().sample_rate == pytest.approx(2**17 / 16e6)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 400)), min_size=30, max_size=80), st.floats(0.01, 1))
def test_a_curve_rises_and_stays_between_0_and_1(prompts: list[tuple[int, int]], sample_rate: float) -> None:
    curve = measured(num_pages=20, sample_rate=sample_rate)
    for number, num_tokens in prompts:
        serve(curve, prompt_of(number, num_tokens))
    ratios = [point.hit_ratio for point in curve.curve().points]
    assert ratios == sorted(ratios)
    assert all(0 <= ratio <= 1 for ratio in ratios)


# --- a whole scheduler, and its own log

MULTIPLES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
NUM_PAGES = 800


def served(*, sample_rate: float, num_at_once: int, partial_pages: bool) -> tuple[Curve, ServedLog]:
    """Serve some nine hundred turns of conversations; their curve, and their log."""
    cache = PrefixCache(
        num_pages=NUM_PAGES, page_size=PAGE_SIZE, partial_pages=partial_pages, mrc_sample_rate=sample_rate
    )
    capacity = capacity_for_tests(num_pages=NUM_PAGES, page_size=PAGE_SIZE, max_step_tokens=4_000)
    scheduler = Scheduler(SchedulerConfig(policy="fcfs", chunk_tokens=4_000), capacity, cache)
    turns = conversation_turns(num_conversations=250, turn_tokens=40, seed=5)
    log = serve_conversations(scheduler, turns, namespace=NAMESPACE, num_at_once=num_at_once)
    return cache.curve(), log


@pytest.mark.parametrize(("sample_rate", "num_at_once"), [(1.0, 1), (0.05, 1), (0.05, 4)])
def test_the_curve_of_an_engine_is_what_caches_of_other_sizes_hit_of_its_log(
    sample_rate: float, num_at_once: int
) -> None:
    curve, log = served(sample_rate=sample_rate, num_at_once=num_at_once, partial_pages=False)
    capacities = [multiple * curve.capacity_tokens for multiple in MULTIPLES]
    errors = [
        100 * (hit_ratio_at(curve, each) - served_ratio(log.requests, capacity_tokens=each, page_size=PAGE_SIZE))
        for each in capacities
    ]
    mean, most = mean_and_most(errors)
    assert (mean <= 0.6, most <= 2.0) == (True, True), errors


def test_at_the_size_that_the_cache_has_the_curve_is_what_was_really_hit() -> None:
    curve, log = served(sample_rate=0.05, num_at_once=2, partial_pages=True)
    num_cached = sum(event.num_cached_tokens for event in log.admitted)
    num_tokens = sum(event.num_prompt_tokens for event in log.admitted)
    assert 100 * abs(num_cached / num_tokens - hit_ratio_at(curve, curve.capacity_tokens)) < 0.6


@pytest.mark.parametrize("seed", range(6))
def test_aborts_preemptions_failed_steps_and_flushes_leave_the_stack_in_order(seed: int) -> None:
    random = Random(seed)
    page_size = random.choice([1, 4, 16])
    num_pages = 400 // page_size
    cache = PrefixCache(
        num_pages=num_pages,
        page_size=page_size,
        policy=random.choice(["lru", "cost"]),
        partial_pages=random.random() < 0.7,
        mrc_sample_rate=random.choice([0.05, 0.3, 1.0]),
    )
    measured = cache.miss_ratio
    assert measured is not None
    engine = Engine(
        capacity=capacity_for_tests(num_pages=num_pages, page_size=page_size),
        cache=cache,
        overlap=random.random() < 0.5,
        fail_launches=frozenset(random.sample(range(100), 5)),
    )
    spaces = [NAMESPACE, Namespace("model", tenant="other")]
    begins = [[random.randrange(1, 50) for _ in range(120)] for _ in range(3)]
    for number in range(50):
        prompt = random.choice(begins)[: random.randrange(1, 120)] + [number] * random.randrange(30)
        engine.submit(request(str(number), prompt, max_tokens=random.randrange(1, 20), namespace=random.choice(spaces)))
        for _ in range(random.randrange(6)):
            if engine.scheduler.has_work():
                engine.step()
        if random.random() < 0.15:
            engine.abort(str(random.randrange(number + 1)))
        if random.random() < 0.05:
            cache.flush(random.choice([None, *spaces]))
        assert measured.check_invariants() == []
    engine.run()
    assert measured.check_invariants() == []
