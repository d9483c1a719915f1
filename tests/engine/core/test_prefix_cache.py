"""The prefix cache against a naive one, step by step, and the promises its docstrings make."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support_cache_comparison import SPACES, Comparison
from support_prefix_cache import RANKS, allocate, cached, match, serve

from sapwood_contract.launch import EvictionPolicyName
from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.keys import KeyFormat
from sapwood_engine.core.prefix_cache import PageCounts, PrefixCache, token_key
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.step import Evicted

FORMATS = (KeyFormat(), KeyFormat("pairs"), KeyFormat(content=True), KeyFormat("pairs", content=True))
blocks_of_tokens = st.lists(st.integers(0, 1), max_size=4)
more_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=4)
priorities = st.integers(-1, 2)
pins = st.integers(0, 6)


class AgainstTheNaiveCache(RuleBasedStateMachine):
    """Hypothesis chooses the operations and, when an answer differs, the shortest way there."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        policy=st.sampled_from(sorted(RANKS)),
        partial_pages=st.booleans(),
        keys=st.sampled_from(FORMATS),
    )
    def create(self, page_size: int, policy: PolicyName, partial_pages: bool, keys: KeyFormat) -> None:
        self.both = Comparison(page_size=page_size, policy=policy, partial_pages=partial_pages, keys=keys)

    @rule(namespace=st.sampled_from(SPACES), blocks=blocks_of_tokens, rest=more_tokens)
    def begin(self, namespace: Namespace, blocks: list[int], rest: list[int]) -> None:
        self.both.begin(namespace, blocks, rest)

    @rule(namespace=st.sampled_from(SPACES), blocks=blocks_of_tokens, rest=more_tokens)
    def look(self, namespace: Namespace, blocks: list[int], rest: list[int]) -> None:
        self.both.look(namespace, blocks, rest)

    @rule(at=st.integers(0, 9), share=st.floats(0, 1), priority=priorities)
    def store_unfinished(self, at: int, share: float, priority: int) -> None:
        self.both.store_unfinished(at, share, priority)

    @rule(at=st.integers(0, 9), priority=priorities, pin=pins)
    def finish(self, at: int, priority: int, pin: int) -> None:
        self.both.finish(at, priority, pin)

    @rule(at=st.integers(0, 9))
    def abort(self, at: int) -> None:
        self.both.abort(at)

    @rule(namespace=st.sampled_from([None, *SPACES]))
    def flush(self, namespace: Namespace | None) -> None:
        self.both.flush(namespace)

    @rule(namespace=st.sampled_from(SPACES), num_pages=st.none() | st.integers(0, 6))
    def set_quota(self, namespace: Namespace, num_pages: int | None) -> None:
        self.both.set_quota(namespace, num_pages)

    @rule(num_pages=st.integers(1, 4))
    def evict(self, num_pages: int) -> None:
        self.both.evict(num_pages)

    @rule(ticks=st.integers(1, 4))
    def expire(self, ticks: int) -> None:
        self.both.expire(ticks)

    @invariant()
    def agrees(self) -> None:
        self.both.agrees()

    def teardown(self) -> None:
        if hasattr(self, "both"):
            self.both.end()


TestTheCacheAgainstANaiveOne = AgainstTheNaiveCache.TestCase
TestTheCacheAgainstANaiveOne.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None, derandomize=True, database=None
)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("policy", "keys"),
    [*((policy, KeyFormat()) for policy in sorted(RANKS)), *(("lru", keys) for keys in FORMATS[1:])],
)
def test_a_busy_cache_agrees_with_the_naive_one_at_every_step(
    policy: PolicyName, keys: KeyFormat, page_size: int
) -> None:
    """Fuller and busier than what Hypothesis builds: evictions at nearly every request."""
    random = Random(page_size)
    both = Comparison(page_size=page_size, policy=policy, partial_pages=True, keys=keys)
    for _ in range(100):
        blocks = [random.randrange(2) for _ in range(random.randrange(5))]
        rest = [random.randrange(2) for _ in range(random.randint(1, 4))]
        namespace = SPACES[random.randrange(8) == 0]
        (both.look if random.random() < 0.2 else both.begin)(namespace, blocks, rest)
        both.agrees()
        chance = random.random()
        if chance < 0.3:
            both.store_unfinished(random.randrange(9), random.random(), random.randrange(3))
        elif chance < 0.9:
            both.finish(random.randrange(9), random.randrange(3), random.choice((0, 0, 5)))
        elif chance < 0.94:
            both.abort(random.randrange(9))
        elif chance < 0.96:
            both.set_quota(SPACES[random.randrange(2)], random.choice((None, 2, 5)))
        elif chance < 0.97:
            both.evict(1)
        elif chance < 0.99:
            both.expire(random.randint(1, 6))
        else:
            both.flush(SPACES[0])
        both.agrees()
    both.end()


def test_the_policies_are_those_that_the_naive_cache_can_predict_and_cost() -> None:
    assert {*RANKS, "cost"} == set(get_args(EvictionPolicyName))


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("num_prompt", [1, 2, 5, 64, 65, 200])
def test_an_exact_repeat_computes_one_token_at_every_page_size(page_size: int, num_prompt: int) -> None:
    cache = PrefixCache(num_pages=600, page_size=page_size)
    prompt = list(range(num_prompt))
    assert serve(cache, prompt) == 0
    assert serve(cache, prompt) == num_prompt - 1
    assert serve(cache, prompt) == num_prompt - 1


def test_without_partial_pages_only_whole_pages_are_kept_and_found() -> None:
    cache = PrefixCache(num_pages=8, page_size=4, partial_pages=False)
    serve(cache, range(10))
    assert cache.counts() == PageCounts(free=6, owned=0, evictable=2, protected=0)
    assert cached(cache, range(10)) == 8
    assert cached(cache, [0, 1, 2, 3, 4, 5, 99]) == 4


def test_a_cache_that_is_off_stores_nothing_and_hands_every_page_back() -> None:
    cache = PrefixCache(num_pages=8, page_size=4, enabled=False)
    receipt = cache.lock(match(cache, range(10)))
    table = allocate(cache, 4)
    inserted = cache.insert(receipt, token_key(range(8)), table)
    assert (inserted.first, inserted.pages, inserted.duplicates) == (0, (), ())
    assert cache.finish(inserted.receipt, token_key(range(10)), table) == table
    cache.release(table)
    assert cached(cache, range(8)) == 0
    assert cache.counts() == PageCounts(free=8, owned=0, evictable=0, protected=0)
    assert cache.check_invariants([]) == []


def test_finish_answers_with_every_page_that_is_not_stored() -> None:
    cache = PrefixCache(num_pages=12, page_size=4)
    serve(cache, range(8))
    receipt = cache.lock(match(cache, []))
    table = allocate(cache, 6)
    # Pages 0 and 1 are duplicates, 2 becomes the tree's, 3 its tail, 4 and 5 were reserved and never written.
    rest = cache.finish(receipt, token_key(range(14)), table)
    assert rest == [table[0], table[1], table[4], table[5]]
    cache.release(rest)
    assert cache.check_invariants([]) == []


def test_an_eviction_is_told_once_with_its_tokens_and_reason() -> None:
    cache = PrefixCache(num_pages=4, page_size=4)
    serve(cache, range(14))
    assert cache.take_evicted() == []
    allocate(cache, 2)
    assert cache.take_evicted() == [Evicted(4 + 2, "capacity")]
    cache.evict(1)
    cache.flush()
    assert cache.take_evicted() == [Evicted(4, "admin"), Evicted(4, "flush")]
    assert cache.take_evicted() == []


def test_the_depth_is_that_of_the_longest_path_taken_until_a_check_measures_it() -> None:
    cache = PrefixCache(num_pages=64, page_size=2)
    assert cache.depth_mark == 0
    for depth in range(1, 6):  # each goes on where the one before ended
        serve(cache, range(2 * depth))
        assert cache.depth_mark == depth
    serve(cache, range(11))  # the last of these is a tail
    assert cache.depth_mark == 6
    for other in range(20):
        serve(cache, [100 + other, 0])
    cache.evict(4)
    assert cached(cache, range(11)) == 4
    assert cache.depth_mark == 6
    assert cache.check_invariants([]) == []
    assert cache.depth_mark == 2
    match(cache, [0, 1])
    assert cache.depth_mark == 2
    cache.flush()
    assert cache.depth_mark == 0


def test_a_match_that_splits_an_edge_makes_the_path_longer() -> None:
    cache = PrefixCache(num_pages=64, page_size=2)
    serve(cache, range(8))
    serve(cache, [*range(6), 0])
    assert cache.depth_mark == 2
    match(cache, [0, 1])
    assert cache.depth_mark == 2
    match(cache, range(6))
    assert cache.depth_mark == 3


def test_a_snapshot_lists_parents_before_children_within_its_bound() -> None:
    cache = PrefixCache(num_pages=32, page_size=2)
    for last in range(6):
        serve(cache, [1, 2, 3, 4, last, last])
    serve(cache, [7, 8], SPACES[1])
    whole = cache.snapshot(max_nodes=100, token_ids=3)
    assert whole["num_nodes"] == cache.num_nodes == 8
    assert not whole["truncated"]
    first, second = whole["namespaces"]
    assert first["namespace"] == {
        "model_revision": "model",
        "adapter_id": None,
        "extra_key": None,
        "tenant_salt": None,
        "tenant": None,
    }
    assert [node["token_ids"] for node in first["nodes"]] == [[1, 2, 3], *([n, n] for n in range(6))]
    assert [node["parent"] for node in first["nodes"]] == [None, 0, 0, 0, 0, 0, 0]
    assert [node["num_tokens"] for node in second["nodes"]] == [2]
    part = cache.snapshot(max_nodes=3)
    assert part["truncated"]
    assert [len(space["nodes"]) for space in part["namespaces"]] == [3]
    assert "token_ids" not in part["namespaces"][0]["nodes"][0]


def test_a_snapshot_tells_that_there_is_a_salt_but_not_which() -> None:
    cache = PrefixCache(num_pages=8, page_size=2)
    serve(cache, [1, 2], Namespace("model", tenant_salt="hunter2"))
    (space,) = cache.snapshot(max_nodes=10)["namespaces"]
    assert space["namespace"]["tenant_salt"] == "***"
    assert "hunter2" not in repr(cache.snapshot(max_nodes=10, token_ids=99))
