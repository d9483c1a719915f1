"""The parts a radix tree is made of: nodes, the order of a node's children, byte comparison.

All of them see bytes only; what the bytes of a key mean is in `core.keys`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from sapwood_engine.core.request import Namespace

Rank = tuple[float, ...]
"""Of nodes under one eviction policy: the smallest goes first."""


def common_prefix_bytes(key: bytes, offset: int, edge: bytes, limit: int) -> int:
    """Return how many bytes ``key[offset:]`` and ``edge`` share from their start, at most ``limit``.

    Halving by memcmp: every byte found equal is compared once, and no bytes are copied (a slice of a
    memoryview is only a view; comparing two memoryviews, in contrast, goes element by element).
    """
    low, high = 0, min(limit, len(edge), len(key) - offset)
    with memoryview(edge) as view:
        probe = high
        while low < high:
            if key.startswith(view[low:probe], offset + low):
                low = probe
            else:
                high = probe - 1
            probe = (low + high + 1) // 2
    return low


class Node:
    """An edge of whole pages below ``parent``; or, as a tail, one page filled only in part.

    A tail's edge is shorter than one page; a tail is always a leaf. ``edge`` and ``pages`` are immutable, so
    that a match can hand them out and a one-page edge can be its own key; what eviction cuts off their end is
    only counted in ``num_pages`` until half of them is gone.
    """

    __slots__ = (
        "children",
        "created",
        "edge",
        "entry",
        "expires",
        "floor",
        "hashes",
        "hits",
        "index",
        "key",
        "lock_ref",
        "newer",
        "num_pages",
        "older",
        "pages",
        "parent",
        "priority",
        "root",
        "serial",
        "start",
        "tick",
    )

    def __init__(self, *, parent: Node | None, edge: bytes, key: bytes, pages: tuple[int, ...], start: int) -> None:
        self.parent = parent
        """None for a root, and for a node that left the tree."""
        if parent is not None:
            self.root: Root = parent.root
        self.key = key
        """The first page's bytes (a tail's only bytes): the node's name among ``parent.children``."""
        self.edge = edge
        self.pages = pages
        self.num_pages = len(pages)
        """So many of ``pages``, and their bytes of ``edge``, are in the tree."""
        self.hashes: tuple[bytes, ...] = ()
        """Of each of ``pages`` where a `core.block_log` is kept; none of a page filled in part."""
        self.start = start
        """Whole pages above this node, on the way from the root."""
        self.children = NO_CHILDREN
        self.index: ChildIndex | None = None
        self.lock_ref = 0
        """Receipts at this node or below it."""
        self.serial = 0
        """Its number in the tree, given when it enters; 0 of a root."""
        self.tick = 0
        self.created = 0
        self.hits = 0
        self.priority = 0
        self.expires = 0.0
        """Time until which a session pin holds, 0 for none; never less than a child's."""
        # The fields below are the eviction order's own.
        self.older: Node | None = None
        self.newer: Node | None = None
        self.entry = 0
        self.floor = 0.0

    @property
    def end(self) -> int:
        """Pages from the root to the end of this edge."""
        return self.start + self.num_pages

    @property
    def num_bytes(self) -> int:
        return self.num_pages * len(self.key)

    def live_pages(self) -> tuple[int, ...]:
        return self.pages if len(self.pages) == self.num_pages else self.pages[: self.num_pages]

    def cut(self, num_pages: int) -> tuple[int, ...]:
        """Keep only the first ``num_pages`` pages; return the others. Amortised O(pages cut)."""
        gone = self.pages[num_pages : self.num_pages]
        self.num_pages = num_pages
        if 2 * num_pages <= len(self.pages):
            self.trim()
        return gone

    def trim(self) -> None:
        """Forget what was cut. Inner nodes always have."""
        if len(self.pages) != self.num_pages:
            self.pages = self.pages[: self.num_pages]
            self.hashes = self.hashes[: self.num_pages]
            self.edge = self.edge[: self.num_bytes]


NO_CHILDREN: dict[bytes, Node] = {}
"""What every leaf has, so that it need not keep a dictionary of its own; never written to."""


class Root(Node):
    """The top of one namespace; its edge is empty, no other node's is."""

    __slots__ = ("flushed", "namespace", "num_kept_pages", "num_locked_pages")

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(parent=None, edge=b"", key=b"", pages=(), start=0)
        self.root = self
        self.namespace = namespace
        self.num_kept_pages = 0
        """Pages that the namespace keeps."""
        self.num_locked_pages = 0
        """Those of them that are locked."""
        self.flushed = False
        """A flushed root is out of reach of matches; what is locked below it goes when it is unlocked."""


class ChildIndex:
    """The keys of a node's children in order, in chunks, so that the closest key is found in O(log n).

    Two byte strings share the longest prefix when they are neighbours in lexicographic order: if
    ``a < b < c`` then ``lcp(a, c) <= lcp(a, b)``. So only the live neighbours of where a query would stand
    can be the closest.

    Keys of evicted children are not taken out at eviction, which must stay cheap and would have to search for
    them; a query that meets one drops it, and when they outnumber the living all are swept.
    """

    __slots__ = ("_chunk_keys", "_chunks", "_firsts", "num_keys")

    def __init__(self, keys: Iterable[bytes], *, chunk_keys: int = 512) -> None:
        self._chunk_keys = chunk_keys
        self._chunks: list[list[bytes]] = []
        self._firsts: list[bytes] = []
        self.num_keys = 0
        """Keys entered and not taken out, those of evicted children included."""
        self._rebuild(keys)

    def _rebuild(self, keys: Iterable[bytes]) -> None:
        ordered = sorted(keys)
        size = self._chunk_keys
        self._chunks = [ordered[at : at + size] for at in range(0, len(ordered), size)] or [[]]
        self._firsts = [chunk[0] for chunk in self._chunks if chunk] or [b""]
        self.num_keys = len(ordered)

    def add(self, key: bytes, children: dict[bytes, Node]) -> None:
        """Enter ``key``, which ``children`` has just gained; twice, if it was one of theirs before."""
        if self.num_keys > 2 * len(children) + self._chunk_keys:
            self._rebuild(children)
            return
        at = self._chunk_of(key)
        chunk = self._chunks[at]
        insort(chunk, key)
        self._firsts[at] = chunk[0]
        self.num_keys += 1
        if len(chunk) > 2 * self._chunk_keys:
            half = chunk[self._chunk_keys :]
            del chunk[self._chunk_keys :]
            self._chunks.insert(at + 1, half)
            self._firsts.insert(at + 1, half[0])

    def neighbours(self, query: bytes, children: dict[bytes, Node]) -> list[bytes]:
        """Return the keys of ``children`` next to ``query``: the last before it and the first from it on."""
        found = []
        while (left := self._before(query)) is not None:
            if left[2] in children:
                found.append(left[2])
                break
            self._discard(left[0], left[1])
        while (right := self._from(query)) is not None:
            if right[2] in children:
                found.append(right[2])
                break
            self._discard(right[0], right[1])
        return found

    def _chunk_of(self, key: bytes) -> int:
        return max(0, bisect_left(self._firsts, key) - 1)

    def _before(self, query: bytes) -> tuple[int, int, bytes] | None:
        at = self._chunk_of(query)
        position = bisect_left(self._chunks[at], query) - 1
        if position < 0:
            return None
        return at, position, self._chunks[at][position]

    def _from(self, query: bytes) -> tuple[int, int, bytes] | None:
        at = self._chunk_of(query)
        position = bisect_left(self._chunks[at], query)
        if position == len(self._chunks[at]):
            at, position = at + 1, 0
            if at == len(self._chunks):
                return None
        return at, position, self._chunks[at][position]

    def _discard(self, at: int, position: int) -> None:
        chunk = self._chunks[at]
        del chunk[position]
        self.num_keys -= 1
        if chunk:
            self._firsts[at] = chunk[0]
        elif len(self._chunks) > 1:
            del self._chunks[at], self._firsts[at]
        else:
            self._firsts[at] = b""

    def holds(self, keys: Iterable[bytes]) -> bool:
        """Is every one of ``keys`` here, and all in order?"""
        entries = [key for chunk in self._chunks for key in chunk]
        firsts = [chunk[0] if chunk else b"" for chunk in self._chunks]
        return (
            entries == sorted(entries)
            and firsts == self._firsts
            and self.num_keys == len(entries)
            and set(keys) <= set(entries)
        )
