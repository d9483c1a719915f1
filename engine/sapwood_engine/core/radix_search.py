"""What a tree holds of a key: the walk along whole pages, and the closest page behind them.

Changes nothing, but that a node with many children gets its `ChildIndex` when that is first wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.radix_node import (
    ChildIndex,
    Node,
    Root,
    common_prefix_bytes,
)

_SCAN_CHILDREN = 4
"""Up to so many children are looked at one by one; more get a `ChildIndex`."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a walk ended."""

    path: list[Node]
    """The nodes passed, the root excluded."""
    taken: int
    """Bytes matched of the last one's edge."""
    num_bytes: int
    """Bytes matched in all."""


@dataclass(frozen=True, slots=True)
class PartialPage:
    """A page of the tree whose first ``num_tokens`` tokens (fewer than a page) are the next ones of the key.

    It is not locked. Copy it in the step planned now (`StepPlan.copies` run in order and before any write),
    even if the allocation that follows evicts it.
    """

    page: int
    num_tokens: int


def find(root: Root, key: TokenKey, *, num_bytes: int, page_bytes: int) -> Found:
    """Walk down from ``root`` along the whole pages of the first ``num_bytes`` of ``key``."""
    size = page_bytes
    end = num_bytes - num_bytes % size
    path: list[Node] = []
    position = 0
    children = root.children
    while position < end:
        stop = position + size
        child = children.get(key[position:stop])
        if child is None:
            break
        path.append(child)
        # The dictionary has compared the first page already.
        if child.num_pages > 1:
            length = child.num_pages * size
            stop = position + length
            # An edge whose end was evicted is longer than counted and always takes the slow way.
            if stop > end or not key.startswith(child.edge, position):
                taken = common_prefix_bytes(key, position, child.edge, min(length, end - position))
                taken -= taken % size
                if taken < length:
                    return Found(path, taken, position + taken)
        position = stop
        children = child.children
    return Found(path, path[-1].num_bytes if path else 0, position)


def next_page(
    root: Root, found: Found, key: TokenKey, *, num_bytes: int, page_bytes: int, unit_bytes: int
) -> PartialPage | None:
    """Return the stored page that shares most tokens with what ``found`` left of ``key[:num_bytes]``.

    None when no page shares any.
    """
    at = found.num_bytes
    if at >= num_bytes:
        return None
    rest = key[at : min(num_bytes, at + page_bytes)]
    node = found.path[-1] if found.path else root
    if found.taken < node.num_bytes:
        edge = node.edge[found.taken : found.taken + page_bytes]
        shared = common_prefix_bytes(rest, 0, edge, len(rest))
        page = node.pages[found.taken // page_bytes]
    else:
        closest = closest_child(node, rest)
        if closest is None:
            return None
        child, shared = closest
        page = child.pages[0]
    num_tokens = shared // unit_bytes
    return PartialPage(page, num_tokens) if num_tokens else None


def closest_child(node: Node, rest: bytes) -> tuple[Node, int] | None:
    """Return the child of ``node`` whose first page shares most bytes with ``rest``, and how many.

    Of several the first in order; None if there are no children.
    """
    children = node.children
    if not children:
        return None
    candidates: Iterable[bytes] = children
    if len(children) > _SCAN_CHILDREN:
        if node.index is None:
            node.index = ChildIndex(children)
        candidates = node.index.neighbours(rest, children)
    unshared, key = min((-common_prefix_bytes(rest, 0, key, len(rest)), key) for key in candidates)
    return children[key], -unshared
