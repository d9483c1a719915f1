"""What happens in a radix tree between two looks at it: one table for all that tell it."""

from __future__ import annotations

from typing import Any

Event = tuple[str, int, int]
"""``(kind, serial, tokens)``."""


def node(serial: int, tokens: int, *, parent: int | None = None, locks: int = 0, **fields: Any) -> dict[str, Any]:
    """A node as `/admin/cache` describes it, as far as it matters."""
    known = {"serial": serial, "parent": parent, "num_tokens": tokens, "lock_ref": locks}
    return {**known, "num_children": 0, "hits": 0, "tick": 0, **fields}


def tree(*nodes: dict[str, Any], truncated: bool = False) -> dict[str, Any]:
    """An answer of `/admin/cache`."""
    listed = [{"id": number, **each} for number, each in enumerate(nodes)]
    namespaces = [{"namespace": {"model_revision": "main"}, "nodes": listed}]
    return {"num_nodes": len(nodes), "truncated": truncated, "namespaces": namespaces}


EMPTY: dict[str, Any] = {"num_nodes": 0, "truncated": False, "namespaces": []}
LONG = tree(node(1, 64))
SPLIT = tree(node(2, 32), node(1, 32, parent=0), node(3, 16, parent=0))

TREE_CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], list[Event]]] = [
    ("nothing happens", LONG, LONG, []),
    ("a prefix comes", EMPTY, LONG, [("appeared", 1, 64)]),
    ("one comes locked", EMPTY, tree(node(1, 64, locks=1)), [("appeared", 1, 64), ("locked", 1, 64)]),
    ("it is locked", LONG, tree(node(1, 64, locks=2)), [("locked", 1, 64)]),
    ("another lock is no event", tree(node(1, 64, locks=1)), tree(node(1, 64, locks=2)), []),
    ("it is unlocked", tree(node(1, 64, locks=2)), LONG, [("unlocked", 1, 64)]),
    ("it is split by one that shares half", LONG, SPLIT, [("split", 2, 32), ("appeared", 3, 16)]),
    (
        "it is split twice",
        LONG,
        tree(node(4, 16), node(2, 16, parent=0), node(1, 32, parent=1)),
        [("split", 4, 16), ("split", 2, 16)],
    ),
    (
        "a split of what was locked locks nothing anew",
        tree(node(1, 64, locks=1)),
        tree(node(2, 32, locks=1), node(1, 32, parent=0, locks=1)),
        [("split", 2, 32)],
    ),
    (
        "the upper part alone is locked",
        LONG,
        tree(node(2, 32, locks=1), node(1, 32, parent=0)),
        [("split", 2, 32), ("locked", 2, 32)],
    ),
    ("it goes", LONG, EMPTY, [("evicted", 1, 64)]),
    ("its end goes", LONG, tree(node(1, 48)), [("evicted", 1, 16)]),
    (
        "it is split and its end goes",
        LONG,
        tree(node(2, 32), node(1, 16, parent=0)),
        [("split", 2, 32), ("evicted", 1, 16)],
    ),
    ("what came again is another", LONG, tree(node(2, 64)), [("appeared", 2, 64), ("evicted", 1, 64)]),
    ("what a cut answer leaves out has not gone", LONG, tree(node(2, 32), truncated=True), [("appeared", 2, 32)]),
    (
        "of what both cut answers list the change is known",
        tree(node(1, 64), truncated=True),
        tree(node(1, 64, locks=1), truncated=True),
        [("locked", 1, 64)],
    ),
    ("what a cut answer left out has not come", tree(node(2, 32), truncated=True), SPLIT, []),
]
"""``(name, before, after, events)``."""
