"""The prefix cache as the scheduler sees it: pages by token prefix, and who owns each page.

Every page is free, owned by the caller, or in the tree, there evictable or protected by a receipt; the four
add up to the capacity after every call. The life of a request::

    match = cache.match(namespace, key, limit_tokens=len(prompt) - 1)
    receipt = cache.lock(match)                       # match.pages are safe from eviction from here on
    own = cache.allocate(n)                           # or Shortfall: nothing changed, unlock and wait
    ...                                               # compute; page table = match.pages + own
    inserted = cache.insert(receipt, computed, table) # whole pages become the tree's
    table[inserted.first:inserted.first + len(inserted.pages)] = inserted.pages
    receipt = inserted.receipt
    cache.release(inserted.duplicates)                # once no launched step uses them
    ...
    cache.release(cache.finish(receipt, computed, table))

Nothing here knows a clock or a random number; a tick is a counter, or whatever unit the caller gives pins in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood_engine.core.cache_report import deepest_path, describe_tree, find_faults
from sapwood_engine.core.eviction import PolicyName, eviction_order
from sapwood_engine.core.page_allocator import PageAllocator, Shortfall
from sapwood_engine.core.radix_node import TOKEN_BYTES, Node, Root, TokenKey, token_key
from sapwood_engine.core.radix_search import Found, PartialPage, find, next_page
from sapwood_engine.core.radix_tree import RadixTree, Receipt
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.step import Evicted, EvictionReason

__all__ = [
    "Inserted",
    "Match",
    "PageCounts",
    "PartialPage",
    "PrefixCache",
    "Receipt",
    "Shortfall",
    "TokenKey",
    "token_key",
]


@dataclass(frozen=True, slots=True)
class Match:
    """The longest stored prefix of a key. Lock it before anything else is inserted or allocated."""

    pages: tuple[int, ...]
    """Whole pages, root first."""
    num_tokens: int
    """``len(pages) * page_size``."""
    partial: PartialPage | None
    node: Node = field(repr=False, compare=False)
    """The deepest matched node; for `PrefixCache.lock` only."""

    @property
    def num_usable_tokens(self) -> int:
        """Tokens that need not be computed: those of whole pages and those of the partial one."""
        return self.num_tokens + (self.partial.num_tokens if self.partial else 0)


@dataclass(frozen=True, slots=True)
class Inserted:
    """What an insert made of the caller's page table.

    Entries ``[0, first + len(pages))`` are the tree's now, locked by ``receipt``; all behind stay the
    caller's.
    """

    first: int
    """Page index up to which the old receipt reached: entries before it are unchanged."""
    pages: tuple[int, ...]
    """What the table must hold from index ``first`` on."""
    duplicates: tuple[int, ...]
    """Pages the caller gave whose place in ``pages`` another took. Still the caller's: release them once no
    launched step uses them. Empty when the table need not change.
    """
    receipt: Receipt
    """Replaces the receipt given, which is spent."""


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages by state; they add up to the capacity."""

    free: int
    owned: int
    evictable: int
    protected: int


class PrefixCache:
    """Allocator, tree and eviction order, kept in step.

    ``num_pages`` pages of ``page_size`` tokens. With ``enabled=False`` nothing ever matches and nothing is
    stored; with ``partial_pages=False`` only whole pages are.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        policy: PolicyName = "lru",
        enabled: bool = True,
        partial_pages: bool = True,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.enabled = enabled
        self._allocator = PageAllocator(num_pages)
        self._tree = RadixTree(
            page_size=page_size,
            allocator=self._allocator,
            order=eviction_order(policy),
            partial_pages=partial_pages,
        )
        self._evicted: list[Evicted] = []

    # --- prefixes

    def peek(self, namespace: Namespace, key: TokenKey, *, limit_tokens: int) -> int:
        """Return how many tokens `match` would find usable now. Nothing is split, touched or counted."""
        root = self._tree.roots.get(namespace)
        if root is None or not self.enabled:
            return 0
        found, partial = self._search(root, key, limit_tokens)
        return found.num_bytes // TOKEN_BYTES + (partial.num_tokens if partial else 0)

    def match(self, namespace: Namespace, key: TokenKey, *, limit_tokens: int) -> Match:
        """Find the longest stored prefix of the first ``limit_tokens`` tokens of ``key``; count it as used.

        For a request that is about to run; `peek` asks on behalf of one that waits. May split one edge where
        the match ends. The partial page is found but not counted as used: the request that copies it touches
        its successor when it inserts.
        """
        root = self._tree.roots.get(namespace)
        if root is None or not self.enabled:
            return Match((), 0, None, Root(namespace))
        found, partial = self._search(root, key, limit_tokens)
        node, pages = self._tree.use(root, found)
        return Match(pages, len(pages) * self.page_size, partial, node)

    def _search(self, root: Root, key: TokenKey, limit_tokens: int) -> tuple[Found, PartialPage | None]:
        tree = self._tree
        num_bytes = min(len(key), limit_tokens * TOKEN_BYTES)
        found = find(root, key, num_bytes=num_bytes, page_bytes=tree.page_bytes)
        if not tree.partial_pages:
            return found, None
        return found, next_page(root, found, key, num_bytes=num_bytes, page_bytes=tree.page_bytes)

    def lock(self, match: Match) -> Receipt:
        """Keep ``match.pages`` from eviction until the receipt is unlocked, or spent by `insert` or `finish`.

        Asserts that the match is fresh: evicting or inserting in between may have changed what it stands for.
        """
        node = match.node
        assert node.end == len(match.pages), (
            f"the match of {len(match.pages)} pages is stale: its node ends at page {node.end} now"
        )
        return self._tree.lock(node)

    def unlock(self, receipt: Receipt) -> None:
        """Give the receipt back; asserts that it was not given back before."""
        self._tree.unlock(receipt)

    def insert(self, receipt: Receipt, key: TokenKey, pages: Sequence[int], *, priority: int = 0) -> Inserted:
        """Store what a running request has computed, as far as it fills whole pages.

        ``key`` is the tokens whose KV is computed, in the namespace of ``receipt``; ``pages`` is the
        request's page table: first the ``receipt.num_pages`` pages that the receipt locks, then pages the
        request owns, at least as many as ``key`` has whole pages. Ownership of the stored pages moves to the
        tree now.

        Stores nothing when the cache is off or the namespace was flushed since ``receipt`` was made (the KV
        is of before the flush); then the receipt comes back unchanged and ``pages`` is empty.
        """
        if not self._may_store(receipt):
            return Inserted(receipt.num_pages, (), (), receipt)
        growth = self._tree.insert(receipt, key, pages, priority=priority)
        return Inserted(growth.first, growth.pages, growth.duplicates, growth.receipt)

    def finish(
        self,
        receipt: Receipt,
        key: TokenKey,
        pages: Sequence[int],
        *,
        priority: int = 0,
        pinned_until: int = 0,
    ) -> list[int]:
        """Store what an ended (or preempted) request has computed, unlock it, say what is left to release.

        As `insert`, but a last page filled in part is stored as well, and ``receipt`` is spent.
        ``pinned_until`` is a tick for `expire` and the policy ``ttl``; 0 pins nothing. Returns every page of
        ``pages`` that the caller still owns: duplicates, what lies behind ``key``, all if nothing is stored.
        Release them once no launched step uses them.
        """
        inserted = self.insert(receipt, key, pages, priority=priority)
        receipt = inserted.receipt
        rest = list(inserted.duplicates)
        num_stored = inserted.first + len(inserted.pages)
        tail = key[num_stored * self.page_size * TOKEN_BYTES :]
        if self._may_store(receipt):
            self._tree.pin(receipt.node, pinned_until)
            if tail and self._tree.insert_tail(
                receipt, tail, pages[num_stored], priority=priority, expires=pinned_until
            ):
                num_stored += 1
        self._tree.unlock(receipt)
        rest += pages[num_stored:]
        return rest

    def _may_store(self, receipt: Receipt) -> bool:
        return self.enabled and not receipt.root.flushed

    # --- pages

    def num_available(self) -> int:
        """Pages that `allocate` could give: free and evictable ones."""
        return self._allocator.num_free + self._tree.num_evictable

    def allocate(self, num_pages: int) -> list[int] | Shortfall:
        """Make ``num_pages`` pages the caller's, evicting exactly as many as are not free; all or nothing."""
        missing = num_pages - self._allocator.num_free
        if missing > 0:
            if missing > self._tree.num_evictable:
                return Shortfall(needed=num_pages, available=self.num_available())
            self._evicted.append(Evicted(self._tree.evict(missing), "capacity"))
        return self._allocator.allocate(num_pages)

    def release(self, pages: Iterable[int]) -> None:
        """Give owned pages back. Asserts on a page that is not owned, a double release among them."""
        self._allocator.release(pages)

    def counts(self) -> PageCounts:
        """Pages by state, O(1)."""
        return PageCounts(
            free=self._allocator.num_free,
            owned=self._allocator.num_owned,
            evictable=self._tree.num_evictable,
            protected=self._tree.num_protected,
        )

    # --- dropping

    def evict(self, num_pages: int) -> int:
        """Free up to ``num_pages`` evictable pages on demand of an operator. Returns the tokens dropped."""
        return self._record(self._tree.evict(num_pages), "admin")

    def expire(self, now: int) -> int:
        """Drop what was pinned until ``now`` or earlier and is not in use. Returns the tokens dropped."""
        return self._record(self._tree.expire(now), "ttl")

    def flush(self, namespace: Namespace | None = None) -> int:
        """Drop everything stored, of one namespace or of all. Returns the tokens dropped.

        Pages that running requests lock stay theirs, match nobody else any more, and go as they are unlocked.
        """
        roots = [root for root in self._tree.roots.values() if namespace in (None, root.namespace)]
        return self._record(sum(self._tree.flush(root) for root in roots), "flush")

    def take_evicted(self) -> list[Evicted]:
        """Return what was dropped since the last call, one entry an occasion."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _record(self, num_tokens: int, reason: EvictionReason) -> int:
        if num_tokens:
            self._evicted.append(Evicted(num_tokens, reason))
        return num_tokens

    # --- looking at it

    @property
    def num_nodes(self) -> int:
        """Nodes of the tree, roots not counted. O(1)."""
        return self._tree.num_nodes

    @property
    def num_locked_nodes(self) -> int:
        return self._tree.num_locked_nodes

    @property
    def depth_mark(self) -> int:
        """Most nodes on a path from a root, as far as known in O(1).

        The deepest path of the last `check_invariants`, or a longer one that a request has matched or given back
        since. What was evicted meanwhile still counts; a path that only became longer because it was split above
        does not yet.
        """
        return min(self._tree.depth_mark, self._tree.num_nodes)

    def check_invariants(self, owned: Collection[int] | None = None) -> list[str]:
        """Walk everything and name each fault, one sentence each; an empty list means healthy. O(capacity).

        ``owned``: the pages that requests hold as their own, where the caller knows them. Sets `depth_mark` to the
        depth that the tree has now.
        """
        self._tree.depth_mark = deepest_path(self._tree)
        return find_faults(self._tree, self._allocator, owned)

    def snapshot(self, *, max_nodes: int, token_ids: bool = False) -> dict[str, Any]:
        """Return the tree as plain values, for people to look at; see `cache_report.describe_tree`."""
        return describe_tree(self._tree, max_nodes=max_nodes, token_ids=token_ids)
