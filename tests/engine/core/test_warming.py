"""Prefixes computed while nobody asks: by whom they are held up, what they may take, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
from support_fake_executor import capacity_for_tests, reference_tokens
from support_prefix_cache import cached, match, serve
from support_scheduling import NAMESPACE, Engine, request

from sapwood_contract.launch import SchedulerPolicy
from sapwood_engine.core.admission import SchedulerConfig
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.prefix_worth import HORIZON_SECONDS
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.warming import WarmCounts, WarmPrefix

LONG = tuple(range(100, 132))
"""Eight pages of four tokens."""


def prefix(token_ids: Sequence[int] = LONG, *, uses: float = 1.0, namespace: Namespace = NAMESPACE) -> WarmPrefix:
    return WarmPrefix(namespace, tuple(token_ids), uses * len(token_ids))


def engine(*, num_pages: int = 64, chunk_tokens: int = 8, policy: SchedulerPolicy = "fcfs") -> Engine:
    return Engine(
        config=SchedulerConfig(policy=policy, chunk_tokens=chunk_tokens),
        capacity=capacity_for_tests(num_pages=num_pages),
        overlap=True,
    )


def warm(engine: Engine, *prefixes: WarmPrefix) -> None:
    engine.scheduler.warm(prefixes, engine.now)
    engine.check()


def counts(engine: Engine) -> WarmCounts:
    return engine.scheduler.warm_counts()


def test_an_engine_at_rest_computes_what_it_is_given_and_a_request_finds_it() -> None:
    at = engine()
    warm(at, prefix())
    assert counts(at) == WarmCounts(num_waiting=1)
    assert at.scheduler.has_work()
    at.run()
    assert counts(at) == WarmCounts(num_done=1)
    at.submit(request("r", (*LONG, 7)))
    assert at.run()["r"].num_cached_tokens == len(LONG)
    assert at.answers["r"].token_ids == reference_tokens((*LONG, 7), 4)


def test_it_is_in_its_own_namespace_alone() -> None:
    at, other = engine(), Namespace("model", None, "extra", "salt", "tenant:a/b")
    warm(at, prefix(namespace=other))
    at.run()
    assert cached(at.cache, LONG) == 0
    assert cached(at.cache, LONG, other) == len(LONG)


def test_nobody_hears_of_it_and_no_load_has_it() -> None:
    at = engine()
    warm(at, prefix())
    at.plan()
    load = at.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (0, 0, 0)
    assert at.settle() == []
    assert at.run() == {}
    assert (at.admitted, at.preempted) == ([], [])


def test_the_curve_counts_no_prompt_of_it() -> None:
    cache = PrefixCache(num_pages=64, page_size=4, mrc_sample_rate=1.0)
    at = Engine(cache=cache, overlap=True)
    warm(at, prefix())
    at.run()
    assert counts(at).num_done == 1
    assert cache.miss_ratio is not None
    assert cache.miss_ratio.num_requests == 0


def test_one_step_of_it_is_planned_at_a_time() -> None:
    at = engine()
    warm(at, prefix())
    assert at.plan() is not None
    assert at.plan() is None
    at.settle()
    assert at.plan() is not None


@pytest.mark.parametrize("policy", get_args(SchedulerPolicy))
def test_a_request_that_comes_meanwhile_is_in_the_very_next_step_whatever_the_policy(policy: SchedulerPolicy) -> None:
    at = engine(policy=policy)
    warm(at, prefix())
    at.plan()
    at.submit(request("r", (1, 2, 3)))
    plan = at.plan()
    assert plan is not None
    assert [at.scheduler.request_in(seat) for seat in plan.seats] == ["r"]
    assert plan.lengths == [3]
    assert at.run()["r"].token_ids == reference_tokens((1, 2, 3), 4)
    assert counts(at) == WarmCounts(num_done=1)


def test_what_was_computed_before_it_gave_way_is_not_computed_again() -> None:
    at = engine()
    warm(at, prefix())
    for _ in range(2):
        at.plan()
        at.settle()
    at.submit(request("r", (1, 2, 3), max_tokens=1))
    assert cached(at.cache, LONG) == 16
    while at.answers["r"].finish is None:
        at.step()
    lengths = []
    while at.scheduler.has_work():
        plan = at.step()
        lengths += plan.lengths if plan else []
    assert sum(lengths) == len(LONG) - 16
    assert counts(at) == WarmCounts(num_done=1)


def test_while_requests_run_or_wait_it_waits() -> None:
    at = engine()
    at.submit(request("r", (1, 2, 3), max_tokens=10))
    at.step()
    warm(at, prefix())
    while at.answers["r"].finish is None:
        plan = at.step()
        assert plan is None or len(plan.seats) == 1
        assert counts(at).num_waiting == 1
    at.run()
    assert counts(at).num_done == 1


def test_no_step_of_it_is_longer_than_the_target_between_two_tokens() -> None:
    at = Engine(
        config=SchedulerConfig(policy="fcfs", chunk_tokens=512, max_step_tokens=512, itl_target_seconds=0.05),
        capacity=capacity_for_tests(num_pages=1024, max_step_tokens=512),
        seconds_per_token=0.001,
    )
    at.submit(request("r", range(200), max_tokens=4))
    at.run()
    warm(at, prefix(range(300, 900)))
    lengths = []
    while at.scheduler.has_work():
        plan = at.step()
        lengths += plan.lengths if plan else []
    assert sum(lengths) == 600
    assert max(lengths) <= 60


def test_what_the_cache_holds_already_is_done_without_a_step_and_counts_as_no_use_of_it() -> None:
    at = engine()
    warm(at, prefix())
    at.run()
    warm(at, prefix(), prefix((*LONG, 1, 2, 3, 4)))
    first = at.plan()
    assert first is not None
    at.settle()
    assert counts(at) == WarmCounts(num_done=3)
    assert sum(first.lengths) == 4
    (space,) = at.cache.snapshot(max_nodes=10)["namespaces"]
    assert {node["hits"] for node in space["nodes"]} == {0}


# --- what it may take


def full_engine(*, hits: int = 0) -> Engine:
    """Its 16 pages hold two prompts of 8, of which each was used ``hits`` times."""
    at = engine(num_pages=16)
    at.cache.note_time(0.0)
    for first in (1, 2):
        serve(at.cache, (first,) * 32)
        for _ in range(hits):
            match(at.cache, (first,) * 32)
    assert at.cache.counts().free == 0
    return at


def test_what_will_be_used_less_makes_room_for_it() -> None:
    at = full_engine()
    warm(at, prefix(uses=2.0))
    at.run()
    assert counts(at) == WarmCounts(num_done=1)
    assert cached(at.cache, LONG) == len(LONG)
    assert cached(at.cache, (2,) * 32) == 32


def test_what_will_be_used_more_stays_and_it_is_given_up() -> None:
    at = full_engine(hits=3)
    warm(at, prefix(uses=2.0))
    at.run()
    assert counts(at) == WarmCounts(num_dropped=1)
    assert cached(at.cache, (1,) * 32) == cached(at.cache, (2,) * 32) == 32


def test_a_worthless_tail_of_a_shared_prompt_makes_no_room_for_itself() -> None:
    at = full_engine()
    serve(at.cache, LONG[:16])
    told = WarmPrefix(NAMESPACE, LONG, 16 * 40.0, parts=((16, 40.0), (16, 0.01)))
    warm(at, told)
    at.run()
    assert counts(at) == WarmCounts(num_dropped=1)
    assert cached(at.cache, (2,) * 32) == 32


def test_what_waits_takes_half_of_the_cache_at_most_and_the_rest_is_given_up() -> None:
    at = engine(num_pages=16)
    warm(at, prefix(), prefix(range(200, 201)))
    assert counts(at) == WarmCounts(num_waiting=1, num_dropped=1)
    at.run()
    warm(at, prefix(range(200, 201)))
    assert counts(at) == WarmCounts(num_waiting=1, num_done=1, num_dropped=1)


def test_a_prefix_longer_than_a_request_may_be_is_given_up() -> None:
    at = Engine(capacity=capacity_for_tests(num_pages=64, max_context_tokens=16))
    warm(at, prefix(), prefix(range(16)))
    at.run()
    assert counts(at) == WarmCounts(num_done=1, num_dropped=1)


def test_without_a_prefix_cache_everything_is_given_up() -> None:
    at = Engine(prefix_cache=False)
    warm(at, prefix())
    assert at.plan() is None
    assert counts(at) == WarmCounts(num_dropped=1)
    assert not at.scheduler.has_work()


def test_whose_turn_does_not_come_while_its_worth_was_foreseen_is_given_up() -> None:
    at = engine()
    at.submit(request("r", (1, 2, 3), max_tokens=8))
    at.step()
    warm(at, prefix())
    at.now += HORIZON_SECONDS
    at.step()
    assert counts(at) == WarmCounts(num_dropped=1)
    assert len(at.run()["r"].token_ids) == 8


def test_a_step_that_fails_gives_its_prefix_up_and_the_next_one_is_computed() -> None:
    at = Engine(overlap=True, fail_launches=frozenset({0}))
    warm(at, prefix(), prefix(range(200, 208)))
    at.run()
    assert counts(at) == WarmCounts(num_done=1, num_dropped=1)
    assert cached(at.cache, LONG) == 0


def test_what_is_stopped_leaves_no_work_and_gives_its_pages_back() -> None:
    at = engine()
    warm(at, prefix(), prefix(range(200, 208)))
    at.plan()
    at.scheduler.stop_warming()
    at.settle()
    assert counts(at) == WarmCounts(num_dropped=2)
    assert not at.scheduler.has_work()
    assert (at.cache.counts().owned, at.cache.counts().protected) == (0, 0)


def test_a_flush_in_its_midst_leaves_nothing_of_what_was_before() -> None:
    at = engine()
    warm(at, prefix())
    at.step()
    at.cache.flush()
    at.run()
    assert counts(at) == WarmCounts(num_done=1)
    assert cached(at.cache, LONG) == 0
