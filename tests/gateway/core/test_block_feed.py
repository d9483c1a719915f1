"""Engines' events into the index: exact while nothing is missed, and nothing untrue afterwards."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sapwood_gateway.core.block_feed import (
    MOST_KEPT_BATCHES,
    Applied,
    Batch,
    BlockFeed,
    Cleared,
    Event,
    Removed,
    Stored,
)
from sapwood_gateway.core.prefix_index import PrefixIndex


class Fleet:
    """An index that two engines publish to; ``x``, ``y`` … are prompts of one block."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        for name in "ab":
            self.index.join(name, 1_000)
        self.a, self.b = BlockFeed(self.index, "a"), BlockFeed(self.index, "b")
        for feed in (self.a, self.b):
            feed.apply(stored(0, "xyz"))
        for sequence in range(1, 10):
            self.a.apply(stored(sequence, str(sequence)))

    def holders(self, block: str) -> set[str]:
        return set(self.index.matched([block.encode()]))


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def stored(sequence: int, names: str = "", epoch: str = "first") -> Batch:
    return Batch(epoch, sequence, [Stored(tuple(name.encode() for name in names))])


def test_events_that_follow_on_are_applied(fleet: Fleet) -> None:
    assert fleet.a.last_applied == ("first", 9)
    assert fleet.holders("9") == {"a"}
    assert fleet.holders("x") == {"a", "b"}


@pytest.mark.parametrize("epoch", ["first", "second", ""])
def test_number_0_again_begins_from_nothing_with_what_it_brings(fleet: Fleet, epoch: str) -> None:  # H11
    assert fleet.a.apply(stored(0, "n", epoch)) == "applied"
    assert fleet.holders("n") == {"a"}
    assert fleet.holders("x") == {"b"}
    assert fleet.index.num_blocks("a") == 1


def test_all_blocks_cleared_takes_those_of_that_replica_alone(fleet: Fleet) -> None:  # H11
    assert fleet.a.apply(Batch("first", 10, [Cleared(), Stored((b"n",))])) == "applied"
    assert fleet.holders("x") == {"b"}
    assert fleet.holders("n") == {"a"}


def test_a_flush_that_the_gateway_asked_for_takes_those_of_that_replica_alone(fleet: Fleet) -> None:  # H11
    fleet.index.clear("a")
    assert fleet.holders("x") == {"b"}
    assert fleet.a.apply(stored(10, "n")) == "applied"


def test_an_unknown_block_among_those_removed_does_not_keep_the_others(fleet: Fleet) -> None:  # H11
    assert fleet.a.apply(Batch("first", 10, [Removed((b"x", b"unknown", b"y"))])) == "applied"
    assert [fleet.holders(block) for block in "xyz"] == [{"b"}, {"b"}, {"a", "b"}]


@pytest.mark.parametrize(
    ("batch", "outcome"),
    [
        (stored(11, "n"), "gap"),
        (stored(10, "n", "second"), "gap"),
        (stored(3, "n"), "ignored"),
        (stored(3, "n", "second"), "gap"),
    ],
    ids=["one missed", "another engine", "sent again", "another engine's, earlier"],
)
def test_what_does_not_follow_on_is_a_gap_unless_it_was_sent_again(
    fleet: Fleet, batch: Batch, outcome: Applied
) -> None:
    assert fleet.a.apply(batch) == outcome
    assert fleet.holders("x") == ({"b"} if outcome == "gap" else {"a", "b"})
    assert not fleet.holders("n")


def test_without_epochs_an_earlier_number_may_be_another_engines() -> None:
    fleet = Fleet()
    fleet.a.apply(stored(0, "x", ""))
    fleet.a.apply(stored(1, "y", ""))
    fleet.a.apply(stored(2, "z", ""))
    assert fleet.a.apply(stored(1, "y", "")) == "gap"
    assert fleet.holders("x") == {"b"}


def test_who_joins_late_asks_for_a_snapshot_once_and_applies_what_came_meanwhile() -> None:
    index = PrefixIndex()
    index.join("a", 10)
    feed = BlockFeed(index, "a")
    assert [feed.apply(stored(number, str(number))) for number in (5, 6, 7)] == ["gap", "ignored", "ignored"]
    assert feed.heal(Batch("first", 5, [Stored((b"old", b"5"))])) == "applied"
    assert feed.apply(stored(8, "8")) == "applied"
    assert {block for block in (b"old", b"5", b"6", b"7", b"8") if index.matched([block])} == {
        *(b"old", b"5", b"6", b"7", b"8")
    }


def test_a_snapshot_that_does_not_reach_what_was_kept_is_a_gap_again() -> None:
    index = PrefixIndex()
    index.join("a", 10)
    feed = BlockFeed(index, "a")
    feed.apply(stored(7, "7"))
    assert feed.heal(Batch("first", 5, [Stored((b"old",))])) == "gap"
    assert feed.last_applied is None
    assert index.num_blocks("a") == 0
    assert feed.heal(Batch("first", 7, [Stored((b"7",))])) == "applied"


def test_a_snapshot_that_nobody_waits_for_changes_nothing(fleet: Fleet) -> None:
    assert fleet.a.heal(Batch("first", 3, [])) == "ignored"
    assert fleet.holders("9") == {"a"}


def test_what_is_kept_for_a_snapshot_is_bounded() -> None:
    index = PrefixIndex()
    index.join("a", 10)
    feed = BlockFeed(index, "a")
    for number in range(1, MOST_KEPT_BATCHES + 3):
        feed.apply(stored(number, "x"))
    assert feed.heal(Batch("first", 0, [])) == "gap"


class AgainstTheEngine(RuleBasedStateMachine):
    """An engine's blocks are a set; its batches reach the feed late, twice or not at all, snapshots late too."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.index.join("a", 1_000)
        self.feed = BlockFeed(self.index, "a")
        self.engine: set[int] = set()
        self.boots = 0
        self.restart()
        self.snapshot: Batch | None = None
        self.late: list[Batch] = []

    @rule()
    def restart(self) -> None:
        self.boots += 1
        self.sequence = -1
        self.engine = set()
        self.late = []

    @rule(data=st.data(), fate=st.sampled_from(["arrives", "arrives", "arrives twice", "is late", "is lost"]))
    def publish(self, data: st.DataObject, fate: str) -> None:
        event = data.draw(
            st.one_of(
                st.sets(st.integers(0, 5), max_size=3).map(_stored),
                st.sets(st.integers(0, 5), max_size=3).map(_removed),
                st.just(Cleared()),
            )
        )
        self.engine = _after(self.engine, event)
        self.sequence += 1
        batch = Batch(str(self.boots), self.sequence, [event])
        if fate == "is lost":
            return
        self.late.append(batch)
        if fate != "is late":
            for each in (*self.late, *([batch] if fate == "arrives twice" and batch.sequence else ())):
                self.take(self.feed.apply(each))
            self.late = []

    def take(self, outcome: Applied) -> None:
        if outcome == "gap":
            self.snapshot = Batch(str(self.boots), self.sequence, [_stored(self.engine)])

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def heal(self) -> None:
        snapshot, self.snapshot = self.snapshot, None
        assert snapshot is not None
        self.take(self.feed.heal(snapshot))

    @invariant()
    def never_knows_what_is_not_so(self) -> None:
        known = {number for number in range(6) if self.index.matched([b"%d" % number])}
        if self.feed.last_applied is None:
            assert not known
        elif self.feed.last_applied == (str(self.boots), self.sequence):
            assert known == self.engine


def _stored(numbers: set[int]) -> Event:
    return Stored(tuple(b"%d" % number for number in sorted(numbers)))


def _removed(numbers: set[int]) -> Event:
    return Removed(tuple(b"%d" % number for number in sorted(numbers)))


def _after(held: set[int], event: Event) -> set[int]:
    match event:
        case Stored(blocks):
            return held | {int(block) for block in blocks}
        case Removed(blocks):
            return held - {int(block) for block in blocks}
        case Cleared():
            return set()


TestBlockFeed = AgainstTheEngine.TestCase
TestBlockFeed.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
