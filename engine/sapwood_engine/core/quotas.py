"""How much of the tree a namespace may keep, and what of it goes first: its own unlocked leaves, in the eviction order.

Leaves are kept in order here only for namespaces with a quota, beside the order of the whole tree and by the same rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from sapwood_engine.core.radix_node import Node, Rank, Root
from sapwood_engine.core.request import Namespace

_SWEEP_ENTRIES = 64


class _Leaves:
    """A heap of unlocked leaves, O(log n) an operation.

    An entry is valid while its node is an unlocked leaf of the rank noted; invalid ones are passed over, or swept once
    they outnumber the valid.
    """

    def __init__(self, rank: Callable[[Node], Rank]) -> None:
        self._rank = rank
        self._heap: list[tuple[Rank, int, Node]] = []
        self._serial = 0
        self._sweep_at = _SWEEP_ENTRIES

    def note(self, node: Node) -> None:
        if node.lock_ref or node.children:
            return
        if len(self._heap) > self._sweep_at:
            # A node that was noted again without a new rank has several entries.
            self._heap = list({id(entry[2]): entry for entry in self._heap if self._is_valid(entry)}.values())
            heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + _SWEEP_ENTRIES
        self._serial += 1
        heappush(self._heap, (self._rank(node), self._serial, node))

    def first(self) -> Node | None:
        while self._heap and not self._is_valid(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def members(self) -> Iterator[Node]:
        return (entry[2] for entry in self._heap if self._is_valid(entry))

    def _is_valid(self, entry: tuple[Rank, int, Node]) -> bool:
        rank, _, node = entry
        return node.parent is not None and not node.lock_ref and not node.children and self._rank(node) == rank


class Quotas:
    """The quotas by namespace, in pages, and the leaves of the namespaces that have one."""

    def __init__(self, rank: Callable[[Node], Rank], *, default_pages: int | None) -> None:
        """``rank``: of unlocked leaves, the smallest goes first; ``default_pages``: of whom `set` does not name."""
        self._rank = rank
        self._default_pages = default_pages
        self._pages: dict[Namespace, int] = {}
        self._leaves: dict[Root, _Leaves] = {}

    def pages(self, namespace: Namespace) -> int | None:
        """Return how many pages ``namespace`` may keep, None where any number."""
        return self._pages.get(namespace, self._default_pages)

    def set(self, namespace: Namespace, num_pages: int | None) -> None:
        """Let ``namespace`` keep ``num_pages``, None for the default; `watch` its root anew, if it has one."""
        if num_pages is None:
            self._pages.pop(namespace, None)
        else:
            self._pages[namespace] = num_pages

    def watch(self, root: Root, nodes: Iterable[Node] = ()) -> None:
        """Keep the leaves of ``root``, whose nodes are ``nodes``, in order if it has a quota."""
        self.forget(root)
        if self.pages(root.namespace) is not None:
            leaves = self._leaves[root] = _Leaves(self._rank)
            for node in nodes:
                leaves.note(node)

    def forget(self, root: Root) -> None:
        """``root`` leaves the tree, or is out of reach."""
        self._leaves.pop(root, None)

    def note(self, node: Node) -> None:
        """``node`` may be an unlocked leaf from now on, or its rank has changed."""
        if self._leaves and (leaves := self._leaves.get(node.root)) is not None:
            leaves.note(node)

    def victim(self, root: Root) -> tuple[Node, int] | None:
        """Return the leaf that goes next and how many pages too many ``root`` keeps.

        None while it keeps no more than its quota, or nothing that is not locked.
        """
        leaves, quota = self._leaves.get(root), self.pages(root.namespace)
        if leaves is None or quota is None or root.num_kept_pages <= quota or (first := leaves.first()) is None:
            return None
        return first, root.num_kept_pages - quota

    def members(self, root: Root) -> list[Node] | None:
        """Return the leaves held of ``root``, some perhaps twice, for invariant checks; None where none are kept."""
        leaves = self._leaves.get(root)
        return None if leaves is None else list(leaves.members())
