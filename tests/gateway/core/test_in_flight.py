"""What is under way to a replica, however many prompts share it."""

from __future__ import annotations

from sapwood_gateway.core.in_flight import InFlight

X, Y, Z = b"x", b"y", b"z"


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
