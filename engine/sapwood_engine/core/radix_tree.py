"""Which prefixes are stored: one compressed tree of whole pages for each namespace.

Decides what matches, where nodes split, what is locked, and gives up pages in the eviction order's sequence.
Keeps these invariants: no edge is empty; a node's children differ in their first page; a node's ``lock_ref``
is the number of live receipts at it or below it, so that a parent is locked whenever a child is; the tree
grows below locked nodes only; ``num_evictable + num_protected`` is the number of pages stored.

::

    Root ── [page page page] ─┬─ [page page]       children are keyed by their first page's bytes
                              ├─ [page] ── [tail    a tail is one page filled in part: always a leaf,
                              └─ [tail              never locked, never the beginning of a sibling
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from sapwood_engine.core.block_log import BlockLog
from sapwood_engine.core.eviction import EvictionOrder, Pins
from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.page_allocator import PageAllocator
from sapwood_engine.core.quotas import Quotas
from sapwood_engine.core.radix_node import (
    NO_CHILDREN,
    Node,
    Root,
    common_prefix_bytes,
)
from sapwood_engine.core.radix_search import Found, closest_child
from sapwood_engine.core.request import Namespace


class Receipt:
    """A lock on every node from ``node`` to its root; given back exactly once."""

    __slots__ = ("node", "released", "root")

    def __init__(self, node: Node, root: Root) -> None:
        self.node = node
        self.root = root
        self.released = False

    @property
    def num_pages(self) -> int:
        """Whole pages locked: so many leading entries of the holder's page table are the tree's."""
        return self.node.end


@dataclass(frozen=True, slots=True)
class Growth:
    """What an insert made of page indices ``first`` (where the old receipt ended) and on."""

    first: int
    pages: tuple[int, ...]
    """The tree's pages at these indices now."""
    duplicates: tuple[int, ...]
    """Pages of the caller that the tree did not need; still the caller's."""
    receipt: Receipt


class RadixTree:
    """Nodes, locks and stored pages. Moves pages in ``allocator`` as they enter and leave the tree."""

    def __init__(
        self,
        *,
        page_size: int,
        unit_bytes: int,
        allocator: PageAllocator,
        order: EvictionOrder,
        quotas: Quotas,
        partial_pages: bool,
        blocks: BlockLog | None = None,
    ) -> None:
        """``unit_bytes``: of a key, for each slot of a page; ``blocks`` is told what enters and leaves."""
        self.roots: dict[Namespace, Root] = {}
        self.flushed_roots: list[Root] = []
        """Roots out of reach that somebody still holds a receipt of."""
        self.order = order
        self.quotas = quotas
        self.unit_bytes = unit_bytes
        self.page_bytes = page_size * unit_bytes
        self.num_evictable = 0
        self.num_protected = 0
        self.num_nodes = 0
        self.num_entered = 0
        """Nodes that ever were: each one's `Node.serial` is this count at its entry, so that none is given twice."""
        self.num_locked_nodes = 0
        self.num_receipts = 0
        self.depth_mark = 0
        """Most nodes on a path that a request has walked, until somebody measures all and sets it anew."""
        self._allocator = allocator
        self.partial_pages = partial_pages and page_size > 1
        self.tick = 0
        self._pins = Pins()
        self._blocks = blocks

    # --- using

    def use(self, root: Root, found: Found, *, is_hit: bool = True) -> tuple[Node, tuple[int, ...]]:
        """Record that a request uses ``found``: split its last node where the match ended, touch the path.

        ``is_hit``: whether somebody profits who asked for it. Returns the deepest matched node and the pages of the
        path, root first. ``found`` is of no use afterwards.
        """
        path = found.path
        if not path:
            return root, ()
        self.tick += 1
        tick = self.tick
        node = path[-1]
        if found.taken < node.num_bytes:
            path[-1] = node = self._split(node, found.taken)
        runs = []
        for step in path:
            step.tick = tick
            step.hits += is_hit
            runs.append(step.pages)
        self.depth_mark = max(self.depth_mark, len(path) + bool(node.children))
        runs[-1] = node.live_pages()  # only a leaf has lost pages
        self.order.touch(node)
        self.quotas.note(node)
        # A long prompt is often one edge: its pages are handed out without copying them.
        return node, runs[0] if len(runs) == 1 else tuple(chain.from_iterable(runs))

    # --- locking

    def lock(self, node: Node) -> Receipt:
        """Lock ``node`` and everything above it. A root that is new or was forgotten enters the tree."""
        if isinstance(node, Root):
            root = self.roots.setdefault(node.namespace, node)
            if not root.children and not root.lock_ref:
                self.quotas.watch(root)
            root.lock_ref += 1
            self.num_receipts += 1
            return Receipt(root, root)
        at = node
        while at.parent is not None:
            self._lock_one(at)
            at = at.parent
        assert isinstance(at, Root), "the matched node left the tree before it was locked"
        at.lock_ref += 1
        self.num_receipts += 1
        return Receipt(node, at)

    def unlock(self, receipt: Receipt) -> None:
        """Give ``receipt`` back.

        What nobody else locks becomes evictable, as if used now; or leaves the tree, if its namespace was
        flushed meanwhile.
        """
        self._spend(receipt)
        self.tick += 1
        root = receipt.root
        at = receipt.node
        depth = int(bool(at.children))  # whatever hangs below makes the path one longer
        while at.parent is not None:
            depth += 1
            parent = at.parent
            assert at.lock_ref > 0, f"unlocking pages {at.start}–{at.end}, which have {at.lock_ref} locks"
            at.lock_ref -= 1
            if at.lock_ref == 0:
                at.tick = self.tick
                self._count_locked(at, -1)
                self.order.admit(at)
                self.quotas.note(at)
                if root.flushed:
                    self._remove(at)
            at = parent
        self.depth_mark = max(self.depth_mark, depth)
        assert root.lock_ref > 0, f"unlocking a root that has {root.lock_ref} locks"
        root.lock_ref -= 1
        self._prune(root)

    # --- growing

    def insert(self, receipt: Receipt, key: TokenKey, pages: Sequence[int], *, priority: int) -> Growth:
        """Store the whole pages of ``key`` below ``receipt``, which locks a prefix of them already.

        Where the tree has a page already, the caller's is a duplicate. ``receipt`` is spent; the growth's
        locks everything inserted. Costs O(pages beyond the old receipt).
        """
        size = self.page_bytes
        node = receipt.node
        first = at = node.end
        num_pages = len(key) // size
        assert first <= num_pages <= len(pages), f"{first} locked, {num_pages} in key, {len(pages)} pages"
        locked = node.live_pages()[-1:]
        assert locked == tuple(pages[first - len(locked) : first]), (
            f"the receipt ends at page {locked}, which is not page {first - 1} of the caller's table"
        )
        self._spend(receipt)
        self.tick += 1
        kept: list[int] = []
        duplicates: list[int] = []
        while at < num_pages:
            child = node.children.get(key[at * size : (at + 1) * size])
            if child is None:
                mine = tuple(pages[at:num_pages])
                child = self._attach(node, key[at * size : num_pages * size], mine, priority=priority)
            else:
                limit = (num_pages - at) * size
                taken = common_prefix_bytes(key, at * size, child.edge, limit) // size * size
                if taken < child.num_bytes:
                    child = self._split(child, taken)
                duplicates += pages[at : child.end]
            self._lock_one(child)
            child.tick = self.tick
            kept += child.live_pages()
            node = child
            at = node.end
        _raise_priority(node, priority)
        self.num_receipts += 1
        return Growth(first, tuple(kept), tuple(duplicates), Receipt(node, receipt.root))

    def insert_tail(self, receipt: Receipt, rest: bytes, page: int, *, priority: int, expires: float) -> bool:
        """Store ``page``, whose first slots hold ``rest``, below ``receipt``; False if it is of no use.

        ``rest`` is shorter than a page and longer than nothing.
        """
        if not self.partial_pages:
            return False
        self.tick += 1
        node = receipt.node
        closest = closest_child(node, rest)
        if closest is not None and closest[1] == len(rest):
            child = closest[0]
            if child.num_pages > 1:
                child = self._split(child, self.page_bytes)
            child.tick = self.tick
            self.pin(child, expires)
            self.order.touch(child)
            self.quotas.note(child)
            return False
        self._attach(node, rest, (page,), priority=priority, expires=expires)
        return True

    def pin(self, node: Node, expires: float) -> None:
        """Let ``node`` and all above it expire at the time ``expires`` or later."""
        while node.parent is not None and node.expires < expires:
            node.expires = expires
            self._pins.add(node)
            node = node.parent

    # --- shrinking

    def evict(self, num_pages: int) -> int:
        """Give up ``num_pages`` pages, fewer if fewer are evictable, each from the end of the order's victim.

        Returns the number of tokens given up.
        """
        dropped: list[int] = []
        num_bytes = 0
        while len(dropped) < num_pages and (victim := self.order.victim()) is not None:
            self.order.evicted(victim)
            num_bytes += self._give_up(victim, num_pages - len(dropped), dropped)
        self._allocator.drop(dropped)
        return num_bytes // self.unit_bytes

    def enforce_quota(self, root: Root) -> int:
        """Give up what ``root`` keeps beyond its quota, each page from the end of its own victim, locked ones never.

        Returns the tokens.
        """
        dropped: list[int] = []
        num_bytes = 0
        while (victim := self.quotas.victim(root)) is not None:
            num_bytes += self._give_up(*victim, dropped)
        self._allocator.drop(dropped)
        return num_bytes // self.unit_bytes

    def set_quota(self, namespace: Namespace, num_pages: int | None) -> int:
        """Let ``namespace`` keep at most ``num_pages``, None for the default. Returns the tokens given up for it."""
        self.quotas.set(namespace, num_pages)
        root = self.roots.get(namespace)
        if root is None:
            return 0
        self.quotas.watch(root, iter_nodes(root))
        return self.enforce_quota(root)

    def _give_up(self, victim: Node, num_pages: int, dropped: list[int]) -> int:
        """Take up to ``num_pages`` from the end of ``victim`` into ``dropped``; return their bytes."""
        if victim.num_pages <= num_pages:
            dropped += victim.live_pages()
            self._detach(victim)
            return victim.num_bytes
        kept = victim.num_pages - num_pages
        if self._blocks is not None:
            self._blocks.leave(victim, kept=kept)
        gone = victim.cut(kept)
        dropped += gone
        self.num_evictable -= len(gone)
        victim.root.num_kept_pages -= len(gone)
        self.quotas.note(victim)
        return len(gone) * self.page_bytes

    def expire(self, now: float) -> int:
        """End the pins whose time is not after ``now`` and give up what they held, unless it is in use.

        A node that is locked, or has children that were never pinned, merely loses its pin. Returns the
        tokens.
        """
        num_bytes = 0
        for node in self._pins.lapsed(now):
            if not node.lock_ref and not node.children:
                num_bytes += node.num_bytes
                self._remove(node)
        return num_bytes // self.unit_bytes

    def flush(self, root: Root) -> int:
        """Put ``root`` out of reach and give up all that is unlocked below it. Returns the tokens."""
        if self._blocks is not None:
            for node in iter_nodes(root):
                self._blocks.leave(node)
        del self.roots[root.namespace]
        root.flushed = True
        self.flushed_roots.append(root)
        self.quotas.forget(root)
        root.lock_ref += 1  # kept while its children go
        num_bytes = 0
        for node in reversed(list(iter_nodes(root))):
            if node.lock_ref == 0:
                num_bytes += node.num_bytes
                self._remove(node)
        root.lock_ref -= 1
        self._prune(root)
        return num_bytes // self.unit_bytes

    # --- the steps that these are made of

    def _attach(
        self, parent: Node, edge: bytes, pages: tuple[int, ...], *, priority: int, expires: float = 0.0
    ) -> Node:
        """Add an unlocked leaf below ``parent``. A tail that it begins with is superseded and goes."""
        key = edge[: self.page_bytes]
        if self.partial_pages and (closest := closest_child(parent, key)) is not None:
            child, shared = closest
            if shared == child.num_bytes:
                self._remove(child)
        node = Node(parent=parent, edge=edge, key=key, pages=pages, start=parent.end)
        node.serial = self.num_entered = self.num_entered + 1
        node.tick = node.created = self.tick
        node.priority = priority
        _raise_priority(parent, priority)
        self.pin(node, expires)
        if parent.children is NO_CHILDREN:
            parent.children = {}
        parent.trim()
        parent.children[key] = node
        if parent.index is not None:
            parent.index.add(key, parent.children)
        self._allocator.store(pages)
        self.num_evictable += len(pages)
        node.root.num_kept_pages += len(pages)
        self.num_nodes += 1
        self.order.admit(node)
        self.quotas.note(node)
        if self._blocks is not None:
            self._blocks.enter(node)
        return node

    def _split(self, node: Node, num_bytes: int) -> Node:
        """Move the first ``num_bytes`` of ``node``'s edge to a new parent and return that.

        ``node`` stays the lower part and keeps its serial, so that receipts on it go on covering what they covered;
        the upper part is new.
        """
        num_pages = num_bytes // self.page_bytes
        assert 0 < num_pages < node.num_pages, f"split of {node.num_pages} pages at {num_pages}"
        parent = node.parent
        assert parent is not None, "split of a root or of a node that left the tree"
        upper = Node(
            parent=parent,
            edge=node.edge[:num_bytes],
            key=node.key,
            pages=node.pages[:num_pages],
            start=node.start,
        )
        upper.serial = self.num_entered = self.num_entered + 1
        upper.lock_ref = node.lock_ref
        upper.tick, upper.created, upper.hits = node.tick, node.created, node.hits
        upper.priority, upper.expires = node.priority, node.expires
        parent.children[upper.key] = upper
        node.edge = node.edge[num_bytes : node.num_bytes]
        node.pages = node.pages[num_pages : node.num_pages]
        upper.hashes, node.hashes = node.hashes[:num_pages], node.hashes[num_pages : node.num_pages]
        node.num_pages -= num_pages
        node.key = node.edge[: self.page_bytes]
        node.start = upper.end
        node.parent = upper
        upper.children = {node.key: node}
        self.num_nodes += 1
        if upper.lock_ref:
            self.num_locked_nodes += 1
        else:
            self.order.split(upper, node)
        if upper.expires:
            self._pins.add(upper)
        return upper

    def _remove(self, node: Node) -> None:
        """Take an unlocked leaf out of the tree and free its pages."""
        self._detach(node)
        self._allocator.drop(node.live_pages())

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "removing a root or a node that left the tree"
        assert not node.lock_ref, f"removing a node that has {node.lock_ref} locks"
        assert not node.children, f"removing a node that has {len(node.children)} children"
        if self._blocks is not None:
            self._blocks.leave(node)
        self.order.withdraw(node)
        del parent.children[node.key]
        node.parent = None
        self.num_nodes -= 1
        self.num_evictable -= node.num_pages
        node.root.num_kept_pages -= node.num_pages
        if not parent.children:
            if isinstance(parent, Root):
                self._prune(parent)
            elif not parent.lock_ref:
                self.order.became_leaf(parent)
                self.quotas.note(parent)

    def _prune(self, root: Root) -> None:
        """Forget a root that holds nothing: one is made for every new namespace, salted ones included."""
        if root.children or root.lock_ref:
            return
        if root.flushed:
            self.flushed_roots.remove(root)
        else:
            del self.roots[root.namespace]
            self.quotas.forget(root)

    def _lock_one(self, node: Node) -> None:
        if node.lock_ref == 0:
            self.order.withdraw(node)
            self._count_locked(node, 1)
        node.lock_ref += 1

    def _count_locked(self, node: Node, sign: int) -> None:
        self.num_locked_nodes += sign
        self.num_protected += sign * node.num_pages
        self.num_evictable -= sign * node.num_pages
        node.root.num_locked_pages += sign * node.num_pages

    def _spend(self, receipt: Receipt) -> None:
        assert not receipt.released, "this receipt has been released already"
        receipt.released = True
        self.num_receipts -= 1


def iter_nodes(root: Root) -> Iterator[Node]:
    """Yield every node below ``root``, parents before children."""
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        for child in node.children.values():
            yield child
            pending.append(child)


def _raise_priority(node: Node, priority: int) -> None:
    """Let ``node`` and all above it have ``priority`` at least: no ancestor ever has less."""
    while node.parent is not None and node.priority < priority:
        node.priority = priority
        node = node.parent
