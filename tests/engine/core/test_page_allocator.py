"""Every page in exactly one state, whatever is asked of the allocator."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sapwood_engine.core.page_allocator import PageAllocator, Shortfall


class AgainstThreeSets(RuleBasedStateMachine):
    """The naive allocator is three disjoint sets."""

    @initialize(num_pages=st.integers(0, 12))
    def create(self, num_pages: int) -> None:
        self.pages = PageAllocator(num_pages)
        self.free = set(range(num_pages))
        self.owned: set[int] = set()
        self.stored: set[int] = set()

    @rule(num_pages=st.integers(0, 6))
    def allocate(self, num_pages: int) -> None:
        given = self.pages.allocate(num_pages)
        if num_pages > len(self.free):
            assert given == Shortfall(needed=num_pages, available=len(self.free))
            return
        assert isinstance(given, list)
        assert len(set(given)) == len(given) == num_pages
        assert set(given) <= self.free
        self.free -= set(given)
        self.owned |= set(given)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        pages = data.draw(st.sets(st.sampled_from(sorted(self.owned))))
        self.pages.release(pages)
        self.owned -= pages
        self.free |= pages

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        pages = data.draw(st.sets(st.sampled_from(sorted(self.owned))))
        self.pages.store(pages)
        self.owned -= pages
        self.stored |= pages

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        pages = data.draw(st.sets(st.sampled_from(sorted(self.stored))))
        self.pages.drop(pages)
        self.stored -= pages
        self.free |= pages

    @invariant()
    def agrees(self) -> None:
        assert self.pages.num_free == len(self.free)
        assert self.pages.num_owned == len(self.owned)
        assert self.pages.num_stored == len(self.stored)
        assert self.pages.check_invariants(self.stored, self.owned) == []


TestTheAllocatorAgainstThreeSets = AgainstThreeSets.TestCase
TestTheAllocatorAgainstThreeSets.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, derandomize=True, database=None
)


def test_a_page_freed_twice_is_named() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    assert isinstance(pages, list)
    allocator.release(pages)
    with pytest.raises(AssertionError, match=f"page {pages[0]} is free, not owned by a request"):
        allocator.release([pages[0]])


def test_a_page_in_the_tree_cannot_be_released_by_a_request() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(1)
    assert isinstance(pages, list)
    allocator.store(pages)
    with pytest.raises(AssertionError, match="is stored in the tree, not owned by a request"):
        allocator.release(pages)


def test_a_page_that_is_not_owned_cannot_enter_the_tree() -> None:
    allocator = PageAllocator(4)
    with pytest.raises(AssertionError, match="page 3 is free, not owned"):
        allocator.store([3])


def test_a_negative_page_is_refused_rather_than_counted_from_the_end() -> None:
    allocator = PageAllocator(4)
    assert isinstance(allocator.allocate(4), list)
    with pytest.raises(AssertionError, match="page -1"):
        allocator.release([-1])


def test_a_lost_page_is_named() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    assert isinstance(pages, list)
    faults = allocator.check_invariants(stored=(), owned=pages[1:])
    assert faults == [f"page {pages[0]} is lost: neither free nor in the tree nor held"]
