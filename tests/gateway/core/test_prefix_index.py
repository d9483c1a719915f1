"""Which replicas hold how much of a prompt, compared with a set of blocks for each."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sapwood_gateway.core.prefix_index import PrefixIndex

CAPACITY = 40
names = st.sampled_from(["a", "b", "c", "d"])


def blocks(text: str) -> list[bytes]:
    """``"xy"`` -> the chain of two blocks whose second is another one than that of ``"zy"``."""
    return [text[: end + 1].encode() for end in range(len(text))]


chains = st.sampled_from(["", "x", "xx", "xy", "y", "yx", "x" * 15, "x" * 16, "x" * 17, "x" * 16 + "y" * 20]).map(
    blocks
)


class AgainstOneListAReplica(RuleBasedStateMachine):
    """The naive index is a list of blocks for each replica, the one used the longest time ago first."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[str, list[bytes]] = {}
        self.most_held = 0

    def held_or_join(self, name: str) -> list[bytes]:
        self.index.join(name, CAPACITY)
        return self.held.setdefault(name, [])

    @rule(name=names, chain=chains)
    def store(self, name: str, chain: Sequence[bytes]) -> None:
        held = self.held_or_join(name)
        self.index.store(name, chain)
        for block in reversed(chain):
            if block in held:
                held.remove(block)
            held.append(block)
        del held[: max(0, len(held) - CAPACITY)]

    @rule(name=names, chain=chains.filter(bool))
    def remove(self, name: str, chain: Sequence[bytes]) -> None:
        """A block goes with all that follow on it, and some that were not there."""
        held = self.held_or_join(name)
        gone = [block for block in held if block.startswith(chain[-1])]
        self.index.remove(name, [chain[-1], *gone, b"unknown"])
        held[:] = [block for block in held if block not in gone]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.index.clear(name)
        self.held[name] = []

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.index.leave(name)
        self.held.pop(name, None)

    @rule(chain=chains)
    def matched(self, chain: Sequence[bytes]) -> None:
        expected = {}
        for name, held in self.held.items():
            depth = next((at for at, block in enumerate(chain) if block not in held), len(chain))
            if depth:
                expected[name] = depth
        assert self.index.matched(chain) == expected

    @invariant()
    def counts_agree(self) -> None:
        assert {name: self.index.num_blocks(name) for name in self.held} == {
            name: len(held) for name, held in self.held.items()
        }

    @invariant()
    def memory_is_bounded(self) -> None:
        kept = {block for held in self.held.values() for block in held}
        assert len(kept) <= self.index.num_entries <= 60  # more than there are blocks


TestPrefixIndex = AgainstOneListAReplica.TestCase
TestPrefixIndex.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_what_cleared_replicas_held_leaves_memory_as_others_store() -> None:
    index = PrefixIndex()
    index.join("a", 100)
    index.join("b", 100)
    index.store("a", [b"old %d" % number for number in range(100)])
    index.clear("a")
    for number in range(50):
        index.store("b", [b"new %d" % number])
    assert index.num_entries == 50


def test_a_replica_that_comes_and_goes_for_ever_takes_no_more_room() -> None:
    index = PrefixIndex()
    for number in range(1_000):
        name = f"replica {number}"
        index.join(name, 10)
        index.store(name, [b"%d %d" % (number, block) for block in range(10)])
        index.leave(name)
    assert index.num_entries <= 20


def test_every_replica_is_matched_up_to_its_own_end_however_long_the_prompt() -> None:
    chain = blocks("x" * 100)
    index = PrefixIndex()
    for num_held in range(101):
        index.join(f"holds {num_held}", 100)
        index.store(f"holds {num_held}", chain[:num_held])
    for length in range(101):
        expected = {f"holds {num_held}": min(num_held, length) for num_held in range(101)}
        assert index.matched(chain[:length]) == {name: depth for name, depth in expected.items() if depth}


def test_the_end_of_a_prompt_goes_before_its_beginning() -> None:
    index = PrefixIndex()
    index.join("a", 3)
    index.store("a", blocks("xxx"))
    index.store("a", blocks("y"))
    assert index.matched(blocks("xxx")) == {"a": 2}
    assert index.matched(blocks("yy")) == {"a": 1}
