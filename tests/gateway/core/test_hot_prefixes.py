"""Which beginnings many prompts have in common."""

from __future__ import annotations

from sapwood_gateway.core.hot_prefixes import MANY_PROMPTS, HotPrefixes


def test_a_beginning_at_which_many_prompts_part_is_hot() -> None:
    hot = HotPrefixes()
    for number in range(MANY_PROMPTS):
        assert not hot.is_hot(b"system prompt")
        hot.note(b"system prompt")
        hot.note(b"a turn of a conversation %d" % number)
    assert hot.is_hot(b"system prompt")
    assert not hot.is_hot(b"a turn of a conversation 0")


def test_what_nobody_parted_at_for_long_is_forgotten_first() -> None:
    hot = HotPrefixes(most=2)
    for _ in range(MANY_PROMPTS):
        hot.note(b"a")
        hot.note(b"b")
    hot.note(b"a")
    hot.note(b"c")
    assert hot.is_hot(b"a")
    assert not hot.is_hot(b"b")
