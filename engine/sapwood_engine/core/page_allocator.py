"""Who holds each KV page: nobody, one request, or the prefix tree.

Keeps one invariant: every page is in exactly one state, and a page changes state only along
``free -> owned -> stored -> free`` or ``owned -> free``. Whatever breaks it (a double free, a page
stored twice) is an assertion that names the page. Pages are plain ints ``0 … num_pages - 1``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

FREE, OWNED, STORED = 0, 1, 2
_STATE_NAMES = ("free", "owned by a request", "stored in the tree")


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Fewer pages can be had than were asked for; nothing was changed."""

    needed: int
    available: int


class PageAllocator:
    """The state of every page. Each operation costs O(pages it is given), the counts cost O(1)."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._state = bytearray(num_pages)
        # A stack: the pages freed last are handed out first, while they may still be in the cores' caches.
        self._free = list(range(num_pages - 1, -1, -1))
        self._num_stored = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_stored(self) -> int:
        return self._num_stored

    @property
    def num_owned(self) -> int:
        return self.num_pages - len(self._free) - self._num_stored

    def allocate(self, num_pages: int) -> list[int] | Shortfall:
        """Make ``num_pages`` free pages owned by the caller: all of them, or none."""
        if num_pages > len(self._free):
            return Shortfall(needed=num_pages, available=len(self._free))
        if num_pages == 0:
            return []
        pages = self._free[-num_pages:]
        del self._free[-num_pages:]
        for page in pages:
            self._state[page] = OWNED
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Owned pages become free. Asserts on a page that is not owned, a double free among them."""
        self._move(pages, OWNED, FREE)

    def store(self, pages: Collection[int]) -> None:
        """Owned pages now belong to the tree. Asserts on a page that is not owned."""
        self._move(pages, OWNED, STORED)
        self._num_stored += len(pages)

    def drop(self, pages: Collection[int]) -> None:
        """Pages that the tree gave up become free. Asserts on a page that is not stored."""
        self._move(pages, STORED, FREE)
        self._num_stored -= len(pages)

    def _move(self, pages: Iterable[int], expected: int, target: int) -> None:
        state = self._state
        for page in pages:
            assert page >= 0, f"page {page} does not exist"
            assert state[page] == expected, f"page {page} is {_STATE_NAMES[state[page]]}, not {_STATE_NAMES[expected]}"
            state[page] = target
            if target == FREE:
                self._free.append(page)

    def check_invariants(self, stored: Collection[int], owned: Collection[int] | None = None) -> list[str]:
        """Compare the states with the pages found in the tree and, where given, with those the requests hold.

        Returns one sentence a fault, an empty list when there is none.
        """
        faults: list[str] = []
        free = set(self._free)
        if len(free) != len(self._free):
            faults.append(f"the free list holds {len(self._free)} entries but only {len(free)} different pages")
        in_tree = set(stored)
        faults.extend(f"page {page} is both free and in the tree" for page in sorted(free & in_tree))
        if owned is not None:
            held = set(owned)
            faults.extend(f"page {page} is both free and held by a request" for page in sorted(free & held))
            faults.extend(f"page {page} is both in the tree and owned by a request" for page in sorted(in_tree & held))
            lost = set(range(self.num_pages)) - free - in_tree - held
            faults.extend(f"page {page} is lost: neither free nor in the tree nor held" for page in sorted(lost))
        for page, state in enumerate(self._state):
            found = FREE if page in free else STORED if page in in_tree else OWNED
            if state != found:
                faults.append(f"page {page} is recorded as {_STATE_NAMES[state]} but found {_STATE_NAMES[found]}")
        if self._num_stored != len(in_tree):
            faults.append(f"{self._num_stored} pages are counted as stored but the tree holds {len(in_tree)}")
        return faults
