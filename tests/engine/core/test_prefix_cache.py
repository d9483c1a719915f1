"""The prefix cache against a naive one, step by step, and the promises its docstrings make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sapwood_contract.launch import EvictionPolicyName
from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.prefix_cache import (
    Match,
    PageCounts,
    PrefixCache,
    Receipt,
    Shortfall,
    token_key,
)
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.step import Evicted
from support_prefix_cache import (
    RANKS,
    SPACE,
    NaiveCache,
    StoredPage,
    Tokens,
    allocate,
    cached,
    match,
    serve,
)

SPACES = (SPACE, Namespace("model", adapter_id="a"), Namespace("model", tenant_salt="a"))
PAGES = 14

Slot = tuple[Namespace, Tokens]
"""What a slot's KV depends on: the namespace and all tokens up to its own."""


@dataclass
class Running:
    """A request as the test keeps it."""

    namespace: Namespace
    tokens: Tokens
    table: list[int]
    receipt: Receipt
    path: list[StoredPage]


class AgainstTheNaiveCache(RuleBasedStateMachine):
    """Random operations on both caches; every visible answer must agree, and KV must be what it should be."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        policy=st.sampled_from(sorted(RANKS)),
        partial_pages=st.booleans(),
    )
    def create(self, page_size: int, policy: PolicyName, partial_pages: bool) -> None:
        self.page_size = page_size
        self.cache = PrefixCache(
            num_pages=PAGES, page_size=page_size, policy=policy, partial_pages=partial_pages
        )
        self.naive = NaiveCache(page_size, policy, partial_pages and page_size > 1)
        self.running: list[Running] = []
        self.owned: set[int] = set()
        self.kv: dict[int, list[Slot]] = {}
        self.history: list[tuple[Namespace, Tokens]] = []
        self.evicted_tokens = 0
        self.now = 0

    def tokens(self, blocks: list[int], rest: list[int]) -> Tokens:
        """Repeat each block over a page, so that prefixes are shared at every page size."""
        return (*(block for block in blocks for _ in range(self.page_size)), *rest[: self.page_size])

    @rule(
        namespace=st.sampled_from(SPACES),
        blocks=st.lists(st.integers(0, 1), max_size=4),
        rest=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    )
    def begin(self, namespace: Namespace, blocks: list[int], rest: list[int]) -> None:
        tokens = self.tokens(blocks, rest)
        self.history = [*self.history[-7:], (namespace, tokens)]
        limit = len(tokens) - 1
        found = self.cache.match(namespace, token_key(tokens), limit_tokens=limit)
        path = self.naive.whole_pages(namespace, tokens[:limit])
        assert found.pages == tuple(page.page for page in path)
        partial = self.naive.num_partial_tokens(namespace, tokens[:limit])
        assert found.num_usable_tokens == len(path) * self.page_size + partial
        if path:
            self.naive.use(path)
        copied = self.copied_slots(namespace, tokens, found)
        receipt = self.cache.lock(found)
        for page in path:
            page.locks += 1
        needed = -(-len(tokens) // self.page_size) - len(path)
        pages = self.allocate(needed)
        if isinstance(pages, Shortfall):
            self.cache.unlock(receipt)
            self.naive.unlock(path)
            return
        if copied:
            self.kv[pages[0]] = copied
        self.running.append(Running(namespace, tokens, [*found.pages, *pages], receipt, path))

    def copied_slots(self, namespace: Namespace, tokens: Tokens, found: Match) -> list[Slot]:
        """Check the KV of everything matched; return what the partial page's slots hold."""
        for index, page in enumerate(found.pages):
            start = index * self.page_size
            assert self.kv[page] == slots(namespace, tokens, start, start + self.page_size)
        if found.partial is None:
            return []
        assert 1 <= found.partial.num_tokens < self.page_size
        copied = self.kv[found.partial.page][: found.partial.num_tokens]
        assert copied == slots(namespace, tokens, found.num_tokens, found.num_usable_tokens)
        return copied

    def allocate(self, needed: int) -> list[int] | Shortfall:
        before = self.cache.counts()
        pages = self.cache.allocate(needed)
        if isinstance(pages, Shortfall):
            assert pages == Shortfall(needed, before.free + before.evictable)
            assert pages.available < needed
            assert self.cache.counts() == before
            return pages
        assert len(pages) == needed
        assert not self.owned & set(pages)
        self.evicted_tokens += self.naive.evict(max(0, needed - before.free))
        self.owned |= set(pages)
        for page in pages:
            self.kv[page] = []
        return pages

    def compute(self, request: Running, num_tokens: int) -> None:
        """Write KV up to ``num_tokens``: into the request's own pages, and never into one of the tree's."""
        for position in range(num_tokens):
            page = request.table[position // self.page_size]
            slot = (request.namespace, request.tokens[: position + 1])
            if len(self.kv[page]) > position % self.page_size:
                assert self.kv[page][position % self.page_size] == slot
            else:
                assert page in self.owned
                self.kv[page].append(slot)

    def release(self, pages: Sequence[int]) -> None:
        self.cache.release(pages)
        self.owned -= set(pages)

    def pick(self, at: int) -> Running | None:
        return self.running[at % len(self.running)] if self.running else None

    @rule(at=st.integers(0, 9), share=st.floats(0, 1), priority=st.integers(-1, 2))
    def store_unfinished(self, at: int, share: float, priority: int) -> None:
        request = self.pick(at)
        if request is None or request.receipt.root.flushed:
            return
        computed = max(len(request.path) * self.page_size, int(share * len(request.tokens)))
        self.compute(request, computed)
        key = token_key(request.tokens[:computed])
        inserted = self.cache.insert(request.receipt, key, request.table, priority=priority)
        assert inserted.first == len(request.path)
        request.path = self.naive.insert(
            request.namespace, request.tokens[:computed], request.table, request.path, priority
        )
        self.owned -= set(request.table[: len(request.path)])
        self.owned |= set(inserted.duplicates)
        request.table[inserted.first : inserted.first + len(inserted.pages)] = inserted.pages
        assert request.table[: len(request.path)] == [page.page for page in request.path]
        assert not set(request.table) & set(inserted.duplicates)
        request.receipt = inserted.receipt
        self.release(inserted.duplicates)

    @rule(at=st.integers(0, 9), priority=st.integers(-1, 2), pin=st.integers(0, 6))
    def finish(self, at: int, priority: int, pin: int) -> None:
        request = self.pick(at)
        if request is None:
            return
        self.running.remove(request)
        tokens, table = request.tokens, request.table
        self.compute(request, len(tokens))
        pinned_until = self.now + pin if pin else 0
        rest = self.cache.finish(
            request.receipt, token_key(tokens), table, priority=priority, pinned_until=pinned_until
        )
        path = request.path
        if not request.receipt.root.flushed:
            path = self.naive.insert(request.namespace, tokens, table, path, priority)
            for page in path:
                page.expires = max(page.expires, pinned_until)
            self.naive.insert_tail(request.namespace, tokens, table[-1], priority, pinned_until)
        self.naive.unlock(path)
        self.owned -= set(table) - set(rest)
        assert set(rest) <= self.owned
        self.release(rest)

    @rule(at=st.integers(0, 9))
    def abort(self, at: int) -> None:
        request = self.pick(at)
        if request is None:
            return
        self.running.remove(request)
        self.cache.unlock(request.receipt)
        self.naive.unlock(request.path)
        self.release(request.table[len(request.path) :])

    @rule(namespace=st.sampled_from([None, *SPACES]), really=st.integers(0, 3))
    def flush(self, namespace: Namespace | None, really: int) -> None:
        if really == 0:
            dropped = self.cache.flush(namespace)
            assert dropped == self.naive.flush(namespace)
            self.evicted_tokens += dropped

    @rule(num_pages=st.integers(1, 4))
    def evict(self, num_pages: int) -> None:
        dropped = self.cache.evict(num_pages)
        assert dropped == self.naive.evict(num_pages)
        self.evicted_tokens += dropped

    @rule(ticks=st.integers(1, 4))
    def expire(self, ticks: int) -> None:
        self.now += ticks
        dropped = self.cache.expire(self.now)
        assert dropped == self.naive.expire(self.now)
        self.evicted_tokens += dropped

    @invariant()
    def is_healthy(self) -> None:
        assert self.cache.check_invariants(self.owned) == []
        stored = self.naive.stored
        protected = sum(page.locks > 0 for page in stored)
        assert self.cache.counts() == PageCounts(
            free=PAGES - len(stored) - len(self.owned),
            owned=len(self.owned),
            evictable=len(stored) - protected,
            protected=protected,
        )

    @invariant()
    def peek_sees_what_is_stored(self) -> None:
        for namespace, tokens in self.history:
            num_whole = len(self.naive.whole_pages(namespace, tokens)) * self.page_size
            expected = num_whole + self.naive.num_partial_tokens(namespace, tokens)
            assert cached(self.cache, tokens, namespace) == expected

    @invariant()
    def evictions_are_all_told(self) -> None:
        assert sum(event.num_tokens for event in self.cache.take_evicted()) == self.evicted_tokens
        self.evicted_tokens = 0

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        while self.running:
            self.abort(0)
        self.cache.flush()
        assert self.cache.counts() == PageCounts(free=PAGES, owned=0, evictable=0, protected=0)
        assert self.cache.num_nodes == self.cache.num_locked_nodes == 0
        assert self.cache.check_invariants([]) == []


def slots(namespace: Namespace, tokens: Tokens, start: int, end: int) -> list[Slot]:
    return [(namespace, tokens[: position + 1]) for position in range(start, end)]


TestTheCacheAgainstANaiveOne = AgainstTheNaiveCache.TestCase
TestTheCacheAgainstANaiveOne.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None
)


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


def test_a_snapshot_lists_parents_before_children_within_its_bound() -> None:
    cache = PrefixCache(num_pages=32, page_size=2)
    for last in range(6):
        serve(cache, [1, 2, 3, 4, last, last])
    serve(cache, [7, 8], SPACES[1])
    whole = cache.snapshot(max_nodes=100, token_ids=True)
    assert whole["num_nodes"] == cache.num_nodes == 8
    assert not whole["truncated"]
    first, second = whole["namespaces"]
    assert first["namespace"] == {
        "model_revision": "model",
        "adapter_id": None,
        "extra_key": None,
        "tenant_salt": None,
    }
    assert [node["token_ids"] for node in first["nodes"]] == [[1, 2, 3, 4], *([n, n] for n in range(6))]
    assert [node["parent"] for node in first["nodes"]] == [None, 0, 0, 0, 0, 0, 0]
    assert [node["num_tokens"] for node in second["nodes"]] == [2]
    assert cache.max_depth() == 2
    part = cache.snapshot(max_nodes=3)
    assert part["truncated"]
    assert [len(space["nodes"]) for space in part["namespaces"]] == [3]
    assert "token_ids" not in part["namespaces"][0]["nodes"][0]


def test_a_key_is_the_bytes_of_its_tokens() -> None:
    assert token_key([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0])
