"""The prefix cache and the naive one side by side: each operation on both, every visible answer compared."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from support_prefix_cache import SPACE, Marks, NaiveCache, StoredPage

from sapwood_contract import keys as block_keys
from sapwood_engine.core.block_log import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.keys import TOKENS_ONLY, KeyFormat, TokenKey
from sapwood_engine.core.prefix_cache import Match, PageCounts, PrefixCache, Receipt, Shortfall
from sapwood_engine.core.radix_tree import iter_nodes
from sapwood_engine.core.request import ContentSpan, Namespace

SPACES = (SPACE, Namespace("model", adapter_id="a"), Namespace("model", tenant_salt="a"))
PAGES = 12

Slot = tuple[Namespace, Marks]
"""What a slot's KV depends on: the namespace and all marks up to its own."""

_PLACEHOLDER = 7
_CONTENT_MARK = 100
"""Content is told from tokens, and from other content, by marks that no token has."""


@dataclass(frozen=True)
class Prompt:
    """Token ids with their content, and one mark a position, reckoned without the cache's keys."""

    token_ids: tuple[int, ...]
    content: tuple[ContentSpan, ...]
    marks: Marks

    def key(self, keys: KeyFormat, num_tokens: int | None = None) -> TokenKey:
        """The key of the first ``num_tokens``: spans that begin there are cut with them."""
        end = len(self.token_ids) if num_tokens is None else num_tokens
        whole = keys.key(self.token_ids, self.content)
        return whole[: keys.num_units(end) * keys.unit_bytes]


@dataclass
class Running:
    """A request as the test keeps it."""

    namespace: Namespace
    prompt: Prompt
    table: list[int]
    receipt: Receipt
    path: list[StoredPage]


class BlockIndex:
    """What one has who only hears of blocks, and trusts nothing of it."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            match event:
                case BlocksStored(parent=parent, hashes=hashes):
                    assert parent is None or parent in self.blocks
                    assert not self.blocks & set(hashes)
                    self.blocks |= set(hashes)
                case BlocksRemoved(hashes):
                    assert set(hashes) <= self.blocks
                    self.blocks -= set(hashes)
                case BlocksCleared():
                    self.blocks.clear()


class Comparison:
    """Both caches and the requests that run on them; KV is written down slot by slot and must always be
    right.
    """

    def __init__(
        self, *, page_size: int, policy: PolicyName, partial_pages: bool, keys: KeyFormat = TOKENS_ONLY
    ) -> None:
        self.page_size = page_size
        self.keys = keys
        self.cache = PrefixCache(
            num_pages=PAGES,
            page_size=page_size,
            policy=policy,
            partial_pages=partial_pages,
            key_unit=keys.unit,
            content=keys.content,
            log_blocks=keys == TOKENS_ONLY,
        )
        self.heard = BlockIndex()
        self.naive = NaiveCache(page_size, policy, partial_pages and page_size > 1)
        self.running: list[Running] = []
        self.owned: set[int] = set()
        self.kv: dict[int, list[Slot]] = {}
        self.history: list[tuple[Namespace, Prompt]] = []
        self.evicted_tokens = 0
        self.now = 0

    def prompt(self, blocks: list[int], rest: list[int]) -> Prompt:
        """Repeat each block over a page, so that prefixes are shared at every page size.

        Where the keys tell content, each block is one: placeholders, all the same.
        """
        size = self.page_size
        ids = [block for block in blocks for _ in range(size)]
        depends = list(ids)
        content: tuple[ContentSpan, ...] = ()
        if self.keys.content:
            content = tuple(ContentSpan(at * size, size, bytes([block])) for at, block in enumerate(blocks))
            depends = [_CONTENT_MARK + block for block in ids]
            ids = [_PLACEHOLDER] * len(ids)
        ids += rest[:size]
        depends += rest[:size]
        behind: list[tuple[int, ...]] = [(token,) for token in depends[1:]] if self.keys.unit == "pairs" else []
        marks = tuple((token, *(behind[at] if at < len(behind) else ())) for at, token in enumerate(depends))
        return Prompt(tuple(ids), content, marks)

    def units(self, prompt: Prompt, num_tokens: int) -> Marks:
        """The marks of the units that the first ``num_tokens`` tokens make."""
        return prompt.marks[: num_tokens - (self.keys.unit == "pairs")] if num_tokens else ()

    def begin(self, namespace: Namespace, blocks: list[int], rest: list[int]) -> None:
        prompt = self.prompt(blocks, rest)
        num_tokens = len(prompt.token_ids)
        self.history = [*self.history[-7:], (namespace, prompt)]
        limit = num_tokens - 1
        found = self.cache.match(namespace, prompt.key(self.keys), limit_tokens=limit)
        path = self.naive.whole_pages(namespace, prompt.marks[:limit])
        assert found.pages == tuple(page.page for page in path)
        partial = self.naive.num_partial_tokens(namespace, prompt.marks[:limit])
        assert found.num_usable_tokens == len(path) * self.page_size + partial
        if path:
            self.naive.use(path)
        copied = self.copied_slots(namespace, prompt, found)
        receipt = self.cache.lock(found)
        for page in path:
            page.locks += 1
        needed = -(-num_tokens // self.page_size) - len(path)
        pages = self.allocate(needed)
        if isinstance(pages, Shortfall):
            self.cache.unlock(receipt)
            self.naive.unlock(path)
            self.enforce_quota(namespace)
            return
        if copied:
            self.kv[pages[0]] = copied
        self.running.append(Running(namespace, prompt, [*found.pages, *pages], receipt, path))

    def look(self, namespace: Namespace, blocks: list[int], rest: list[int]) -> None:
        """Match and go away, as a request does that finds no room."""
        prompt = self.prompt(blocks, rest)
        num_tokens = len(prompt.token_ids)
        path = self.naive.whole_pages(namespace, self.units(prompt, num_tokens))
        found = self.cache.match(namespace, prompt.key(self.keys), limit_tokens=num_tokens)
        assert found.pages == tuple(page.page for page in path)
        if path:
            self.naive.use(path)

    def copied_slots(self, namespace: Namespace, prompt: Prompt, found: Match) -> list[Slot]:
        """Check the KV of everything matched; return what the partial page's slots hold."""
        for index, page in enumerate(found.pages):
            start = index * self.page_size
            assert self.kv[page] == slots(namespace, prompt, start, start + self.page_size)
        if found.partial is None:
            return []
        assert 1 <= found.partial.num_tokens < self.page_size
        copied = self.kv[found.partial.page][: found.partial.num_tokens]
        assert copied == slots(namespace, prompt, found.num_tokens, found.num_usable_tokens)
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
            slot = (request.namespace, request.prompt.marks[: position + 1])
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

    def store_unfinished(self, at: int, share: float, priority: int) -> None:
        request = self.pick(at)
        if request is None or request.receipt.root.flushed:
            return
        prompt = request.prompt
        computed = max(len(request.path) * self.page_size, int(share * len(prompt.token_ids)))
        self.compute(request, computed)
        key = prompt.key(self.keys, computed)
        units = self.units(prompt, computed)
        inserted = self.cache.insert(request.receipt, key, request.table, priority=priority)
        assert inserted.first == len(request.path)
        if len(units) >= len(request.path) * self.page_size:
            request.path = self.naive.insert(request.namespace, units, request.table, request.path, priority)
        self.owned -= set(request.table[: len(request.path)])
        self.owned |= set(inserted.duplicates)
        request.table[inserted.first : inserted.first + len(inserted.pages)] = inserted.pages
        assert request.table[: len(request.path)] == [page.page for page in request.path]
        assert not set(request.table) & set(inserted.duplicates)
        request.receipt = inserted.receipt
        self.enforce_quota(request.namespace)
        self.release(inserted.duplicates)

    def finish(self, at: int, priority: int, pin: int) -> None:
        request = self.pick(at)
        if request is None:
            return
        self.running.remove(request)
        prompt, table = request.prompt, request.table
        num_tokens = len(prompt.token_ids)
        self.compute(request, num_tokens)
        pinned_until = self.now + pin if pin else 0
        rest = self.cache.finish(
            request.receipt, prompt.key(self.keys), table, priority=priority, pinned_until=pinned_until
        )
        path = request.path
        if not request.receipt.root.flushed:
            units = self.units(prompt, num_tokens)
            path = self.naive.insert(request.namespace, units, table, path, priority)
            for page in path:
                page.expires = max(page.expires, pinned_until)
            tail = table[min(len(units) // self.page_size, len(table) - 1)]
            self.naive.insert_tail(request.namespace, units, tail, priority, pinned_until)
        self.naive.unlock(path)
        self.enforce_quota(request.namespace)
        self.owned -= set(table) - set(rest)
        assert set(rest) <= self.owned
        self.release(rest)

    def abort(self, at: int) -> None:
        request = self.pick(at)
        if request is None:
            return
        self.running.remove(request)
        self.cache.unlock(request.receipt)
        self.naive.unlock(request.path)
        self.enforce_quota(request.namespace)
        self.release(request.table[len(request.path) :])

    def flush(self, namespace: Namespace | None) -> None:
        dropped = self.cache.flush(namespace)
        assert dropped == self.naive.flush(namespace)
        self.evicted_tokens += dropped

    def set_quota(self, namespace: Namespace, num_pages: int | None) -> None:
        self.cache.set_quota(namespace, None if num_pages is None else num_pages * self.page_size)
        self.naive.quotas.pop(namespace, None)
        if num_pages is not None:
            self.naive.quotas[namespace] = num_pages
        self.enforce_quota(namespace)

    def enforce_quota(self, namespace: Namespace) -> None:
        """The cache has done so by itself."""
        self.evicted_tokens += self.naive.enforce_quota(namespace)

    def evict(self, num_pages: int) -> None:
        dropped = self.cache.evict(num_pages)
        assert dropped == self.naive.evict(num_pages)
        self.evicted_tokens += dropped

    def expire(self, ticks: int) -> None:
        self.now += ticks
        dropped = self.cache.expire(self.now)
        assert dropped == self.naive.expire(self.now)
        self.evicted_tokens += dropped

    def agrees(self) -> None:
        """Compare everything that can be seen without an operation."""
        assert self.cache.check_invariants(self.owned) == []
        stored = self.naive.stored
        assert stored_pages(self.cache) == sorted(page.page for page in stored)
        protected = sum(page.locks > 0 for page in stored)
        assert self.cache.counts() == PageCounts(
            free=PAGES - len(stored) - len(self.owned),
            owned=len(self.owned),
            evictable=len(stored) - protected,
            protected=protected,
        )

        for namespace in SPACES:
            kept = [page for page in stored if page.namespace == namespace and not page.flushed]
            usage = self.cache.usage(namespace)
            assert usage.kv_tokens == len(kept) * self.page_size
            assert usage.kv_locked_tokens == sum(page.locks > 0 for page in kept) * self.page_size

        for namespace, prompt in self.history:
            units = self.units(prompt, len(prompt.token_ids))
            num_whole = len(self.naive.whole_pages(namespace, units)) * self.page_size
            expected = num_whole + self.naive.num_partial_tokens(namespace, units)
            assert self.cache.peek(namespace, prompt.key(self.keys), limit_tokens=len(prompt.token_ids)) == expected

        assert sum(event.num_tokens for event in self.cache.take_evicted()) == self.evicted_tokens
        self.evicted_tokens = 0

        if self.keys == TOKENS_ONLY:
            expected_blocks = {hash_of(page, self.page_size) for page in stored if is_block(page, self.page_size)}
            self.heard.apply(self.cache.take_block_events())
            assert self.heard.blocks == expected_blocks
            anew = BlockIndex()
            anew.apply(self.cache.block_snapshot())
            assert anew.blocks == expected_blocks

    def end(self) -> None:
        while self.running:
            self.abort(0)
        self.cache.flush()
        assert self.cache.counts() == PageCounts(free=PAGES, owned=0, evictable=0, protected=0)
        assert self.cache.num_nodes == self.cache.num_locked_nodes == 0
        assert self.cache.check_invariants([]) == []


def stored_pages(cache: PrefixCache) -> list[int]:
    roots = (*cache._tree.roots.values(), *cache._tree.flushed_roots)
    return sorted(page for root in roots for node in iter_nodes(root) for page in node.live_pages())


def slots(namespace: Namespace, prompt: Prompt, start: int, end: int) -> list[Slot]:
    return [(namespace, prompt.marks[: position + 1]) for position in range(start, end)]


def is_block(page: StoredPage, page_size: int) -> bool:
    """Whether a match can find it, and all of it."""
    return not page.flushed and len(page.tokens) % page_size == 0


def hash_of(page: StoredPage, page_size: int) -> bytes:
    """The hash of the block that ``page`` is, reckoned from its whole prefix."""
    space = page.namespace
    root = block_keys.namespace_root(
        space.model_revision, space.adapter_id, space.extra_key, space.tenant_salt, space.tenant
    )
    tokens = array("i", chain.from_iterable(page.tokens)).tobytes()
    return block_keys.chain(root, tokens, page_size * 4)[-1]
