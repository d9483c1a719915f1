"""The shape of the tree: splits, locks, namespaces, and the closest partly matching page."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_prefix_cache import SPACE, allocate, cached, match, serve

from sapwood_engine.core.prefix_cache import PageCounts, PrefixCache, token_key
from sapwood_engine.core.radix_node import NO_CHILDREN, ChildIndex, Node, common_prefix_bytes
from sapwood_engine.core.request import Namespace


def lcp(left: bytes, right: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@given(
    before=st.binary(max_size=8),
    shared=st.binary(max_size=40),
    left=st.binary(max_size=8),
    right=st.binary(max_size=8),
    limit=st.integers(0, 60),
)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_the_common_prefix_is_what_comparing_byte_by_byte_finds(
    before: bytes, shared: bytes, left: bytes, right: bytes, limit: int
) -> None:
    expected = min(limit, lcp(shared + left, shared + right))
    assert common_prefix_bytes(before + shared + left, len(before), shared + right, limit) == expected


def leaf(key: bytes) -> Node:
    return Node(parent=None, edge=key, key=key, pages=(0,), start=0)


@given(st.data())
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_the_closest_of_many_children_is_a_neighbour_in_order(data: st.DataObject) -> None:
    """Keys come and go (evicted ones stay in the index unnoticed); the answer is that of a scan over the
    living.
    """
    keys = st.binary(min_size=1, max_size=3).map(lambda key: bytes(byte % 3 for byte in key))
    children = {key: leaf(key) for key in data.draw(st.sets(keys, min_size=1))}
    index = ChildIndex(children, chunk_keys=2)  # small chunks split and empty within few keys
    for key in data.draw(st.lists(keys, max_size=40)):
        if key in children and len(children) > 1 and data.draw(st.booleans()):
            del children[key]
        elif key not in children:
            children[key] = leaf(key)
            index.add(key, children)
        assert index.holds(children)
        query = data.draw(keys)
        best = max(lcp(query, key) for key in children)
        assert max(lcp(query, key) for key in index.neighbours(query, children)) == best


def test_the_index_of_children_does_not_grow_with_those_that_went() -> None:
    children = {bytes([number]): leaf(bytes([number])) for number in range(8)}
    index = ChildIndex(children, chunk_keys=16)
    for number in range(5000):
        key = number.to_bytes(4, "big")
        children[key] = leaf(key)
        index.add(key, children)
        if number % 3:
            index.neighbours(key, children)
        del children[key]
    assert index.num_keys <= 2 * len(children) + 16 + 1


def test_the_best_partial_page_is_found_among_many_children() -> None:
    page_size = 8
    cache = PrefixCache(num_pages=1200, page_size=page_size)
    random = Random(1)
    prompts = [[random.randrange(4) for _ in range(page_size)] for _ in range(700)]
    for prompt in prompts:
        serve(cache, prompt)
    for _ in range(60):
        query = [random.randrange(4) for _ in range(page_size - 1)]
        shared = max(lcp(bytes(query), bytes(prompt)) for prompt in prompts)
        assert cached(cache, query) == shared
        found = match(cache, query)
        assert (found.partial.num_tokens if found.partial else 0) == shared
    assert cache.check_invariants([]) == []


def test_a_split_at_either_end_of_an_edge_is_refused() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2, 3])
    node = match(cache, [1, 2, 3]).node
    for num_bytes in (0, 12):
        with pytest.raises(AssertionError, match="split of 3 pages at"):
            cache._tree._split(node, num_bytes)


def test_a_match_splits_at_most_one_edge() -> None:
    cache = PrefixCache(num_pages=16, page_size=1)
    serve(cache, [1, 2, 3, 4])
    serve(cache, [1, 2, 7, 8, 9])
    before = cache.num_nodes
    match(cache, [1, 2, 7, 8])
    assert cache.num_nodes == before + 1
    match(cache, [1, 2, 7, 8])
    assert cache.num_nodes == before + 1


def test_peek_answers_as_match_and_leaves_no_trace() -> None:
    cache = PrefixCache(num_pages=16, page_size=4)
    serve(cache, range(14))
    before = cache.snapshot(max_nodes=100)
    assert cached(cache, [*range(6), 99]) == 6
    assert cache.snapshot(max_nodes=100) == before
    assert match(cache, [*range(6), 99]).num_usable_tokens == 6
    assert cache.snapshot(max_nodes=100) != before


def test_a_receipt_released_twice_is_an_error() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2, 3])
    receipt = cache.lock(match(cache, [1, 2, 3]))
    cache.unlock(receipt)
    with pytest.raises(AssertionError, match="released already"):
        cache.unlock(receipt)
    assert cache.counts().protected == 0


def test_a_receipt_spent_by_an_insert_cannot_be_released() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    receipt = cache.lock(match(cache, [1, 2]))
    inserted = cache.insert(receipt, token_key([1, 2]), allocate(cache, 2))
    with pytest.raises(AssertionError, match="released already"):
        cache.unlock(receipt)
    cache.unlock(inserted.receipt)


def test_a_match_that_was_evicted_before_it_was_locked_is_refused() -> None:
    cache = PrefixCache(num_pages=4, page_size=1)
    serve(cache, [1, 2, 3, 4])
    whole, part = match(cache, [1, 2, 3, 4]), match(cache, [1, 2])
    allocate(cache, 1)
    with pytest.raises(AssertionError, match="stale"):
        cache.lock(whole)
    cache.unlock(cache.lock(part))
    allocate(cache, 3)
    with pytest.raises(AssertionError, match="left the tree"):
        cache.lock(part)


def test_a_split_between_match_and_lock_does_not_change_what_is_locked() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2, 3, 4])
    found = match(cache, [1, 2, 3, 4])
    match(cache, [1, 2])
    receipt = cache.lock(found)
    assert cache.counts().protected == 4
    cache.unlock(receipt)


def test_a_page_table_that_disagrees_with_the_receipt_is_refused() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2, 3])
    receipt = cache.lock(match(cache, [1, 2, 3]))
    with pytest.raises(AssertionError, match="is not page"):
        cache.insert(receipt, token_key([1, 2, 3, 4]), allocate(cache, 4))


def test_namespaces_are_compared_field_by_field() -> None:
    spaces = [
        Namespace("m"),
        Namespace("m", adapter_id="ab"),
        Namespace("m", extra_key="ab"),
        Namespace("m", tenant_salt="ab"),
        Namespace("m", adapter_id="a", extra_key="b"),
        Namespace("m", adapter_id="ab", extra_key=""),
        Namespace("ma", adapter_id="b"),
    ]
    cache = PrefixCache(num_pages=32, page_size=1)
    for number, namespace in enumerate(spaces):
        assert all(cached(cache, [1, 2], other) == 0 for other in spaces[number:])
        serve(cache, [1, 2], namespace)
        assert cached(cache, [1, 2], namespace) == 2


def test_an_emptied_namespace_leaves_nothing_behind() -> None:
    cache = PrefixCache(num_pages=4, page_size=1)
    for salt in range(20):
        namespace = Namespace("m", tenant_salt=str(salt))
        match(cache, [1], namespace)
        serve(cache, [1, 2], namespace)
    assert len(cache.snapshot(max_nodes=100)["namespaces"]) == 2
    allocate(cache, 4)
    assert cache.snapshot(max_nodes=100)["namespaces"] == []
    assert NO_CHILDREN == {}


def test_a_tail_is_superseded_by_what_continues_it() -> None:
    cache = PrefixCache(num_pages=8, page_size=4)
    serve(cache, [1, 2])
    assert cache.counts().evictable == 1
    serve(cache, [1, 2, 3])
    assert cache.counts().evictable == 1
    serve(cache, [1, 2, 3, 4, 5])
    assert cache.counts() == PageCounts(free=6, owned=0, evictable=2, protected=0)
    assert cached(cache, [1, 2, 3, 4, 5]) == 5


def test_a_tail_that_the_tree_knows_already_goes_back_to_its_owner() -> None:
    cache = PrefixCache(num_pages=8, page_size=4)
    serve(cache, [1, 2, 3, 4, 5])
    assert serve(cache, [1, 2, 3]) == 2
    assert cache.counts() == PageCounts(free=6, owned=0, evictable=2, protected=0)


def test_flushed_pages_in_use_match_nobody_and_go_when_unlocked() -> None:
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2, 3, 4])
    receipt = cache.lock(match(cache, [1, 2]))
    table = [*match(cache, [1, 2]).pages, *allocate(cache, 2)]
    assert cache.flush() == 2
    assert cached(cache, [1, 2]) == 0
    assert cache.counts() == PageCounts(free=4, owned=2, evictable=0, protected=2)
    # What the running request computes on top of flushed KV must not be stored either.
    inserted = cache.insert(receipt, token_key([1, 2, 5, 6]), table)
    assert (inserted.first, inserted.pages, inserted.duplicates) == (2, (), ())
    rest = cache.finish(inserted.receipt, token_key([1, 2, 5, 6]), table)
    assert rest == table[2:]
    cache.release(rest)
    assert cache.counts() == PageCounts(free=8, owned=0, evictable=0, protected=0)
    assert cache.check_invariants([]) == []


def test_a_flush_of_one_namespace_leaves_the_others() -> None:
    other = Namespace("m", adapter_id="a")
    cache = PrefixCache(num_pages=8, page_size=1)
    serve(cache, [1, 2])
    serve(cache, [1, 2], other)
    assert cache.flush(other) == 2
    assert (cached(cache, [1, 2], SPACE), cached(cache, [1, 2], other)) == (2, 0)


def test_a_leaf_that_lost_its_end_grows_again_from_where_it_was_cut() -> None:
    cache = PrefixCache(num_pages=16, page_size=1)
    serve(cache, [1, 2, 3, 4, 5, 6])
    cache.evict(1)
    serve(cache, [1, 2, 3, 4, 5, 7, 8])
    pages = match(cache, [1, 2, 3, 4, 5, 7]).pages
    assert len(pages) == len(set(pages)) == 6
    assert cached(cache, [1, 2, 3, 4, 5, 6]) == 5
    assert cache.check_invariants([]) == []
