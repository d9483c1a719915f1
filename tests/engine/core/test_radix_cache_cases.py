"""Faults that other radix caches had, with the right outcome: the cases A01–A17 that concern the pure cache.

A11 and A13 belong to the scheduler. A09 and A15 are here as far as the cache goes. The host tier of A17 comes
with the tiers; A19, A21 and A23 concern sliding-window and hybrid models, which this engine does not serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support_prefix_cache import allocate, cached, match, serve

from sapwood_engine.core.prefix_cache import PageCounts, PrefixCache, Shortfall, token_key
from sapwood_engine.core.radix_node import Node


def classic(num_pages: int, page_size: int) -> PrefixCache:
    """A cache of whole pages only, as the cases assume."""
    return PrefixCache(num_pages=num_pages, page_size=page_size, partial_pages=False)


def test_a_key_shorter_than_a_page_matches_and_stores_nothing() -> None:
    """A01"""
    cache = classic(num_pages=8, page_size=16)
    serve(cache, range(32))
    before = cache.num_nodes
    assert match(cache, range(10)).pages == ()
    assert match(cache, range(10)).num_tokens == 0
    receipt = cache.lock(match(cache, range(10)))
    own = allocate(cache, 1)
    assert cache.finish(receipt, token_key(range(10)), own) == own
    cache.release(own)
    with pytest.raises(AssertionError, match="is free"):
        cache.release(own)
    assert cache.num_nodes == before
    assert cache.counts() == PageCounts(free=6, owned=0, evictable=2, protected=0)


def test_sizes_are_those_of_stored_pages_not_of_keys() -> None:
    """A01"""
    cache = classic(num_pages=8, page_size=16)
    serve(cache, range(20))
    assert cache.counts() == PageCounts(free=7, owned=0, evictable=1, protected=0)
    assert cache.check_invariants([]) == []
    assert cache.evict(2) == 16
    assert cache.counts() == PageCounts(free=8, owned=0, evictable=0, protected=0)


def test_a_running_request_never_points_at_a_duplicate_that_was_freed() -> None:
    """A03"""
    cache = PrefixCache(num_pages=16, page_size=1)
    key = token_key([1, 2, 3, 4])
    second = cache.lock(match(cache, [1, 2, 3, 4]))
    second_table = allocate(cache, 4)
    serve(cache, [1, 2, 3, 4])
    first_pages = match(cache, [1, 2, 3, 4]).pages
    inserted = cache.insert(second, key, second_table)
    assert inserted.pages == first_pages
    assert list(inserted.duplicates) == second_table
    second_table[inserted.first : inserted.first + len(inserted.pages)] = inserted.pages
    cache.release(inserted.duplicates)
    handed_out = allocate(cache, 12)
    assert not set(second_table) & set(handed_out)
    cache.unlock(inserted.receipt)


def test_a_match_inside_an_edge_pins_only_what_it_matched() -> None:
    """A05"""
    cache = PrefixCache(num_pages=16, page_size=1)
    serve(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    receipt = cache.lock(match(cache, [1, 2, 3, 4, 5]))
    nodes = cache.snapshot(max_nodes=9)["namespaces"][0]["nodes"]
    assert [(node["num_tokens"], node["lock_ref"]) for node in nodes] == [(5, 1), (3, 0)]
    assert cache.counts().protected == 5
    serve(cache, [1, 2, 3, 4, 5, 9, 9])
    cache.unlock(receipt)
    assert cache.counts() == PageCounts(free=6, owned=0, evictable=10, protected=0)


def planted() -> tuple[PrefixCache, Node, Node]:
    """A healthy cache with an unlocked node of two pages above an unlocked leaf of one."""
    cache = PrefixCache(num_pages=8, page_size=2)
    serve(cache, [1, 2, 3, 4])
    serve(cache, [1, 2, 3, 4, 5, 6])
    leaf = match(cache, [1, 2, 3, 4, 5, 6]).node
    assert cache.check_invariants([]) == []
    assert leaf.parent is not None
    return cache, leaf.parent, leaf


@contextmanager
def names_fault(*sentences: str) -> Iterator[tuple[PrefixCache, Node, Node]]:
    cache, upper, leaf = planted()
    yield cache, upper, leaf
    faults = cache.check_invariants([])
    for sentence in sentences:
        assert any(sentence in fault for fault in faults), (sentence, faults)


def test_the_check_names_a_page_in_two_nodes() -> None:
    """A07"""
    with names_fault("is in 2 places of the tree") as (_, upper, leaf):
        leaf.pages = upper.pages[:1]


def test_the_check_names_a_page_both_free_and_in_the_tree() -> None:
    """A07"""
    with names_fault("page 0 is both free and in the tree") as (cache, _, _):
        cache._allocator._free.append(0)


def test_the_check_names_an_unlocked_page_counted_as_protected() -> None:
    """A07"""
    with names_fault("1 protected pages are counted but the tree has 0", "2 evictable pages are counted") as (
        cache,
        _,
        _,
    ):
        cache._tree.num_protected += 1
        cache._tree.num_evictable -= 1


def test_the_check_names_a_page_that_a_request_and_the_tree_both_hold() -> None:
    """A07"""
    cache, _, leaf = planted()
    assert f"page {leaf.pages[0]} is both in the tree and owned by a request" in cache.check_invariants(leaf.pages)


def test_the_check_names_a_child_that_is_locked_more_than_its_parent() -> None:
    """A07"""
    with names_fault("1 locks below a node that counts 0") as (_, _, leaf):
        leaf.lock_ref = 1


def test_the_check_names_a_negative_lock_count() -> None:
    """A07"""
    with names_fault("the lock count is -1") as (_, _, leaf):
        leaf.lock_ref = -1


def test_the_check_names_a_receipt_that_nobody_holds() -> None:
    """A07"""
    with names_fault("0 receipts are counted but the tree has 1") as (_, upper, _):
        assert upper.parent is not None
        upper.parent.lock_ref += 1


def test_the_check_names_an_empty_edge() -> None:
    """A07"""
    with names_fault("an edge is empty") as (_, _, leaf):
        leaf.edge, leaf.key, leaf.pages, leaf.num_pages = b"", b"", (), 0


def test_the_check_names_a_child_under_a_wrong_key() -> None:
    """A07"""
    with names_fault("filed under another key", "not keyed by its first page") as (_, _, leaf):
        leaf.key = token_key([6, 6])


def test_the_check_names_a_leaf_that_could_never_be_evicted() -> None:
    """A07"""
    with names_fault("the eviction order holds") as (cache, _, leaf):
        cache._tree.order.withdraw(leaf)


def test_the_check_names_a_page_that_left_the_tree_and_went_nowhere() -> None:
    """A07"""
    with names_fault("is recorded as stored in the tree but found owned", "is lost") as (_, upper, leaf):
        del upper.children[leaf.key]


def test_every_computed_position_has_one_page_and_one_owner_at_the_end() -> None:
    """A09: prompt 6, 5 new tokens; the last sampled token has no KV, and its reserved page goes back once."""
    cache = classic(num_pages=32, page_size=1)
    receipt = cache.lock(match(cache, range(5)))
    table: list[int] = []
    for computed in (4, 6):  # chunks of 4
        table += allocate(cache, computed - len(table))
        inserted = cache.insert(receipt, token_key(range(computed)), table)
        receipt = inserted.receipt
    table += allocate(cache, 5)  # decode slots up to length 11, the last of them planned ahead and never written
    rest = cache.finish(receipt, token_key(range(10)), table)
    assert rest == table[10:]
    cache.release(rest)
    assert cache.counts() == PageCounts(free=22, owned=0, evictable=10, protected=0)
    assert cache.check_invariants([]) == []


def test_pages_stored_in_the_middle_of_a_prefill_are_the_trees_when_the_request_is_aborted() -> None:
    """A15"""
    cache = PrefixCache(num_pages=6, page_size=4)
    prompt = list(range(24))
    receipt = cache.lock(match(cache, prompt[:-1]))
    table = allocate(cache, 6)
    inserted = cache.insert(receipt, token_key(prompt[:8]), table)
    inserted = cache.insert(inserted.receipt, token_key(prompt[:16]), table)
    with pytest.raises(AssertionError, match="stored in the tree, not owned"):
        cache.release(table)
    cache.unlock(inserted.receipt)
    cache.release(table[inserted.receipt.num_pages :])
    assert cache.check_invariants([]) == []
    assert cache.counts() == PageCounts(free=2, owned=0, evictable=4, protected=0)
    assert match(cache, prompt).pages == tuple(table[:4])
    serve(cache, [99] * 24)
    assert cached(cache, prompt) == 0


def test_only_the_shortfall_is_evicted() -> None:
    """A17"""
    cache = PrefixCache(num_pages=20, page_size=1)
    serve(cache, range(12))
    allocate(cache, 10)
    assert cache.counts() == PageCounts(free=0, owned=10, evictable=10, protected=0)


def test_an_eviction_that_cannot_be_enough_is_refused_and_ends() -> None:
    """A17"""
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, range(6))
    assert cache.allocate(9) == Shortfall(needed=9, available=8)
    assert cache.counts() == PageCounts(free=2, owned=0, evictable=6, protected=0)
    assert cache.evict(100) == 6
