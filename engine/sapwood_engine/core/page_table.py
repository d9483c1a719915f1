"""The KV pages of one request: which the tree owns, which are its own, and when they may go back.

Page i of a table holds tokens ``i * page_size …``::

    pages   [ tree | tree | tree | own | own | own ]
                                   ^ num_tree_pages

The tree's pages are locked by one receipt. Ownership moves to the tree when computed pages are stored;
where the tree had a page already the table is repointed and the request's duplicate becomes ``spare``:
still owned, to be released once no launched step uses it. A table frees nothing on its own account; the
scheduler says when.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood_engine.core.keys import TokenKey
from sapwood_engine.core.prefix_cache import PrefixCache, Receipt, Shortfall
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.step import PageCopy


class PageTable:
    """Opened by `open_table`; `close` gives everything back, exactly once."""

    __slots__ = ("_cache", "_priority", "_receipt", "_spare", "num_slots", "pages")

    def __init__(self, cache: PrefixCache, receipt: Receipt, pages: list[int], *, priority: int) -> None:
        """``priority``: the request's, which what it stores has for the eviction policy ``priority``."""
        self._cache = cache
        self._priority = priority
        self._receipt = receipt
        self._spare: list[int] = []
        self.pages = pages
        self.num_slots = len(pages) * cache.page_size
        """Tokens that the pages can hold."""

    @property
    def num_tree_pages(self) -> int:
        return self._receipt.num_pages

    @property
    def own_pages(self) -> list[int]:
        """Every page that the request owns, spares included."""
        return self.pages[self.num_tree_pages :] + self._spare

    @property
    def is_flushed(self) -> bool:
        """Whether the namespace was flushed since, so that nothing more of it is kept."""
        return self._receipt.root.flushed

    def grow(self, page: int) -> int:
        """Append a page just allocated; returns its index."""
        self.pages.append(page)
        self.num_slots += self._cache.page_size
        return len(self.pages) - 1

    def store(self, key: TokenKey) -> int | None:
        """Give the whole pages of ``key``, whose KV is computed, to the tree.

        Returns the first page index that reads another page now, None when none does; duplicates become
        spare.
        """
        inserted = self._cache.insert(self._receipt, key, self.pages, priority=self._priority)
        self._receipt = inserted.receipt
        self.pages[inserted.first : inserted.first + len(inserted.pages)] = inserted.pages
        if not inserted.duplicates:
            return None
        self._spare += inserted.duplicates
        return inserted.first

    def release_spare(self) -> None:
        """No launched step uses the spare pages any more."""
        self._cache.release(self._spare)
        self._spare = []

    def close(self, key: TokenKey, *, pinned_until: float = 0.0) -> None:
        """Store ``key``, whose KV is computed, the page filled in part included, and give back lock and
        pages.

        An empty key stores nothing. ``pinned_until``: see `PrefixCache.finish`. No launched step may use the table
        any more.
        """
        if key:
            self._spare += self._cache.finish(
                self._receipt, key, self.pages, priority=self._priority, pinned_until=pinned_until
            )
        else:
            self._spare += self.pages[self.num_tree_pages :]
            self._cache.unlock(self._receipt)
        self.pages = []
        self.release_spare()


@dataclass(frozen=True, slots=True)
class Opening:
    """A table with room for all tokens of a key, and how many of them need no computing."""

    table: PageTable
    num_cached: int
    copy: PageCopy | None
    """To run in the step planned now."""
    reuse_gap_seconds: tuple[float, ...] = ()
    """See `Match.reuse_gap_seconds`."""


def open_table(
    cache: PrefixCache,
    namespace: Namespace,
    key: TokenKey,
    *,
    num_tokens: int,
    limit_tokens: int,
    headroom_pages: int,
    priority: int = 0,
) -> Opening | Shortfall:
    """Match, lock and allocate pages for the ``num_tokens`` tokens of ``key``.

    At most ``limit_tokens`` come from the cache. ``headroom_pages`` must stay available beyond that; a shortfall
    changes nothing but the recency of the match.
    """
    match = cache.match(namespace, key, limit_tokens=limit_tokens)
    receipt = cache.lock(match)
    needed = -(-num_tokens // cache.page_size) - len(match.pages)
    available = cache.num_available()
    own: list[int] | Shortfall = Shortfall(needed + headroom_pages, available)
    if needed + headroom_pages <= available:
        own = cache.allocate(needed)
    if isinstance(own, Shortfall):
        cache.unlock(receipt)
        return own
    table = PageTable(cache, receipt, [*match.pages, *own], priority=priority)
    copy = PageCopy(match.partial.page, own[0], match.partial.num_tokens) if match.partial else None
    return Opening(table, match.num_usable_tokens, copy, match.reuse_gap_seconds)
