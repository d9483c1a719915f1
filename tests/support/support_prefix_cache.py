"""A naive prefix cache to compare the real one with, page by page and without a tree; and short ways to fill
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sapwood_engine.core.eviction import PolicyName
from sapwood_engine.core.prefix_cache import Match, PrefixCache, Shortfall, token_key
from sapwood_engine.core.request import ContentSpan, Namespace

SPACE = Namespace("model")

Mark = tuple[int, ...]
"""What the KV of one slot depends on beyond what the slots before it depend on: its token, or its pair of tokens."""
Marks = tuple[Mark, ...]


def cached(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace = SPACE) -> int:
    """Tokens of ``tokens`` that a request for one token more would not compute."""
    return cache.peek(namespace, cache.keys.key(tokens), limit_tokens=len(tokens))


def allocate(cache: PrefixCache, num_pages: int) -> list[int]:
    pages = cache.allocate(num_pages)
    assert not isinstance(pages, Shortfall), pages
    return pages


def match(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace = SPACE) -> Match:
    return cache.match(namespace, cache.keys.key(tokens), limit_tokens=len(tokens))


def serve(
    cache: PrefixCache,
    tokens: Sequence[int],
    namespace: Namespace = SPACE,
    *,
    priority: int = 0,
    pinned_until: int = 0,
    content: Sequence[ContentSpan] = (),
) -> int:
    """Run one request that computes ``tokens`` from start to end; return how many it found cached."""
    key = cache.keys.key(tokens, content)
    found = cache.match(namespace, key, limit_tokens=len(tokens) - 1)
    receipt = cache.lock(found)
    own = allocate(cache, -(-len(tokens) // cache.page_size) - len(found.pages))
    table = [*found.pages, *own]
    cache.release(cache.finish(receipt, key, table, priority=priority, pinned_until=pinned_until))
    return found.num_usable_tokens


@dataclass
class StoredPage:
    """One page of the cache and the whole prefix that ends in it."""

    page: int
    namespace: Namespace
    tokens: Marks
    created: int
    tick: int
    priority: int
    hits: int = 0
    expires: int = 0
    locks: int = 0
    flushed: bool = False


RANKS: dict[PolicyName, Callable[[StoredPage], tuple[int, ...]]] = {
    "lru": lambda page: (page.tick,),
    "lfu": lambda page: (page.hits, page.tick),
    "slru": lambda page: (int(page.hits > 0), page.tick),
    "fifo": lambda page: (page.created,),
    "mru": lambda page: (-page.tick,),
    "filo": lambda page: (-page.created,),
    "priority": lambda page: (page.priority, page.tick),
    "ttl": lambda page: (page.expires, page.tick),
}


@dataclass
class NaiveCache:
    """Every stored page in one list; every question is answered by looking at all of them."""

    page_size: int
    policy: PolicyName
    partial_pages: bool
    stored: list[StoredPage] = field(default_factory=list)
    quotas: dict[Namespace, int] = field(default_factory=dict)
    """Most pages that a namespace may keep."""
    tick: int = 0

    def whole_pages(self, namespace: Namespace, tokens: Marks) -> list[StoredPage]:
        """The longest run of whole pages that holds a prefix of ``tokens``, root first."""
        path: list[StoredPage] = []
        while (end := (len(path) + 1) * self.page_size) <= len(tokens):
            page = self._holding(namespace, tokens[:end])
            if page is None:
                break
            path.append(page)
        return path

    def num_partial_tokens(self, namespace: Namespace, tokens: Marks) -> int:
        """Tokens behind the whole pages that some page begins with."""
        start = len(self.whole_pages(namespace, tokens)) * self.page_size
        if not self.partial_pages:
            return 0
        return max(
            (
                _num_common(page.tokens[start:], tokens[start : start + self.page_size])
                for page in self.stored
                if self._reachable(page, namespace)
                and page.tokens[:start] == tokens[:start]
                and start < len(page.tokens) <= start + self.page_size
            ),
            default=0,
        )

    def use(self, path: Iterable[StoredPage]) -> None:
        self.tick += 1
        for page in path:
            page.tick = self.tick
            page.hits += 1

    def unlock(self, path: Iterable[StoredPage]) -> None:
        self.tick += 1
        for page in path:
            page.locks -= 1
            if page.locks == 0:
                page.tick = self.tick
                if page.flushed:
                    self.stored.remove(page)

    def insert(
        self,
        namespace: Namespace,
        tokens: Marks,
        table: Sequence[int],
        locked: list[StoredPage],
        priority: int,
    ) -> list[StoredPage]:
        """Store the whole pages of ``tokens`` beyond ``locked`` and lock them; return the whole path."""
        self.tick += 1
        path = list(locked)
        for index in range(len(locked), len(tokens) // self.page_size):
            prefix = tokens[: (index + 1) * self.page_size]
            page = self._holding(namespace, prefix)
            if page is None:
                self._drop_superseded(namespace, prefix)
                page = StoredPage(table[index], namespace, prefix, self.tick, self.tick, priority)
                self.stored.append(page)
            page.tick = self.tick
            page.locks += 1
            path.append(page)
        for page in path:
            page.priority = max(page.priority, priority)
        return path

    def insert_tail(self, namespace: Namespace, tokens: Marks, page: int, priority: int, expires: int) -> bool:
        if not self.partial_pages or len(tokens) % self.page_size == 0:
            return False
        self.tick += 1
        whole = len(tokens) // self.page_size * self.page_size
        holders = [
            other
            for other in self.stored
            if self._reachable(other, namespace)
            and other.tokens[: len(tokens)] == tokens
            and len(other.tokens) <= whole + self.page_size
        ]
        if holders:
            first = min(holders, key=lambda page: token_key(chain.from_iterable(page.tokens[whole:])))
            first.tick = self.tick
            first.expires = max(first.expires, expires)
            return False
        self._drop_superseded(namespace, tokens)
        self.stored.append(StoredPage(page, namespace, tokens, self.tick, self.tick, priority, expires=expires))
        return True

    def evict(self, num_pages: int) -> int:
        """Drop the worst leaf page, again and again. Returns the tokens dropped."""
        return self._evict(num_pages, self.stored)

    def enforce_quota(self, namespace: Namespace) -> int:
        """Drop the worst leaf page of the namespace while it keeps too many. Returns the tokens dropped."""
        kept = [page for page in self.stored if self._reachable(page, namespace)]
        return self._evict(max(0, len(kept) - self.quotas.get(namespace, len(kept))), kept)

    def _evict(self, num_pages: int, among: list[StoredPage]) -> int:
        num_tokens = 0
        for _ in range(num_pages):
            leaves = [page for page in among if page.locks == 0 and not self._children(page)]
            if not leaves:
                break
            victim = min(leaves, key=RANKS[self.policy])
            num_tokens += self._num_tokens(victim)
            self.stored.remove(victim)
            if among is not self.stored:
                among.remove(victim)
        return num_tokens

    def expire(self, now: int) -> int:
        lapsed = [page for page in self.stored if 0 < page.expires <= now]
        num_tokens = 0
        for page in sorted(lapsed, key=lambda page: -len(page.tokens)):
            page.expires = 0
            if page.locks == 0 and not self._children(page):
                num_tokens += self._num_tokens(page)
                self.stored.remove(page)
        return num_tokens

    def flush(self, namespace: Namespace | None) -> int:
        gone = [page for page in self.stored if not page.flushed and namespace in (None, page.namespace)]
        num_tokens = 0
        for page in gone:
            page.flushed = True
            if page.locks == 0:
                num_tokens += self._num_tokens(page)
                self.stored.remove(page)
        return num_tokens

    def _reachable(self, page: StoredPage, namespace: Namespace) -> bool:
        return page.namespace == namespace and not page.flushed

    def _holding(self, namespace: Namespace, prefix: Marks) -> StoredPage | None:
        for page in self.stored:
            if page.tokens == prefix and self._reachable(page, namespace):
                return page
        return None

    def _children(self, page: StoredPage) -> list[StoredPage]:
        if len(page.tokens) % self.page_size:
            return []
        return [
            other
            for other in self.stored
            if other.namespace == page.namespace
            and other.flushed == page.flushed
            and len(other.tokens) > len(page.tokens)
            and other.tokens[: len(page.tokens)] == page.tokens
        ]

    def _drop_superseded(self, namespace: Namespace, prefix: Marks) -> None:
        start = (len(prefix) - 1) // self.page_size * self.page_size
        for page in list(self.stored):
            if (
                self._reachable(page, namespace)
                and start < len(page.tokens) < len(prefix)
                and prefix[: len(page.tokens)] == page.tokens
            ):
                self.stored.remove(page)

    def _num_tokens(self, page: StoredPage) -> int:
        return len(page.tokens) % self.page_size or self.page_size


def _num_common(left: Marks, right: Marks) -> int:
    num = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        num += 1
    return num
