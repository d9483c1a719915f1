"""What a namespace keeps, and how a quota bounds that."""

from __future__ import annotations

import pytest
from support_prefix_cache import SPACE, allocate, cached, match, serve
from support_scheduling import Engine, request

from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.prefix_cache import NamespaceUsage, PageCounts, PrefixCache, token_key
from sapwood_engine.core.quotas import Quotas
from sapwood_engine.core.radix_node import Node, Root
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.step import Evicted

OTHER = Namespace("model", tenant_salt="other")


def test_a_namespace_keeps_what_its_pages_take_whole_and_part() -> None:
    cache = PrefixCache(num_pages=16, page_size=4)
    serve(cache, range(10))
    serve(cache, range(4), OTHER)
    receipt = cache.lock(match(cache, range(8)))
    assert cache.usage(SPACE) == NamespaceUsage(kv_tokens=12, kv_locked_tokens=8, quota_tokens=None)
    assert cache.usage(OTHER) == NamespaceUsage(kv_tokens=4, kv_locked_tokens=0, quota_tokens=None)
    assert set(cache.namespaces()) == {SPACE, OTHER}
    cache.unlock(receipt)
    cache.evict(1)
    assert cache.usage(SPACE).kv_tokens + cache.usage(OTHER).kv_tokens == 12
    cache.flush(SPACE)
    assert cache.usage(SPACE) == NamespaceUsage(0, 0, None)


def test_beyond_its_quota_a_namespace_loses_its_own_oldest_pages_and_no_others() -> None:
    cache = PrefixCache(num_pages=64, page_size=4)
    serve(cache, range(100, 120), OTHER)
    cache.set_quota(SPACE, 14)  # three whole pages
    serve(cache, range(8))
    serve(cache, range(50, 58))
    assert (cached(cache, range(8)), cached(cache, range(50, 58))) == (4, 8)
    assert cache.usage(SPACE) == NamespaceUsage(12, 0, 12)
    assert cache.usage(OTHER).kv_tokens == 20
    assert cache.take_evicted() == [Evicted(4, "capacity")]


def test_a_quota_does_not_refuse_a_request_that_needs_more_and_leaves_no_more_behind() -> None:
    cache = PrefixCache(num_pages=64, page_size=4, quota_tokens=8)
    assert serve(cache, range(40)) == 0
    assert cache.usage(SPACE) == NamespaceUsage(8, 0, 8)
    assert cached(cache, range(40)) == 8


def test_a_quota_takes_nothing_from_a_running_request() -> None:
    cache = PrefixCache(num_pages=64, page_size=4, quota_tokens=4)
    receipt = cache.lock(match(cache, range(20)))
    table = allocate(cache, 5)
    inserted = cache.insert(receipt, token_key(range(16)), table)
    assert cache.usage(SPACE) == NamespaceUsage(16, 16, 4)
    assert cache.finish(inserted.receipt, token_key(range(20)), table) == []
    assert cache.usage(SPACE).kv_tokens == 4
    assert cache.counts() == PageCounts(free=63, owned=0, evictable=1, protected=0)


def test_a_quota_that_is_set_later_holds_at_once_and_ends_when_it_is_taken_back() -> None:
    cache = PrefixCache(num_pages=64, page_size=4, quota_tokens=16)
    serve(cache, range(40))
    cache.set_quota(SPACE, 8)
    assert cache.usage(SPACE) == NamespaceUsage(8, 0, 8)
    cache.set_quota(SPACE, 1000)
    serve(cache, range(40))
    assert cache.usage(SPACE).kv_tokens == 40
    cache.set_quota(SPACE, None)
    assert cache.usage(SPACE) == NamespaceUsage(16, 0, 16)


def test_with_a_quota_of_nothing_a_namespace_keeps_nothing() -> None:
    cache = PrefixCache(num_pages=64, page_size=4, quota_tokens=0)
    for _ in range(2):
        assert serve(cache, range(10)) == 0
    assert cache.namespaces() == []
    assert cache.check_invariants([]) == []


def test_a_quota_outlives_the_tree_of_its_namespace() -> None:
    cache = PrefixCache(num_pages=64, page_size=4)
    cache.set_quota(SPACE, 4)
    for _ in range(2):
        serve(cache, range(12))
        assert cache.usage(SPACE).kv_tokens == 4
        cache.flush()


def test_a_snapshot_tells_what_each_namespace_keeps_and_may_keep() -> None:
    cache = PrefixCache(num_pages=16, page_size=4)
    cache.set_quota(OTHER, 9)
    serve(cache, range(10))
    serve(cache, range(8), OTHER)
    cache.lock(match(cache, range(4)))
    spaces = cache.snapshot(max_nodes=10)["namespaces"]
    assert [(space["kv_tokens"], space["kv_locked_tokens"], space["quota_tokens"]) for space in spaces] == [
        (12, 4, None),
        (8, 0, 8),
    ]


def test_a_negative_quota_is_refused() -> None:
    with pytest.raises(ValueError, match="quota_tokens: -1 cannot be used"):
        PrefixCache(num_pages=4, page_size=4, quota_tokens=-1)


@pytest.mark.parametrize("policy", ["lru", "fifo", "cost"])
def test_what_is_kept_of_leaves_does_not_grow_with_the_number_of_uses(policy: PolicyName) -> None:
    cache = PrefixCache(num_pages=8, page_size=1, policy=policy, quota_tokens=100)
    serve(cache, range(4))
    for _ in range(2000):
        match(cache, range(4))
    quotas = cache._tree.quotas
    assert sum(len(leaves._heap) for leaves in quotas._leaves.values()) <= 200


def test_a_leaf_that_lost_its_end_keeps_its_place_under_a_quota() -> None:
    """Its rank may depend on how far it reaches."""
    cache = PrefixCache(num_pages=8, page_size=1, policy="cost", quota_tokens=4)
    serve(cache, range(4))
    cache.evict(1)
    assert cache.check_invariants([]) == []
    serve(cache, range(50, 53))
    assert cache.usage(SPACE).kv_tokens == 4


def test_nothing_is_kept_of_namespaces_that_went() -> None:
    cache = PrefixCache(num_pages=8, page_size=1, quota_tokens=2)
    for number in range(50):
        serve(cache, range(4), Namespace("m", tenant_salt=str(number)))
    cache.flush()
    assert not cache._tree.quotas._leaves


def test_the_check_names_a_namespace_that_is_counted_wrong() -> None:
    cache = PrefixCache(num_pages=8, page_size=2)
    serve(cache, range(4))
    cache._tree.roots[SPACE].num_kept_pages += 1
    assert any("3 pages of a namespace are counted" in fault for fault in cache.check_invariants([]))


def test_the_check_names_a_leaf_that_a_quota_would_not_find() -> None:
    cache = PrefixCache(num_pages=8, page_size=2, quota_tokens=8)
    serve(cache, range(4))
    cache._tree.quotas.watch(cache._tree.roots[SPACE])
    assert any("unlocked leaves" in fault for fault in cache.check_invariants([]))


def test_a_root_without_a_quota_has_no_victim() -> None:
    root = Root(SPACE)
    quotas = Quotas(lambda node: (node.tick,), default_pages=None)
    quotas.note(Node(parent=root, edge=b"", key=b"", pages=(), start=0))
    assert quotas.victim(root) is None
    assert quotas.members(root) is None


def test_requests_under_a_quota_answer_as_without_one() -> None:
    answers = []
    for quota in (None, 8):
        engine = Engine(quota_tokens=quota)
        for number in range(6):
            engine.submit(request(str(number), [*range(20), number], max_tokens=8))
        answers.append({name: answer.token_ids for name, answer in engine.run().items()})
    assert answers[0] == answers[1]
    assert engine.cache.usage(request("", []).namespace).kv_tokens == 8
