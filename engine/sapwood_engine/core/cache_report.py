"""Reads a prefix cache without changing it: the integrity check, and the tree as plain values for people."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from sapwood_engine.core.keys import KeyFormat
from sapwood_engine.core.page_allocator import PageAllocator
from sapwood_engine.core.radix_node import NO_CHILDREN, Node, Root
from sapwood_engine.core.radix_tree import RadixTree, iter_nodes
from sapwood_engine.core.request import Namespace


def find_faults(tree: RadixTree, allocator: PageAllocator, owned: Collection[int] | None) -> list[str]:
    """Count from the pages that the nodes hold, compare with every counter and state, name what differs."""
    faults = ["a leaf's shared empty dictionary was written to"] if NO_CHILDREN else []
    holders: Counter[int] = Counter()
    protected = evictable = num_nodes = num_locked = num_receipts = 0
    unlocked: set[int] = set()
    leaves: set[int] = set()
    serials: set[int] = set()
    for root in (*tree.roots.values(), *tree.flushed_roots):
        num_receipts += root.lock_ref
        faults.extend(_root_faults(tree, root))
        before = evictable, protected
        for node in iter_nodes(root):
            num_nodes += 1
            serials.add(node.serial)
            holders.update(node.live_pages())
            faults.extend(f"{fault}, {_name(node)}" for fault in _node_faults(node, tree))
            if node.lock_ref:
                num_locked += 1
                protected += node.num_pages
                continue
            evictable += node.num_pages
            unlocked.add(id(node))
            if not node.children:
                leaves.add(id(node))
        found_pages, found_locked = evictable - before[0] + protected - before[1], protected - before[1]
        if (root.num_kept_pages, root.num_locked_pages) != (found_pages, found_locked):
            faults.append(
                f"{root.num_kept_pages} pages of a namespace are counted, {root.num_locked_pages} of them locked, "
                f"but the tree has {found_pages}, {found_locked} of them locked"
            )
    faults.extend(f"page {page} is in {times} places of the tree" for page, times in holders.items() if times > 1)
    for what, counted, found in (
        ("protected pages", tree.num_protected, protected),
        ("evictable pages", tree.num_evictable, evictable),
        ("nodes", tree.num_nodes, num_nodes),
        ("locked nodes", tree.num_locked_nodes, num_locked),
        ("receipts", tree.num_receipts, num_receipts),
    ):
        if counted != found:
            faults.append(f"{counted} {what} are counted but the tree has {found}")
    if len(serials) != num_nodes or not serials <= set(range(1, tree.num_entered + 1)):
        faults.append(f"{num_nodes} nodes have {len(serials)} serials, {tree.num_entered} were given")
    faults.extend(_order_faults(tree, unlocked, leaves))
    faults.extend(allocator.check_invariants(set(holders), owned))
    return faults


def _root_faults(tree: RadixTree, root: Root) -> Iterator[str]:
    if root.edge or root.pages:
        yield "a root has an edge"
    if not root.flushed and tree.roots.get(root.namespace) is not root:
        yield "a root is filed under another namespace"
    if not root.children and not root.lock_ref:
        yield "an empty root was not forgotten"
    members = tree.quotas.members(root)
    if members is not None:
        leaves = {id(node) for node in iter_nodes(root) if not node.lock_ref and not node.children}
        if {id(node) for node in members} != leaves:
            yield f"a namespace with a quota has {len(leaves)} unlocked leaves, and its own order holds others"
    yield from _child_faults(root)


def _node_faults(node: Node, tree: RadixTree) -> Iterator[str]:
    if not node.key or not 0 < node.num_pages <= len(node.pages):
        yield f"an edge is empty or shorter than counted: {node.num_pages} of {len(node.pages)} pages"
    if len(node.edge) != len(node.pages) * len(node.key) or len(node.key) % tree.unit_bytes:
        yield f"an edge of {len(node.edge)} bytes holds {len(node.pages)} pages of {len(node.key)} bytes"
    if node.children and node.num_pages != len(node.pages):
        yield f"an inner node still has {len(node.pages)} pages but counts {node.num_pages}"
    if not node.edge.startswith(node.key):
        yield "a node is not keyed by its first page"
    if len(node.key) < tree.page_bytes and (node.num_pages != 1 or node.children or node.lock_ref):
        yield f"a tail has {node.num_pages} pages, {len(node.children)} children and {node.lock_ref} locks"
    if node.lock_ref < 0:
        yield f"the lock count is {node.lock_ref}"
    yield from _child_faults(node)


def _child_faults(node: Node) -> Iterator[str]:
    locks_below = 0
    for key, child in node.children.items():
        locks_below += child.lock_ref
        if child.parent is not node:
            yield "a child names another parent"
        if child.key != key:
            yield "a child is filed under another key than its own"
        if child.start != node.end:
            yield f"a child starts at page {child.start} but its parent ends at page {node.end}"
        if child.expires > node.expires and node.parent is not None:
            yield "a child is pinned longer than its parent"
    if locks_below > node.lock_ref:
        yield f"{locks_below} locks below a node that counts {node.lock_ref}"
    keys = sorted(node.children)
    if any(longer.startswith(shorter) for shorter, longer in pairwise(keys)):
        yield "a tail begins another child"
    if node.index is not None and not node.index.holds(keys):
        yield "the child index is out of order or lacks a child"


def _order_faults(tree: RadixTree, unlocked: set[int], leaves: set[int]) -> Iterator[str]:
    members = [id(node) for node in tree.order.members()]
    if len(members) != len(set(members)):
        yield "a node stands twice in the eviction order"
    if not leaves <= set(members) <= unlocked:
        yield (
            f"the eviction order holds {len(members)} nodes, "
            f"but {len(unlocked)} are unlocked, {len(leaves)} of them leaves"
        )
    victim = tree.order.victim()
    if unlocked and (victim is None or id(victim) not in leaves):
        yield "the next victim is not an unlocked leaf of the tree"


def _name(node: Node) -> str:
    first = node.pages[0] if node.pages else "none"
    return f"at the node of pages {node.start}–{node.end}, which holds page {first}"


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """Tokens of KV that one namespace keeps, counted by the room that their pages take."""

    kv_tokens: int
    kv_locked_tokens: int
    """Those of them that running requests use."""
    quota_tokens: int | None
    """Most that it may keep, in whole pages; None for any number."""


def usage_of(tree: RadixTree, namespace: Namespace) -> NamespaceUsage:
    """Return what ``namespace`` keeps. O(1)."""
    root = tree.roots.get(namespace)
    num_pages, num_locked = (root.num_kept_pages, root.num_locked_pages) if root else (0, 0)
    quota = tree.quotas.pages(namespace)
    size = tree.page_bytes // tree.unit_bytes
    return NamespaceUsage(num_pages * size, num_locked * size, None if quota is None else quota * size)


def deepest_path(tree: RadixTree) -> int:
    """Return the most nodes on a path from a root."""
    return max((depth for root in tree.roots.values() for _, _, depth in _walk(root)), default=0)


def describe_tree(tree: RadixTree, keys: KeyFormat, *, max_nodes: int, token_ids: int) -> dict[str, Any]:
    """Return namespaces and their nodes, nearest to the roots first, at most ``max_nodes`` in all.

    ``{"num_nodes", "truncated", "namespaces": [{"namespace": {…}, "kv_tokens", "kv_locked_tokens",
    "quota_tokens", "nodes": [node, …]}]}``, see `NamespaceUsage`; a node is ``{"id", "serial", "parent",
    "depth", "num_tokens", "num_pages", "num_children", "lock_ref", "hits", "tick", "priority"}``, where ``parent`` is
    the ``id`` of a node listed before it, None at the top. ``id`` is its place in this answer; ``serial`` is its own
    for as long as it is in the tree, and never another's: at a split the lower part keeps it. ``token_ids``: its first
    so many are added.
    """
    namespaces = []
    budget = max_nodes
    for root in tree.roots.values():
        nodes = []
        for node_id, (node, parent, depth) in enumerate(_walk(root)):
            if budget == 0:
                break
            budget -= 1
            nodes.append(_describe(node, node_id, parent, depth, keys, token_ids=token_ids))
        usage = asdict(usage_of(tree, root.namespace))
        namespaces.append({"namespace": _public(root.namespace), **usage, "nodes": nodes})
        if budget == 0:
            break
    shown = max_nodes - budget
    return {"num_nodes": tree.num_nodes, "truncated": shown < tree.num_nodes, "namespaces": namespaces}


def _public(namespace: Namespace) -> dict[str, str | None]:
    """The namespace as people may see it: whether there is a salt, which is its owner's secret, and a tenant, not
    which."""
    public: dict[str, str | None] = asdict(namespace)
    return public | {name: "***" for name in ("tenant_salt", "tenant") if public[name] is not None}


def _walk(root: Root) -> Iterator[tuple[Node, int | None, int]]:
    """Yield ``(node, parent's index in this walk, depth)`` breadth first, from depth 1."""
    pending: deque[tuple[Node, int | None, int]] = deque((child, None, 1) for child in root.children.values())
    index = 0
    while pending:
        node, parent, depth = pending.popleft()
        yield node, parent, depth
        pending.extend((child, index, depth + 1) for child in node.children.values())
        index += 1


def _describe(
    node: Node, node_id: int, parent: int | None, depth: int, keys: KeyFormat, *, token_ids: int
) -> dict[str, Any]:
    description: dict[str, Any] = {
        "id": node_id,
        "serial": node.serial,
        "parent": parent,
        "depth": depth,
        "num_tokens": node.num_bytes // keys.unit_bytes,
        "num_pages": node.num_pages,
        "num_children": len(node.children),
        "lock_ref": node.lock_ref,
        "hits": node.hits,
        "tick": node.tick,
        "priority": node.priority,
    }
    if token_ids:
        description["token_ids"] = keys.token_ids(node.edge[: min(node.num_bytes, token_ids * keys.unit_bytes)])
    return description
