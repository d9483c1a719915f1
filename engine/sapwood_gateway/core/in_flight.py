"""Blocks that replicas are about to hold: those of prompts that were sent and are not computed yet.

An engine tells of a block once it is computed, which may be seconds after its prompt was sent. Prompts that begin
alike and come meanwhile would look new, and be computed on one replica each.

Prompts that begin alike share a path of a tree, whose edges are as long as nobody goes another way, so that what a
prompt costs is the number of ways that part from it and not its length::

    root ── system prompt {a: 2, b: 1} ─┬─ a question {a: 1}
                                        ├─ another    {a: 1}
                                        └─ a third    {b: 1}

Invariants: every node has a prompt that goes through it; a node with one child has a prompt that ends there. A block's
name stands for all blocks before it, so where two prompts part is found by halving.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

_NOTHING: Mapping[str, int] = {}


class _Node:
    """Some blocks in a row, and how many prompts under way to each replica have all of them."""

    __slots__ = ("blocks", "children", "counts")

    def __init__(self, blocks: Sequence[bytes], counts: dict[str, int]) -> None:
        self.blocks = blocks
        self.counts = counts
        self.children: dict[bytes, _Node] = {}
        """By their first block."""

    def num_common(self, chain: Sequence[bytes], depth: int) -> int:
        """Return how many of its blocks follow in ``chain`` on the first ``depth``."""
        blocks = self.blocks
        length = min(len(blocks), len(chain) - depth)
        if blocks[length - 1] == chain[depth + length - 1]:
            return length
        return bisect_left(range(length), True, key=lambda at: blocks[at] != chain[depth + at])

    def split(self, at: int) -> None:
        """Keep the first ``at`` blocks, and give the others to an only child."""
        lower = _Node(self.blocks[at:], dict(self.counts))
        lower.children = self.children
        self.blocks = self.blocks[:at]
        self.children = {lower.blocks[0]: lower}

    def join(self) -> None:
        """Take in an only child, where all prompts go on to it."""
        for child in self.children.values() if len(self.children) == 1 else ():
            if child.counts == self.counts:
                self.blocks = [*self.blocks, *child.blocks]
                self.children = child.children


class InFlight:
    """For each replica the blocks of prompts under way, as many times as they are under way."""

    def __init__(self) -> None:
        self._root = _Node((), {})
        self._replicas: set[str] = set()

    def join(self, replica: str) -> None:
        """Know ``replica``, which has nothing under way. Joining again changes nothing."""
        self._replicas.add(replica)

    def __contains__(self, replica: str) -> bool:
        """Whether ``replica`` is known."""
        return replica in self._replicas

    def leave(self, replica: str) -> None:
        """Forget ``replica``, if it is known, and what is under way to it."""
        if replica in self:
            self._replicas.remove(replica)
            for parent, child in reversed(self._edges()):
                child.counts.pop(replica, None)
                _tidy(parent, child)

    def begin(self, replica: str, chain: Sequence[bytes]) -> None:
        """A prompt was sent to ``replica``, which is known."""
        node, depth = self._root, 0
        while depth < len(chain):
            child = node.children.get(chain[depth])
            if child is None:
                node.children[chain[depth]] = _Node(chain[depth:], {replica: 1})
                return
            common = child.num_common(chain, depth)
            if common < len(child.blocks):
                child.split(common)
            child.counts[replica] = child.counts.get(replica, 0) + 1
            node, depth = child, depth + common

    def end(self, replica: str, chain: Sequence[bytes]) -> None:
        """A prompt that `begin` was told of is computed, or never will be; a replica that has left is passed over."""
        path = []
        node, depth = self._root, 0
        while depth < len(chain):
            child = node.children.get(chain[depth])
            if child is None or replica not in child.counts:
                break  # it has left meanwhile
            path.append((node, child))
            if child.counts[replica] > 1:
                child.counts[replica] -= 1
            else:
                del child.counts[replica]
            node, depth = child, depth + len(child.blocks)
        for parent, child in reversed(path):
            _tidy(parent, child)

    def matched(self, chain: Sequence[bytes], held: Mapping[str, int] = _NOTHING) -> dict[str, int]:
        """Return how many blocks of ``chain``, from its beginning, each replica has under way or holds; none: absent.

        ``held``: how many each replica holds, none: absent.
        """
        matched = dict(held)
        node, depth = self._root, 0
        while depth < len(chain) and (child := node.children.get(chain[depth])) is not None:
            common = child.num_common(chain, depth)
            depth += common
            for replica in child.counts:
                if depth > matched.get(replica, 0):
                    matched[replica] = depth
            if common < len(child.blocks):
                break
            node = child
        return matched

    def check_invariants(self) -> list[str]:
        """Return what is wrong inside, for tests; empty where nothing is."""
        faults = []
        for _, node in self._edges():
            if not node.counts or min(node.counts.values()) < 1:
                faults.append(f"a node of {len(node.blocks)} blocks has {node.counts}")
            if [child.counts for child in node.children.values()] == [node.counts]:
                faults.append(f"a node of {len(node.blocks)} blocks ends where nobody parts")
        return faults

    def _edges(self) -> list[tuple[_Node, _Node]]:
        """Return every node but the root, each behind its parent and all that are above."""
        edges = [(self._root, child) for child in self._root.children.values()]
        for _, node in edges:  # which grows meanwhile
            edges += [(node, child) for child in node.children.values()]
        return edges


def _tidy(parent: _Node, child: _Node) -> None:
    """Keep the invariants for ``child``, whose counts have gone down, and below which they hold."""
    if child.counts:
        child.join()
    else:
        del parent.children[child.blocks[0]]
