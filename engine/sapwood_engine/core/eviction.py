"""In which order cached pages go. Every order is kept incrementally: nothing is sorted when memory is short.

The tree tells an order what happens to its nodes and asks it for the next victim: an unlocked leaf. A policy
is a key (the smallest goes first) and what it updates when a node is used or evicted; `RankedOrder` keeps any
policy's leaves in a heap. `RecencyOrder` is the same as the policy ``lru``, at a cost that does not grow with
the cache (it is the default, and the two are tested against each other).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Literal

from sapwood_engine.core.radix_node import Node, Rank

PolicyName = Literal["lru", "lfu", "slru", "fifo", "mru", "filo", "priority", "ttl", "cost"]


class EvictionOrder(ABC):
    """What the tree tells, and the one thing it asks. Roots never appear here."""

    @abstractmethod
    def admit(self, node: Node) -> None:
        """``node`` is in the tree and unlocked from now on; its children, if any, were admitted before it."""

    @abstractmethod
    def withdraw(self, node: Node) -> None:
        """``node`` got locked or leaves the tree."""

    @abstractmethod
    def touch(self, node: Node) -> None:
        """``node`` and all above it were used: their ticks and hits have just changed."""

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """Unlocked ``lower``, a member, gave its first pages to its new parent ``upper``, not yet one."""

    @abstractmethod
    def became_leaf(self, node: Node) -> None:
        """Unlocked ``node`` lost its last child. None gains one: the tree grows below locked nodes only."""

    @abstractmethod
    def victim(self) -> Node | None:
        """Return the unlocked leaf that goes next, None when no node is unlocked."""

    @abstractmethod
    def evicted(self, node: Node) -> None:
        """Pages of ``node``, the last victim, are about to go."""

    @abstractmethod
    def rank(self, node: Node) -> Rank:
        """Return the place of the unlocked leaf ``node``: the smallest goes first."""

    @abstractmethod
    def members(self) -> Iterator[Node]:
        """Yield the nodes held, for invariant checks and in no promised order."""

    @abstractmethod
    def upcoming(self) -> Iterator[Node]:
        """Yield the nodes in the order in which they go if nothing else happens; the tree must not change meanwhile."""


class RecencyOrder(EvictionOrder):
    """Least recently used first, O(1) for every operation: one linked list through all unlocked nodes.

    A used path is moved to the new end deepest node first. So each node stands before its parent, and the old
    end is always a leaf: no search for it, and none for the next one when a parent becomes a leaf.
    """

    def __init__(self) -> None:
        self._end = Node(parent=None, edge=b"", key=b"", pages=(), start=0)
        self._end.older = self._end.newer = self._end

    def admit(self, node: Node) -> None:
        self._link(node, node, self._end)

    def withdraw(self, node: Node) -> None:
        self._unlink(node, node)
        # The links of a node that stays locked for long would keep evicted neighbours in memory.
        node.older = node.newer = None

    def touch(self, node: Node) -> None:
        first = node
        while first.lock_ref == 0 and first.parent is not None:
            # A path used together before is a run of the list already and moves as one piece.
            last = first
            above = first.parent
            while last.newer is above and above.parent is not None:
                last = above
                above = above.parent
            self._unlink(first, last)
            self._link(first, last, self._end)
            first = above

    def split(self, upper: Node, lower: Node) -> None:
        newer = lower.newer
        assert newer is not None, "split of a node that was never admitted"
        self._link(upper, upper, newer)

    def became_leaf(self, node: Node) -> None:
        pass

    def victim(self) -> Node | None:
        oldest = self._end.newer
        return None if oldest is self._end else oldest

    def evicted(self, node: Node) -> None:
        pass

    def rank(self, node: Node) -> Rank:
        return (node.tick,)

    def members(self) -> Iterator[Node]:
        node = self._end.newer
        while node is not None and node is not self._end:
            yield node
            node = node.newer

    def upcoming(self) -> Iterator[Node]:
        return self.members()

    @staticmethod
    def _unlink(first: Node, last: Node) -> None:
        older, newer = first.older, last.newer
        assert older is not None, "taking out a node that is not in the order"
        assert newer is not None, "taking out a node that is not in the order"
        older.newer = newer
        newer.older = older

    @staticmethod
    def _link(first: Node, last: Node, newer: Node) -> None:
        """Put the run ``first … last`` before ``newer``. The list is a ring, closed by the end."""
        older = newer.older
        assert older is not None, "putting a node before one that is not in the order"
        older.newer = first
        first.older = older
        last.newer = newer
        newer.older = last


class RankedOrder(EvictionOrder):
    """Smallest rank first: a heap over the unlocked leaves, O(log n) an operation.

    An entry is valid while its serial number is the node's ``entry``; a new rank is a new entry, and invalid
    ones are passed over, or swept once they outnumber the valid.
    """

    SWEEP_ENTRIES = 64

    def __init__(self, rank: Callable[[Node], Rank]) -> None:
        self._rank_of = rank
        self._heap: list[tuple[Rank, int, Node]] = []
        self._serial = 0
        self._num_valid = 0

    def admit(self, node: Node) -> None:
        self.used(node)
        if not node.children:
            self._push(node)

    def withdraw(self, node: Node) -> None:
        if node.entry:
            node.entry = 0
            self._num_valid -= 1

    def touch(self, node: Node) -> None:
        at = node
        while at.parent is not None:
            self.used(at)
            at = at.parent
        if node.entry:
            self.withdraw(node)
            self._push(node)

    def split(self, upper: Node, lower: Node) -> None:
        pass

    def became_leaf(self, node: Node) -> None:
        self._push(node)

    def victim(self) -> Node | None:
        heap = self._heap
        while heap and heap[0][2].entry != heap[0][1]:
            heappop(heap)
        return heap[0][2] if heap else None

    def evicted(self, node: Node) -> None:
        pass

    def used(self, node: Node) -> None:
        """A hook for policies that note something at each use."""

    def rank(self, node: Node) -> Rank:
        return self._rank_of(node)

    def members(self) -> Iterator[Node]:
        return (node for _, serial, node in self._heap if node.entry == serial)

    def upcoming(self) -> Iterator[Node]:
        heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
        heapify(heap)
        num_left: dict[int, int] = {}
        serial = self._serial
        while heap:
            node = heappop(heap)[2]
            yield node
            above = node.parent
            if above is None or above.parent is None or above.lock_ref:
                continue
            num_left[above.serial] = num_left.get(above.serial, len(above.children)) - 1
            if not num_left[above.serial]:
                serial += 1
                heappush(heap, (self._rank_of(above), serial, above))

    def _push(self, node: Node) -> None:
        self._serial += 1
        node.entry = self._serial
        self._num_valid += 1
        if len(self._heap) > 2 * self._num_valid + self.SWEEP_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapify(self._heap)
        heappush(self._heap, (self._rank_of(node), self._serial, node))


class CostOrder(RankedOrder):
    """Cheapest loss first: expected recompute cost per page, by GreedyDual with frequency.

    (GDSF, Cherkasova 1998.) The rank is the level at the last use + (hits + 1) * the cost of recomputing the
    leaf's last page, where

    - the cost of a page is ``1 + pages before it / QUADRATIC_PAGES``: attention makes a token dearer the more
      tokens stand before it, all else is the same for each;
    - reuse hazard is estimated by hits, aged by the level: the rank of the last victim. A leaf that is not
      used again is overtaken by the level, however many hits it once had.

    The hazard that the stack of `core.reuse_stack` measures (how likely what was hit so often is used again within
    twice the capacity) was tried in place of ``hits + 1`` and is no better: docs/miss-ratio.md has the figures.
    """

    QUADRATIC_PAGES = 256

    def __init__(self) -> None:
        super().__init__(self._loss)
        self._level = 0.0

    def used(self, node: Node) -> None:
        node.floor = self._level

    def split(self, upper: Node, lower: Node) -> None:
        upper.floor = lower.floor

    def evicted(self, node: Node) -> None:
        self._level = max(self._level, self._loss(node)[0])

    def _loss(self, node: Node) -> Rank:
        return (node.floor + (node.hits + 1) * (1.0 + node.end / self.QUADRATIC_PAGES), node.tick)


class Pins:
    """Which nodes are pinned until when, in the order in which the pins end."""

    SWEEP_PINS = 64

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []
        self._serial = 0
        self._sweep_at = self.SWEEP_PINS

    def add(self, node: Node) -> None:
        """``node.expires`` was set. An earlier pin of the same node counts no more."""
        self._serial += 1
        heappush(self._heap, (node.expires, self._serial, node))
        if len(self._heap) > self._sweep_at:
            # Nodes that were evicted or pinned anew would be kept in memory until their old pins end.
            self._heap = [pin for pin in self._heap if pin[2].expires == pin[0] and pin[2].parent is not None]
            heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + self.SWEEP_PINS

    def lapsed(self, now: float) -> list[Node]:
        """Take out the pins that end at ``now`` or before; return their nodes, descendants first."""
        nodes = []
        while self._heap and self._heap[0][0] <= now:
            expires, _, node = heappop(self._heap)
            if node.expires == expires and node.parent is not None:
                node.expires = 0.0
                nodes.append(node)
        nodes.sort(key=lambda node: -node.end)
        return nodes


RANKS: dict[PolicyName, Callable[[Node], Rank]] = {
    "lru": lambda node: (node.tick,),
    "lfu": lambda node: (node.hits, node.tick),
    # Segmented LRU: what was hit since it was stored outlives everything that never was (scan resistance).
    "slru": lambda node: (min(node.hits, 1), node.tick),
    "fifo": lambda node: (node.created,),
    "mru": lambda node: (-node.tick,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, node.tick),
    # Unpinned first, then the pin that ends first: a pin is a strong wish, no reason to run out of memory.
    "ttl": lambda node: (node.expires, node.tick),
}


def eviction_order(policy: PolicyName) -> EvictionOrder:
    """Return a new, empty order for ``policy``."""
    if policy == "lru":
        return RecencyOrder()
    if policy == "cost":
        return CostOrder()
    return RankedOrder(RANKS[policy])
