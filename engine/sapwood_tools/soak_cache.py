"""Random requests against the prefix cache, with the KV of every slot written down to see that no reuse is
wrong.

A slot's KV is stood for by a hash of everything it depends on: the namespace and all tokens up to its own, by pairs
the one behind it as well. Where keys tell content, one of the tokens is content, and its placeholder another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import get_args

from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.keys import KeyUnit, TokenKey
from sapwood_engine.core.prefix_cache import PageCounts, PrefixCache, Receipt, Shortfall
from sapwood_engine.core.request import ContentSpan, Namespace

_NAMESPACES = (
    Namespace("soak"),
    Namespace("soak", adapter_id="a"),
    Namespace("soak", tenant_salt="a"),
    Namespace("soak", extra_key="a"),
)
_MAX_RUNNING = 12
_NUM_REMEMBERED = 48
_PLACEHOLDER, _CONTENT = 1, 2
_MAX_PAGES = 8
"""Pages of a request."""


@dataclass(slots=True)
class _Running:
    namespace: Namespace
    tokens: list[int]
    kv: list[int]
    """What the KV of each position must be."""
    table: list[int]
    receipt: Receipt
    num_computed: int


class CacheSoak:
    """One cache with random settings, and what the requests on it hold."""

    def __init__(self, random: Random) -> None:
        policies: tuple[PolicyName, ...] = get_args(PolicyName)
        self._random = random
        self._page_size = random.choice((1, 2, 4, 16))
        self._policy = random.choice(policies)
        self._partial_pages = random.random() < 0.8
        units: tuple[KeyUnit, ...] = get_args(KeyUnit)
        self._key_unit = random.choice(units)
        self._content = random.random() < 0.3
        self._num_pages = random.choice((16, 64, 256))
        self._cache = PrefixCache(
            num_pages=self._num_pages,
            page_size=self._page_size,
            policy=self._policy,
            partial_pages=self._partial_pages,
            key_unit=self._key_unit,
            content=self._content,
        )
        self._running: list[_Running] = []
        self._owned: set[int] = set()
        self._kv: list[list[int]] = [[] for _ in range(self._num_pages)]
        self._remembered: list[list[int]] = [[]]
        self._now = 0

    def describe(self) -> str:
        return (
            f"page_size={self._page_size} num_pages={self._num_pages} policy={self._policy} "
            f"partial_pages={self._partial_pages} key_unit={self._key_unit} content={self._content}"
        )

    def step(self) -> None:
        random = self._random
        chance = random.random()
        if chance < 0.35 and len(self._running) < _MAX_RUNNING:
            self._begin()
        elif chance < 0.95 and self._running:
            request = random.choice(self._running)
            if chance < 0.65:
                self._store_unfinished(request)
            elif chance < 0.88:
                self._finish(request)
            else:
                self._abort(request)
        elif chance < 0.97:
            self._cache.evict(random.randint(1, 8))
        elif chance < 0.99:
            self._now += random.randint(1, 50)
            self._cache.expire(self._now)
        elif chance < 0.992:
            quota = random.choice((None, random.randint(0, self._num_pages * self._page_size)))
            self._cache.set_quota(random.choice(_NAMESPACES), quota)
        elif chance < 0.995:
            self._cache.flush(random.choice((None, *_NAMESPACES)))
        else:
            self._cache.take_evicted()
        counts = self._cache.counts()
        _ensure(
            counts.free + counts.owned + counts.evictable + counts.protected == self._num_pages
            and counts.owned == len(self._owned),
            f"{counts} with {len(self._owned)} pages owned of {self._num_pages}",
        )

    def check(self) -> list[str]:
        return self._cache.check_invariants(self._owned)

    def finish(self) -> list[str]:
        while self._running:
            self._abort(self._running[-1])
        self._cache.flush()
        faults = self.check()
        counts = self._cache.counts()
        if counts != PageCounts(free=self._num_pages, owned=0, evictable=0, protected=0):
            faults.append(f"not everything came back: {counts} of {self._num_pages} pages")
        if self._cache.num_nodes or self._cache.num_locked_nodes:
            faults.append(f"{self._cache.num_nodes} nodes are left")
        return faults

    def _begin(self) -> None:
        random, cache, size = self._random, self._cache, self._page_size
        namespace = random.choice(_NAMESPACES)
        tokens = self._prompt()
        key = self._key(tokens)
        limit = len(tokens) - 1
        peeked = cache.peek(namespace, key, limit_tokens=limit)
        found = cache.match(namespace, key, limit_tokens=limit)
        _ensure(peeked == found.num_usable_tokens <= limit, f"peek {peeked}, match {found}, limit {limit}")
        marks = list(zip(tokens, [*tokens[1:], -1], strict=True)) if self._key_unit == "pairs" else tokens
        kv = list(accumulate(marks, lambda above, mark: hash((above, mark)), initial=hash(namespace)))[1:]
        seen = [slot for page in found.pages for slot in self._kv[page]]
        copied: list[int] = []
        if found.partial:
            copied = self._kv[found.partial.page][: found.partial.num_tokens]
        _ensure([*seen, *copied] == kv[: found.num_usable_tokens], "a match gave KV of another prefix")
        receipt = cache.lock(found)
        own = cache.allocate(-(-len(tokens) // size) - len(found.pages))
        if isinstance(own, Shortfall):
            cache.unlock(receipt)
            return
        _ensure(not self._owned & set(own), "a page was handed out twice")
        self._owned.update(own)
        for page in own:
            self._kv[page] = []
        if copied:
            self._kv[own[0]] = copied
        table = [*found.pages, *own]
        self._running.append(_Running(namespace, tokens, kv, table, receipt, found.num_usable_tokens))

    def _key(self, tokens: list[int]) -> TokenKey:
        if not self._content:
            return self._cache.keys.key(tokens)
        content = [ContentSpan(at, 1, b"content") for at, token in enumerate(tokens) if token == _CONTENT]
        return self._cache.keys.key((_PLACEHOLDER if token == _CONTENT else token for token in tokens), content)

    def _prompt(self) -> list[int]:
        """Return some remembered prompt, cut and continued."""
        random = self._random
        most = _MAX_PAGES * self._page_size
        base = random.choice(self._remembered)
        kept = base[: random.randint(0, len(base))] if random.random() < 0.7 else base
        room = most - len(kept)
        new = [random.randrange(3) for _ in range(random.randint(0, min(room, 2 * self._page_size)))]
        tokens = [*kept, *new] or [0]
        if len(self._remembered) < _NUM_REMEMBERED:
            self._remembered.append(tokens)
        else:
            self._remembered[random.randrange(_NUM_REMEMBERED)] = tokens
        return tokens

    def _compute(self, request: _Running, end: int) -> None:
        size = self._page_size
        for position in range(request.num_computed, end):
            page = request.table[position // size]
            _ensure(page in self._owned, f"position {position} is written to page {page}, which is not its own")
            _ensure(len(self._kv[page]) == position % size, f"page {page} was written by somebody else")
            self._kv[page].append(request.kv[position])
        request.num_computed = max(request.num_computed, end)

    def _store_unfinished(self, request: _Running) -> None:
        self._compute(request, self._random.randint(request.num_computed, len(request.tokens)))
        key = self._key(request.tokens[: request.num_computed])
        inserted = self._cache.insert(request.receipt, key, request.table, priority=self._random.randrange(3))
        request.receipt = inserted.receipt
        end = inserted.first + len(inserted.pages)
        self._owned.difference_update(request.table[inserted.first : end])
        self._owned.update(inserted.duplicates)
        request.table[inserted.first : end] = inserted.pages
        _ensure(not set(inserted.duplicates) & set(request.table), "a duplicate is still in the page table")
        self._release(inserted.duplicates)
        self._check_table(request)

    def _finish(self, request: _Running) -> None:
        self._compute(request, len(request.tokens))
        self._check_table(request)
        self._running.remove(request)
        pinned_until = self._now + self._random.randint(1, 100) if self._random.random() < 0.2 else 0
        rest = self._cache.finish(
            request.receipt,
            self._key(request.tokens),
            request.table,
            priority=self._random.randrange(3),
            pinned_until=pinned_until,
        )
        self._owned.difference_update(set(request.table) - set(rest))
        self._release(rest)

    def _abort(self, request: _Running) -> None:
        self._running.remove(request)
        num_locked = request.receipt.num_pages
        self._cache.unlock(request.receipt)
        self._release(request.table[num_locked:])

    def _release(self, pages: Sequence[int]) -> None:
        self._cache.release(pages)
        self._owned.difference_update(pages)

    def _check_table(self, request: _Running) -> None:
        seen = [slot for page in request.table for slot in self._kv[page]]
        _ensure(seen == request.kv[: request.num_computed], "the page table of a running request holds other KV")


def _ensure(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)
