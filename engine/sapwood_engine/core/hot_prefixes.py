"""Which stored prefixes are worth most: a walk over the tree in portions, and what is chosen of what it found.

The walk (`Survey`) is the cache's: a portion at a time between two steps, while requests change the tree. It tells a
node once, parents before children, and nothing that was stored after it began. The choices (`nodes_of_most_worth`,
`paths_of_most_worth`) need no tree: whoever has all portions makes them.

Pages filled in part are left out: they have no hash, and hold less than a page each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sapwood_contract.http import BLOCK_NAME_BYTES
from sapwood_contract.keys import TOKEN_BYTES, chain
from sapwood_engine.core.block_log import root_hash
from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.radix_node import Node, Root
from sapwood_engine.core.request import Namespace

LEAST_USES = 1.0
"""A token that is expected to be used less often saves less than it costs to compute."""


class SurveyedNode(NamedTuple):
    """A node as the walk found it. Its number is its place among all that the walk tells.

    A tuple, for there may be a hundred thousand: it is made in a third of the time.
    """

    parent: int | None
    """Number of the node above it; None at the top."""
    num_tokens: int
    uses: float
    """See `prefix_worth.expected_uses`; of each of its tokens."""
    names: bytes
    """Of its pages, `BLOCK_NAME_BYTES` each; empty where none were asked for."""

    @property
    def worth_tokens(self) -> float:
        return self.uses * self.num_tokens


@dataclass(frozen=True, slots=True)
class SurveyedPath:
    """All tokens from the root to the end of a node."""

    namespace: Namespace
    key: TokenKey


class Survey:
    """One walk over the trees below ``roots``; holds what it has told, so let it go when done."""

    def __init__(
        self, roots: Iterable[Root], *, page_bytes: int, uses_of: Callable[[Node], float], has_names: bool
    ) -> None:
        """``uses_of``: see `prefix_worth.expected_uses`. ``has_names``: whether pages are named, which takes half a
        microsecond each where no log of blocks has named them."""
        self._page_bytes = page_bytes
        self._uses_of = uses_of
        self._has_names = has_names
        self._pending: list[Node] = []
        for root in roots:
            self._pending += root.children.values()
        self._numbers: dict[int, int] = {}
        """By serial."""
        # Of each node told, by its number. Columns, so that garbage collection has nothing to walk.
        self._parents: list[int | None] = []
        self._namespaces: list[Namespace] = []
        self._edges: list[bytes] = []
        self._num_bytes: list[int] = []
        self._last_hashes: list[bytes] = []

    @property
    def is_done(self) -> bool:
        return not self._pending

    def advance(self, *, max_nodes: int, max_pages: int) -> list[SurveyedNode]:
        """Return the next nodes: some ``max_nodes``, or as many as name ``max_pages`` pages; none once it is done."""
        nodes: list[SurveyedNode] = []
        num_pages = 0
        while self._pending and len(nodes) < max_nodes and num_pages < max_pages:
            for node in self._untold_path(self._pending.pop()):
                nodes.append(self._tell(node))
                num_pages += node.num_pages if self._has_names else 0
        return nodes

    def path(self, number: int) -> SurveyedPath:
        """Return the tokens up to the end of a node that was told, whether or not it is stored still."""
        edges = []
        at: int | None = number
        while at is not None:
            edges.append(self._edges[at][: self._num_bytes[at]])
            at = self._parents[at]
        return SurveyedPath(self._namespaces[number], b"".join(reversed(edges)))

    def _untold_path(self, node: Node) -> list[Node]:
        """Return ``node`` and what is above it and not told, the highest first; nothing of a page filled in part, and
        where it has left the tree.

        A node that waits to be told may have been split meanwhile: then its upper part is new, and above it.
        """
        if node.root.flushed or len(node.key) < self._page_bytes:
            return []
        path: list[Node] = []
        while node.serial not in self._numbers and not isinstance(node, Root):
            path.append(node)
            if node.parent is None:
                return []
            node = node.parent
        return path[::-1]

    def _tell(self, node: Node) -> SurveyedNode:
        above = node.parent
        assert above is not None, "a node of the tree without a parent"
        parent = None if isinstance(above, Root) else self._numbers[above.serial]
        num_bytes, names = node.num_bytes, b""
        if self._has_names:
            before = root_hash(node.root) if parent is None else self._last_hashes[parent]
            hashes = node.hashes[: node.num_pages] or chain(before, node.edge[:num_bytes], self._page_bytes)
            names = b"".join([each[:BLOCK_NAME_BYTES] for each in hashes])
            self._last_hashes.append(hashes[-1])
        self._numbers[node.serial] = len(self._parents)
        self._parents.append(parent)
        self._namespaces.append(node.root.namespace)
        self._edges.append(node.edge)
        self._num_bytes.append(num_bytes)
        self._pending += node.children.values()
        return SurveyedNode(parent, num_bytes // TOKEN_BYTES, self._uses_of(node), names)


def nodes_of_most_worth(nodes: Sequence[SurveyedNode], *, max_blocks: int) -> list[SurveyedNode]:
    """Return those of ``nodes`` with the most worth, the most first, as many as have ``max_blocks`` names together.

    One that does not fit ends it, so that nothing is named that is worth less than what is not.
    """
    chosen = []
    num_blocks = 0
    for node in sorted(nodes, key=lambda node: -node.worth_tokens):
        num_blocks += len(node.names) // BLOCK_NAME_BYTES
        if num_blocks > max_blocks:
            break
        chosen.append(node)
    return chosen


@dataclass(frozen=True, slots=True)
class HotPath:
    """A path that ends at the node of this number."""

    number: int
    worth_tokens: float
    """Of the nodes on it that are on no path before it."""
    parts: tuple[tuple[int, float], ...]
    """Tokens and uses of each node on it, the highest first."""


def paths_of_most_worth(nodes: Sequence[SurveyedNode], *, max_paths: int, max_tokens: int) -> list[HotPath]:
    """Return at most ``max_paths`` paths of at most ``max_tokens`` tokens together, those of the most worth first.

    The nodes that will be used most are taken one after the other, each with all above it, as long as there is room:
    computing a token costs the same wherever it stands. Where none below is used `LEAST_USES` times a path ends, and
    none of them begins another.
    """
    ends = _Ends(nodes)
    num_left = max_tokens
    used = [number for number, node in enumerate(nodes) if node.uses >= LEAST_USES]
    for number in sorted(used, key=lambda number: -nodes[number].uses):
        grown = ends.nearest_taken(number)
        if grown == number:
            continue
        extends = grown is not None and grown in ends.ends
        cost = ends.depths[number] - (ends.depths[grown] if extends and grown is not None else 0)
        if cost <= num_left and (extends or len(ends.ends) < max_paths):
            ends.take(number)
            num_left -= cost
    told: set[int] = set()
    paths = []
    for number in sorted(ends.ends, key=lambda number: -ends.worths[number]):
        above = _path_to(nodes, number)
        worth = sum(nodes[each].worth_tokens for each in above if each not in told)
        told.update(above)
        paths.append(HotPath(number, worth, tuple((nodes[each].num_tokens, nodes[each].uses) for each in above)))
    return sorted(paths, key=lambda path: -path.worth_tokens)


def _path_to(nodes: Sequence[SurveyedNode], number: int) -> list[int]:
    path = []
    at: int | None = number
    while at is not None:
        path.append(at)
        at = nodes[at].parent
    return path[::-1]


class _Ends:
    """Which nodes are taken, and which of them end a path."""

    def __init__(self, nodes: Sequence[SurveyedNode]) -> None:
        self._nodes = nodes
        self._taken: set[int] = set()
        self.ends: dict[int, None] = {}
        self.depths: list[int] = []
        """Tokens up to the end of each node."""
        self.worths: list[float] = []
        for node in nodes:
            above = (0, 0.0) if node.parent is None else (self.depths[node.parent], self.worths[node.parent])
            self.depths.append(above[0] + node.num_tokens)
            self.worths.append(above[1] + node.worth_tokens)

    def nearest_taken(self, number: int) -> int | None:
        """Return the nearest node that is taken, on the way from ``number`` itself to the top."""
        at: int | None = number
        while at is not None and at not in self._taken:
            at = self._nodes[at].parent
        return at

    def take(self, number: int) -> None:
        """Take ``number`` and all above it."""
        at: int | None = number
        while at is not None and at not in self._taken:
            self._taken.add(at)
            at = self._nodes[at].parent
        if at is not None:
            self.ends.pop(at, None)
        self.ends[number] = None
