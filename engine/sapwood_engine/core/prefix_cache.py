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

Nothing here knows a clock or a random number. A tick is a counter; times are the caller's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood_contract.curve import Curve, no_curve
from sapwood_engine.core.block_log import BlockEvent, BlockLog, stored_blocks
from sapwood_engine.core.cache_report import NamespaceUsage, deepest_path, describe_tree, find_faults, usage_of
from sapwood_engine.core.eviction import PolicyName, eviction_order
from sapwood_engine.core.hot_prefixes import Survey
from sapwood_engine.core.keys import TOKENS_ONLY, KeyFormat, KeyUnit, TokenKey, token_key
from sapwood_engine.core.miss_ratio import MissRatio
from sapwood_engine.core.page_allocator import PageAllocator, Shortfall
from sapwood_engine.core.prefix_worth import expected_uses
from sapwood_engine.core.quotas import Quotas
from sapwood_engine.core.radix_node import Node, Root
from sapwood_engine.core.radix_search import Found, PartialPage, find, next_page
from sapwood_engine.core.radix_tree import RadixTree, Receipt, iter_nodes
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.step import Evicted, EvictionReason
from sapwood_engine.core.tick_times import TickTimes

__all__ = [
    "Inserted",
    "Match",
    "NamespaceUsage",
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
    reuse_gap_seconds: tuple[float, ...] = ()
    """How long the deepest matched node had not been used; empty where there is none or no time is known."""

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
    stored; with ``partial_pages=False`` only whole pages are. Keys are made by `keys`, in the format that
    ``key_unit`` and ``content`` choose once; a slot of a page is a unit of a key, and where this class says tokens
    it counts those.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        policy: PolicyName = "lru",
        enabled: bool = True,
        partial_pages: bool = True,
        key_unit: KeyUnit = "tokens",
        content: bool = False,
        quota_tokens: int | None = None,
        log_blocks: bool = False,
        mrc_sample_rate: float | None = None,
    ) -> None:
        """``quota_tokens``: of every namespace that `set_quota` names no other for; None: as many as there are.

        ``log_blocks``: whether there will be anything in `take_block_events` and `block_snapshot`; keys of another
        format than `keys.TOKENS_ONLY` have no blocks. ``mrc_sample_rate``: see `miss_ratio`; None measures nothing.
        """
        self.num_pages = num_pages
        self.page_size = page_size
        self.policy = policy
        self.keys = KeyFormat(key_unit, content)
        self.enabled = enabled
        self._allocator = PageAllocator(num_pages)
        assert not log_blocks or self.keys == TOKENS_ONLY, f"keys of {self.keys} have no blocks"
        self._blocks = BlockLog(page_size * self.keys.unit_bytes) if log_blocks else None
        self.miss_ratio = (
            None
            if mrc_sample_rate is None
            else MissRatio(
                num_pages=num_pages,
                page_size=page_size,
                token_bytes=self.keys.unit_bytes,
                sample_rate=mrc_sample_rate,
                partial_pages=partial_pages,
            )
        )
        """Told of prompts by the scheduler, and of a flush here."""
        order = eviction_order(policy)
        self._tree = RadixTree(
            page_size=page_size,
            unit_bytes=self.keys.unit_bytes,
            allocator=self._allocator,
            order=order,
            quotas=Quotas(order.rank, default_pages=self._quota_pages(quota_tokens)),
            partial_pages=partial_pages,
            blocks=self._blocks,
        )
        self._evicted: list[Evicted] = []
        self._times = TickTimes()
        self._now = 0.0

    # --- prefixes

    def peek(self, namespace: Namespace, key: TokenKey, *, limit_tokens: int) -> int:
        """Return how many tokens `match` would find usable now. Nothing is split, touched or counted."""
        root = self._tree.roots.get(namespace)
        if root is None or not self.enabled:
            return 0
        found, partial = self._search(root, key, limit_tokens)
        return found.num_bytes // self._tree.unit_bytes + (partial.num_tokens if partial else 0)

    def match(self, namespace: Namespace, key: TokenKey, *, limit_tokens: int, is_hit: bool = True) -> Match:
        """Find the longest stored prefix of the first ``limit_tokens`` tokens of ``key``; count it as used.

        For a request that is about to run; `peek` asks on behalf of one that waits. May split one edge where
        the match ends. The partial page is found but not counted as used: the request that copies it touches
        its successor when it inserts. ``is_hit``: see `RadixTree.use`.
        """
        root = self._tree.roots.get(namespace)
        if root is None or not self.enabled:
            return Match((), 0, None, Root(namespace))
        found, partial = self._search(root, key, limit_tokens)
        gap = self._idle_seconds(found.path[-1] if found.path else None)
        node, pages = self._tree.use(root, found, is_hit=is_hit)
        return Match(pages, len(pages) * self.page_size, partial, node, gap)

    def _search(self, root: Root, key: TokenKey, limit_tokens: int) -> tuple[Found, PartialPage | None]:
        tree = self._tree
        num_bytes = min(len(key), limit_tokens * tree.unit_bytes)
        found = find(root, key, num_bytes=num_bytes, page_bytes=tree.page_bytes)
        if not tree.partial_pages:
            return found, None
        partial = next_page(
            root, found, key, num_bytes=num_bytes, page_bytes=tree.page_bytes, unit_bytes=tree.unit_bytes
        )
        return found, partial

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
        self._enforce_quota(receipt.root)

    def insert(self, receipt: Receipt, key: TokenKey, pages: Sequence[int], *, priority: int = 0) -> Inserted:
        """Store what a running request has computed, as far as it fills whole pages.

        ``key`` is the tokens whose KV is computed, in the namespace of ``receipt``; ``pages`` is the
        request's page table: first the ``receipt.num_pages`` pages that the receipt locks, then pages the
        request owns, at least as many as ``key`` has whole pages. Ownership of the stored pages moves to the
        tree now.

        Stores nothing when the cache is off or the namespace was flushed since ``receipt`` was made (the KV
        is of before the flush); then the receipt comes back unchanged and ``pages`` is empty. So it does where
        the last token of ``key`` has no unit yet and the receipt covers all others.
        """
        inserted = self._insert(receipt, key, pages, priority)
        self._enforce_quota(receipt.root)
        return inserted

    def _insert(self, receipt: Receipt, key: TokenKey, pages: Sequence[int], priority: int) -> Inserted:
        ends_early = receipt.num_pages * self._tree.page_bytes - len(key)
        if not self._may_store(receipt) or (self.keys.unit == "pairs" and ends_early == self.keys.unit_bytes):
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
        pinned_until: float = 0.0,
    ) -> list[int]:
        """Store what an ended (or preempted) request has computed, unlock it, say what is left to release.

        As `insert`, but a last page filled in part is stored as well, and ``receipt`` is spent.
        ``pinned_until`` is a time for `expire` and the policy ``ttl``; 0 pins nothing. Returns every page of
        ``pages`` that the caller still owns: duplicates, what lies behind ``key``, all if nothing is stored.
        Release them once no launched step uses them.
        """
        inserted = self._insert(receipt, key, pages, priority)
        receipt = inserted.receipt
        rest = list(inserted.duplicates)
        num_stored = inserted.first + len(inserted.pages)
        tail = key[num_stored * self._tree.page_bytes :]
        if self._may_store(receipt):
            self._tree.pin(receipt.node, pinned_until)
            if tail and self._tree.insert_tail(
                receipt, tail, pages[num_stored], priority=priority, expires=pinned_until
            ):
                num_stored += 1
        self._tree.unlock(receipt)
        self._enforce_quota(receipt.root)
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
            idle = self._idle_seconds(self._tree.order.victim())
            self._evicted.append(Evicted(self._tree.evict(missing), "capacity", idle))
        return self._allocator.allocate(num_pages)

    def make_room(self, num_pages: int, *, most_uses: float) -> bool:
        """Evict until ``num_pages`` are free, as long as what goes next has less than ``most_uses`` to come.

        See `prefix_worth.expected_uses`. Returns whether they are free now; nothing goes where that would not do.
        """
        if not self._can_make_room(num_pages, most_uses):
            return False
        while (missing := num_pages - self._allocator.num_free) > 0:
            victim = self._tree.order.victim()
            assert victim is not None, f"{missing} pages are missing of {num_pages} that were seen to become free"
            idle = self._idle_seconds(victim)
            num_tokens = self._tree.evict(min(missing, victim.num_pages))
            self._evicted.append(Evicted(num_tokens, "capacity", idle))
        return True

    def _can_make_room(self, num_pages: int, most_uses: float) -> bool:
        missing = num_pages - self._allocator.num_free
        if missing > self._tree.num_evictable:
            return False
        for node in self._tree.order.upcoming():
            if missing <= 0:
                break
            if self._expected_uses(node) >= most_uses:
                return False
            missing -= node.num_pages
        return missing <= 0

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

    def expire(self, now: float) -> int:
        """Drop what was pinned until ``now`` or earlier and is not in use. Returns the tokens dropped."""
        return self._record(self._tree.expire(now), "ttl")

    def flush(self, namespace: Namespace | None = None) -> int:
        """Drop everything stored, of one namespace or of all. Returns the tokens dropped.

        Pages that running requests lock stay theirs, match nobody else any more, and go as they are unlocked.
        """
        roots = [root for root in self._tree.roots.values() if namespace in (None, root.namespace)]
        num_tokens = sum(self._tree.flush(root) for root in roots)
        if namespace is None and self._blocks is not None:
            self._blocks.clear()
        if self.miss_ratio is not None:
            self.miss_ratio.forget(namespace)
        return self._record(num_tokens, "flush")

    def take_evicted(self) -> list[Evicted]:
        """Return what was dropped since the last call, one entry an occasion."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _record(self, num_tokens: int, reason: EvictionReason) -> int:
        if num_tokens:
            self._evicted.append(Evicted(num_tokens, reason))
        return num_tokens

    # --- blocks

    def take_block_events(self) -> list[BlockEvent]:
        """Return what entered and left since the last call, in order."""
        return [] if self._blocks is None else self._blocks.take()

    def block_snapshot(self) -> list[BlockEvent]:
        """Return events that tell all blocks there are, to one who knows none. O(nodes)."""
        return [event for root in self._tree.roots.values() for event in stored_blocks(iter_nodes(root))]

    # --- namespaces

    def namespaces(self) -> list[Namespace]:
        """Return the namespaces of which something is stored, or locked by a request."""
        return list(self._tree.roots)

    def usage(self, namespace: Namespace) -> NamespaceUsage:
        """Return what ``namespace`` keeps. O(1)."""
        return usage_of(self._tree, namespace)

    def set_quota(self, namespace: Namespace, tokens: int | None) -> None:
        """Let ``namespace`` keep at most ``tokens`` tokens of KV, from now on; None: what the constructor says.

        A page filled in part counts whole. What is beyond goes by the eviction order, the namespace's own pages only
        and locked ones never: a request may use more than the quota, but leave no more than that. Costs
        O(nodes of the namespace) once. Raises `ValueError` where ``tokens`` is negative.
        """
        self._record(self._tree.set_quota(namespace, self._quota_pages(tokens)), "capacity")

    def _quota_pages(self, tokens: int | None) -> int | None:
        if tokens is None:
            return None
        if tokens < 0:
            raise ValueError(f"quota_tokens: {tokens} cannot be used: it must be 0 or more")
        return tokens // self.page_size

    def _enforce_quota(self, root: Root) -> None:
        self._record(self._tree.enforce_quota(root), "capacity")

    def curve(self) -> Curve:
        """Return the miss-ratio curve, one that says nothing where none is measured."""
        if self.miss_ratio is None:
            return no_curve(self.num_pages * self.page_size)
        return self.miss_ratio.curve()

    # --- time

    def note_time(self, now: float) -> None:
        """It is ``now``, in seconds: what is used from here on is used at this time, as long as no other is noted.

        Only how long something had not been used is reckoned by it, and only to be told.
        """
        self._now = now
        self._times.note(self._tree.tick, now)

    def _expected_uses(self, node: Node) -> float:
        return expected_uses(
            node.hits,
            age_seconds=self._now - self._times.time_of(node.created),
            idle_seconds=self._now - self._times.time_of(node.tick),
        )

    def _idle_seconds(self, node: Node | None) -> tuple[float, ...]:
        return (self._now - self._times.time_of(node.tick),) if node is not None and len(self._times) else ()

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

    def survey(self, *, now: float, has_names: bool) -> Survey:
        """Begin a walk that tells what every node is worth at ``now``; see `hot_prefixes`."""
        self.note_time(now)
        return Survey(
            list(self._tree.roots.values()),
            page_bytes=self._tree.page_bytes,
            uses_of=self._expected_uses,
            has_names=has_names,
        )

    def snapshot(self, *, max_nodes: int, token_ids: int = 0) -> dict[str, Any]:
        """Return the tree as plain values, for people to look at; see `cache_report.describe_tree`."""
        return describe_tree(self._tree, self.keys, max_nodes=max_nodes, token_ids=token_ids)
