"""The number by which a node of the tree is known from one snapshot to the next."""

from __future__ import annotations

from typing import Any

from support_prefix_cache import match, serve

from sapwood_engine.core.prefix_cache import PrefixCache


def nodes_of(cache: PrefixCache) -> list[dict[str, Any]]:
    return [node for space in cache.snapshot(max_nodes=100, token_ids=99)["namespaces"] for node in space["nodes"]]


def serials_of(cache: PrefixCache) -> dict[tuple[int, ...], int]:
    return {tuple(node["token_ids"]): node["serial"] for node in nodes_of(cache)}


def test_at_a_split_the_lower_part_keeps_its_serial_and_the_upper_part_has_a_new_one() -> None:
    cache = PrefixCache(num_pages=16, page_size=1)
    serve(cache, [1, 2, 3, 4])
    assert serials_of(cache) == {(1, 2, 3, 4): 1}
    serve(cache, [1, 2, 8, 9])
    assert serials_of(cache) == {(1, 2): 2, (3, 4): 1, (8, 9): 3}
    match(cache, [1])
    assert serials_of(cache) == {(1,): 4, (2,): 2, (3, 4): 1, (8, 9): 3}


def test_what_comes_again_after_it_went_is_another_node() -> None:
    cache = PrefixCache(num_pages=16, page_size=1)
    serve(cache, [1, 2])
    cache.evict(1)
    assert serials_of(cache) == {(1,): 1}  # it lost its end and is still the same
    cache.evict(1)
    assert serials_of(cache) == {}
    serve(cache, [1, 2])
    assert serials_of(cache) == {(1, 2): 2}


def test_looking_at_a_node_or_locking_it_leaves_its_serial() -> None:
    cache = PrefixCache(num_pages=16, page_size=1)
    serve(cache, [1, 2])
    before = serials_of(cache)
    receipt = cache.lock(match(cache, [1, 2]))
    assert [(node["lock_ref"], node["serial"]) for node in nodes_of(cache)] == [(1, 1)]
    cache.unlock(receipt)
    assert serials_of(cache) == before
