"""Session pins: what a request leaves in the cache outlives what is not pinned, for as long as it asked."""

from __future__ import annotations

from typing import get_args

import pytest
from support_fake_executor import capacity_for_tests
from support_prefix_cache import cached
from support_scheduling import NAMESPACE, Engine, request

from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.request import RequestId
from sapwood_engine.core.step import Evicted

PINNED = list(range(100, 112))


def kept(engine: Engine) -> int:
    return cached(engine.cache, PINNED, NAMESPACE)


def served(policy: PolicyName, *, seconds: float = 50.0) -> Engine:
    """An engine of 8 pages that has answered a pinned request."""
    engine = Engine(capacity=capacity_for_tests(num_pages=8), eviction=policy)
    engine.submit(request("pinned", PINNED, max_tokens=1, cache_pin_seconds=seconds))
    engine.run()
    assert kept(engine) == 12
    return engine


def crowd(engine: Engine, number: int) -> None:
    """Answer a prompt of 5 pages that nobody shares."""
    engine.submit(request(f"other {number}", [number] * 20, max_tokens=1))
    engine.run()


def test_what_is_pinned_outlives_newer_requests_until_its_time() -> None:
    engine = served("ttl")
    for number in range(10):
        crowd(engine, number)
    assert kept(engine) == 12
    engine.now = 100.0
    crowd(engine, 10)
    assert kept(engine) == 0


def test_a_pin_that_ends_is_told_as_an_eviction_for_its_time() -> None:
    engine = served("ttl")
    engine.now = 51.5
    engine.submit(request("later", [1], max_tokens=1))
    plan = engine.step()
    assert plan is not None
    (evicted,) = [event for event in plan.events if isinstance(event, Evicted)]
    assert (evicted.num_tokens, evicted.reason) == (12, "ttl")


def test_a_pin_that_is_renewed_lasts_to_its_later_end() -> None:
    engine = served("ttl")
    engine.now = 40.0
    engine.submit(request("again", PINNED, max_tokens=1, cache_pin_seconds=50.0))
    engine.run()
    engine.now = 85.0
    crowd(engine, 0)
    assert kept(engine) == 12


def test_a_request_that_is_aborted_leaves_its_pin() -> None:
    """A stop string is found above the engine and ends a request by an abort."""
    engine = Engine(capacity=capacity_for_tests(num_pages=8), eviction="ttl")
    engine.submit(request("pinned", PINNED, max_tokens=9, cache_pin_seconds=50.0))
    engine.step()
    engine.step()
    engine.abort("pinned")
    for number in range(5):
        crowd(engine, number)
    assert kept(engine) == 12


def test_a_preemption_pins_nothing() -> None:
    engine = Engine(capacity=capacity_for_tests(num_pages=8), eviction="ttl")
    engine.submit(request("one", [1] * 12, max_tokens=16, cache_pin_seconds=50.0))
    engine.submit(request("two", [2] * 12, max_tokens=16, cache_pin_seconds=50.0))
    while not engine.preempted:
        engine.step()
    assert all(node.expires == 0 for _, _, node in engine.cache._tree._pins._heap)


@pytest.mark.parametrize("policy", sorted(set(get_args(PolicyName)) - {"ttl"}))
def test_under_other_policies_a_pin_neither_keeps_nor_drops(policy: PolicyName) -> None:
    pinned, plain = served(policy), served(policy, seconds=0.0)
    for engine in (pinned, plain):
        engine.now = 100.0
        for number in range(3):
            crowd(engine, number)
    assert kept(pinned) == kept(plain)
    assert pinned.cache.snapshot(max_nodes=99) == plain.cache.snapshot(max_nodes=99)


def test_a_pin_does_not_stand_in_the_way_of_a_request_that_needs_the_room() -> None:
    engine = served("ttl")
    engine.submit(request("large", [7] * 30, max_tokens=1))
    assert engine.run()["large"].finish == "length"
    assert engine.scheduler.abort(RequestId("pinned")) is None
