"""What is under way to a replica, however many prompts share it; compared with a list of prompts."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sapwood_gateway.core.in_flight import InFlight

X, Y, Z = b"x", b"y", b"z"
names = st.sampled_from(["a", "b", "c"])


def blocks(text: str) -> list[bytes]:
    """``"xy"`` -> the chain of two blocks whose second is another one than that of ``"zy"``."""
    return [text[: end + 1].encode() for end in range(len(text))]


chains = st.text("xy", max_size=9).map(blocks)


class AgainstAListOfPrompts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight()
        self.prompts: list[tuple[str, Sequence[bytes]]] = []

    @rule(name=names, chain=chains)
    def begin(self, name: str, chain: Sequence[bytes]) -> None:
        self.in_flight.join(name)
        self.in_flight.begin(name, chain)
        self.prompts.append((name, chain))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name, chain = self.prompts.pop(data.draw(st.integers(0, len(self.prompts) - 1)))
        self.in_flight.end(name, chain)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.in_flight.leave(name)
        self.prompts = [each for each in self.prompts if each[0] != name]

    @rule(chain=chains, held=st.dictionaries(names, st.integers(1, 9)))
    def matched(self, chain: Sequence[bytes], held: dict[str, int]) -> None:
        expected = {name: min(depth, len(chain)) for name, depth in held.items() if chain}
        for name, prompt in self.prompts:
            common = len(set(prompt) & set(chain))
            if common > expected.get(name, 0):
                expected[name] = common
        assert self.in_flight.matched(
            chain, {name: min(depth, len(chain)) for name, depth in held.items() if chain}
        ) == (expected)

    @invariant()
    def it_is_sound(self) -> None:
        assert self.in_flight.check_invariants() == []


TestInFlight = AgainstAListOfPrompts.TestCase
TestInFlight.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def under_way(*names: str) -> InFlight:
    made = InFlight()
    for name in names:
        made.join(name)
    return made


def test_a_block_is_under_way_until_the_last_prompt_with_it_is_done() -> None:
    made = under_way("a", "b")
    made.begin("a", [X, Y])
    made.begin("a", [X, Z])
    made.begin("b", [X])
    assert made.matched([X, Y]) == {"a": 2, "b": 1}
    made.end("a", [X, Y])
    assert made.matched([X, Y]) == {"a": 1, "b": 1}
    made.end("a", [X, Z])
    assert made.matched([X, Y]) == {"b": 1}


def test_what_a_replica_holds_counts_where_less_is_under_way_to_it() -> None:
    made = under_way("a", "b")
    made.begin("a", [X])
    made.begin("b", [X, Y])
    assert made.matched([X, Y, Z], {"a": 3, "b": 1, "c": 1}) == {"a": 3, "b": 2, "c": 1}


def test_joining_again_changes_nothing() -> None:
    made = under_way("a")
    made.begin("a", [X])
    made.join("a")
    assert made.matched([X]) == {"a": 1}


def test_nothing_is_under_way_to_who_has_left_or_was_never_known() -> None:
    made = under_way("a")
    made.begin("a", [X])
    made.leave("a")
    made.end("a", [X])
    made.end("b", [X])
    assert made.matched([X]) == {}
    made.join("a")
    made.end("a", [X])  # of a prompt from before it left
    made.begin("a", [X])
    assert made.matched([X]) == {"a": 1}


def test_a_thousand_prompts_that_each_part_one_block_later_come_and_go() -> None:
    made = under_way("a")
    chain = blocks("x" * 1_000)
    for length in range(1_000):
        made.begin("a", [*chain[:length], b"%d" % length])
    assert made.matched(chain) == {"a": 999}
    for length in range(999, 0, -1):
        made.end("a", [*chain[:length], b"%d" % length])
    assert made.check_invariants() == []
    made.leave("a")
    assert made.matched(chain) == {}
