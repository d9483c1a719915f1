"""Which pages go first, under every policy."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest
from support_prefix_cache import SPACE, allocate, cached, match, serve

from sapwood_contract.launch import EvictionPolicyName
from sapwood_engine.core.eviction import RANKS, PolicyName, RankedOrder, RecencyOrder, eviction_order
from sapwood_engine.core.page_allocator import PageAllocator
from sapwood_engine.core.prefix_cache import PrefixCache, Shortfall, token_key
from sapwood_engine.core.quotas import Quotas
from sapwood_engine.core.radix_node import Node, Root
from sapwood_engine.core.radix_search import find
from sapwood_engine.core.radix_tree import RadixTree
from sapwood_engine.core.step import Evicted

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)

A, B, C = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]


def survivors(cache: PrefixCache) -> str:
    return "".join(name for name, tokens in (("A", A), ("B", B), ("C", C)) if cached(cache, tokens) == 4)


def test_every_policy_that_can_be_launched_exists() -> None:
    assert set(get_args(EvictionPolicyName)) == set(POLICIES)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", "ABC ABC AB A"),
        ("fifo", "ABC BC C"),
        ("filo", "ABC AB A"),
        ("mru", "ABC BC C"),
    ],
)
def test_recency_and_age_decide(policy: PolicyName, order: str) -> None:
    """A, B and C are stored in this order and used in the order C, B, A."""
    cache = PrefixCache(num_pages=12, page_size=1, policy=policy)
    for tokens in (A, B, C):
        serve(cache, tokens)
    for tokens in (C, B, A):
        match(cache, tokens)
    seen = [survivors(cache)]
    for _ in range(2):
        cache.evict(4)
        seen.append(survivors(cache))
    assert seen == order.replace("ABC ABC", "ABC").split()


def test_lfu_keeps_what_was_hit_most() -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy="lfu")
    for tokens in (A, B, C):
        serve(cache, tokens)
    for tokens in (A, A, A, C, B, B):
        match(cache, tokens)
    cache.evict(4)
    assert survivors(cache) == "AB"
    cache.evict(4)
    assert survivors(cache) == "A"


def test_slru_lets_one_scan_of_new_prompts_pass_by_what_was_reused() -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy="slru")
    serve(cache, A)
    match(cache, A)
    for token in range(10, 30):
        serve(cache, [token] * 4)
    assert survivors(cache) == "A"


def test_priority_decides_before_recency() -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy="priority")
    serve(cache, A, priority=2)
    serve(cache, B, priority=1)
    serve(cache, C, priority=1)
    cache.evict(4)
    assert survivors(cache) == "AC"
    cache.evict(4)
    assert survivors(cache) == "A"


def test_a_shared_prefix_has_the_priority_of_its_most_important_user() -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy="priority")
    serve(cache, [9, 9, 1], priority=0)
    serve(cache, [9, 9, 2], priority=5)
    serve(cache, [8, 8], priority=3)
    cache.evict(2)  # the two leaves of priority 0 and 3, not the prefix that priority 5 shares
    assert cached(cache, [9, 9, 2]) == 3
    assert cached(cache, [9, 9, 1]) == 2
    assert cached(cache, [8, 8]) == 1


def test_pins_outlive_what_is_not_pinned_and_go_in_the_order_in_which_they_end() -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy="ttl")
    serve(cache, A, pinned_until=200)
    serve(cache, B, pinned_until=100)
    serve(cache, C)
    cache.evict(4)
    assert survivors(cache) == "AB"
    cache.evict(4)
    assert survivors(cache) == "A"
    cache.evict(4)
    assert survivors(cache) == ""


def test_a_pin_that_has_ended_drops_what_it_held_unless_it_is_in_use() -> None:
    cache = PrefixCache(num_pages=20, page_size=4, policy="ttl")
    serve(cache, [*A, 7], pinned_until=10)
    serve(cache, [*B, *B, 7], pinned_until=10)
    serve(cache, C)
    receipt = cache.lock(match(cache, B))
    cache.take_evicted()
    assert cache.expire(9) == 0
    assert cache.expire(10) == 4 + 1 + 4 + 1
    assert cache.take_evicted() == [Evicted(10, "ttl")]
    assert (cached(cache, A), cached(cache, [*B, *B]), cached(cache, C)) == (0, 4, 4)
    cache.unlock(receipt)
    assert cache.expire(1000) == 0
    assert cache.check_invariants([]) == []


def test_a_pin_renewed_by_the_next_turn_of_a_session_holds_until_the_later_end() -> None:
    cache = PrefixCache(num_pages=20, page_size=4, policy="ttl")
    serve(cache, A, pinned_until=10)
    serve(cache, [*A, *B], pinned_until=20)
    assert cache.expire(15) == 0
    assert cache.expire(20) == 8


def test_cost_keeps_the_page_that_is_dearer_to_compute_again() -> None:
    cache = PrefixCache(num_pages=1100, page_size=1, policy="cost")
    serve(cache, [1] * 1000)
    serve(cache, [2] * 10)
    cache.evict(10)
    assert cached(cache, [1] * 1000) == 1000
    assert cached(cache, [2] * 10) == 0


def test_cost_forgets_old_fame() -> None:
    cache = PrefixCache(num_pages=8, page_size=1, policy="cost")
    serve(cache, A)
    for _ in range(10):
        match(cache, A)
    for token in range(10, 14):
        serve(cache, [token] * 4)
    assert survivors(cache) == "A"
    for token in range(100, 300):
        serve(cache, [token] * 4)
    assert survivors(cache) == ""


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_end_of_a_leaf_goes_when_that_is_enough(policy: PolicyName) -> None:
    cache = PrefixCache(num_pages=8, page_size=4, policy=policy)
    serve(cache, range(32))
    for kept in range(7, -1, -1):
        allocate(cache, 1)
        assert cached(cache, range(32)) == 4 * kept
        assert cache.check_invariants() == []


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_locked_stays_whatever_is_asked(policy: PolicyName) -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy=policy)
    for tokens in (A, B, C):
        serve(cache, tokens)
    receipt = cache.lock(match(cache, B[:3]))
    assert cache.num_available() == 9
    assert cache.allocate(10) == Shortfall(needed=10, available=9)
    assert survivors(cache) == "ABC"
    assert cache.evict(100) == 9
    assert cached(cache, B) == 3
    cache.unlock(receipt)
    assert cache.evict(100) == 3


def test_a_path_goes_from_its_end_to_its_root() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2])
    serve(cache, [1, 2, 3, 4])
    serve(cache, [1, 2, 3, 5])
    lengths = []
    while cache.evict(1):
        lengths.append((cached(cache, [1, 2, 3, 4]), cached(cache, [1, 2, 3, 5])))
    assert lengths == [(3, 4), (3, 3), (2, 2), (1, 1), (0, 0)]


@pytest.mark.parametrize("policy", ["lru", "priority"])
def test_a_repeat_that_ends_inside_a_page_refreshes_that_page_and_not_what_follows(
    policy: PolicyName,
) -> None:
    cache = PrefixCache(num_pages=8, page_size=4, policy=policy)
    serve(cache, range(12))
    serve(cache, B)
    serve(cache, range(6))
    cache.evict(1)
    assert (cached(cache, range(12)), cached(cache, B)) == (8, 4)
    cache.evict(1)
    assert (cached(cache, range(12)), cached(cache, B)) == (8, 0)


class Twin:
    """The same operations on two trees that differ in the order alone."""

    def __init__(self) -> None:
        self.trees = [
            RadixTree(
                page_size=1,
                unit_bytes=4,
                allocator=PageAllocator(200),
                order=order,
                quotas=Quotas(order.rank, default_pages=None),
                partial_pages=False,
            )
            for order in (RecencyOrder(), RankedOrder(RANKS["lru"]))
        ]

    def store(self, tokens: list[int]) -> None:
        key = token_key(tokens)
        for tree in self.trees:
            root = tree.roots.get(SPACE) or Root(SPACE)
            node, pages = tree.use(root, find(root, key, num_bytes=len(key), page_bytes=4))
            own = tree._allocator.allocate(len(tokens) - len(pages))
            assert isinstance(own, list)
            tree.unlock(tree.insert(tree.lock(node), key, [*pages, *own], priority=0).receipt)

    def evict(self, num_pages: int) -> None:
        for tree in self.trees:
            tree.evict(num_pages)

    def contents(self) -> list[object]:
        return [{key: _contents(child) for key, child in tree.roots[SPACE].children.items()} for tree in self.trees]


def _contents(node: Node) -> object:
    return node.live_pages(), {key: _contents(child) for key, child in node.children.items()}


def test_the_linked_list_and_the_heap_agree_on_least_recently_used() -> None:
    random = Random(3)
    twin = Twin()
    twin.store([0])
    for _ in range(400):
        twin.store([0, *(random.randrange(3) for _ in range(random.randrange(8)))])
        twin.evict(random.randrange(6))
        twin.store([0])
        left, right = twin.contents()
        assert left == right


def test_a_heap_does_not_grow_with_the_number_of_uses() -> None:
    cache = PrefixCache(num_pages=8, page_size=1, policy="lfu")
    serve(cache, A)
    for _ in range(2000):
        match(cache, A)
    order = cache._tree.order
    assert isinstance(order, RankedOrder)
    assert len(order._heap) <= 2 * RankedOrder.SWEEP_ENTRIES


def test_an_order_without_nodes_has_no_victim() -> None:
    for policy in POLICIES:
        assert eviction_order(policy).victim() is None


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_to_go_goes_in_the_order_in_which_it_is_foretold(policy: PolicyName) -> None:
    random = Random(5)
    cache = PrefixCache(num_pages=300, page_size=1, policy=policy)
    for _ in range(60):
        prompt = [0, *(random.randrange(3) for _ in range(random.randrange(8)))]
        serve(cache, prompt)
        for _ in range(random.randrange(3)):
            match(cache, prompt)
    order = cache._tree.order
    foretold = list(order.upcoming())
    went = []
    while (node := order.victim()) is not None:
        went.append(node)
        cache.evict(node.num_pages)
    assert foretold == went != []


@pytest.mark.parametrize("policy", POLICIES)
def test_room_that_cannot_be_made_takes_nothing_away(policy: PolicyName) -> None:
    cache = PrefixCache(num_pages=12, page_size=1, policy=policy)
    cache.note_time(0.0)
    for tokens in (A, B, C):
        serve(cache, tokens)
    for _ in range(4):
        match(cache, A)
        match(cache, C)
    assert not cache.make_room(9, most_uses=2.0)
    assert not cache.make_room(13, most_uses=9.0)
    assert (survivors(cache), cache.counts().free) == ("ABC", 0)
    assert cache.make_room(9, most_uses=9.0)
    assert cache.counts().free == 9
