"""How recent work is summed up, and how it fades."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.recent_work import RecentWork


def work(*names: str, capacity_tokens: int = 1_000) -> RecentWork:
    made = RecentWork()
    for name in names:
        made.join(name, capacity_tokens)
    return made


def test_half_of_it_is_gone_after_about_seven_tenths_of_all_caches() -> None:
    made = work("a", "b")
    made.add("a", 100)
    for _ in range(139):
        made.add("b", 10)
    assert made.tokens["a"] == pytest.approx(50, rel=0.01)


def test_all_sums_together_come_to_the_size_of_all_caches() -> None:
    made = work("a", "b")
    for number in range(10_000):
        made.add("ab"[number % 2], 10)
    assert sum(made.tokens.values()) == pytest.approx(2_000, rel=0.01)
    assert made.mean == pytest.approx(1_000, rel=0.01)


def test_who_joins_has_what_the_others_have_on_the_average() -> None:
    made = work("a", "b")
    made.add("a", 100)
    made.join("c", 4_000)
    assert made.tokens["c"] == 50
    assert made.mean_capacity == 2_000


def test_joining_again_changes_nothing() -> None:
    made = work("a", "b")
    made.add("a", 100)
    made.join("a", 7)
    assert made.tokens["a"] == 100


def test_a_prompt_larger_than_all_caches_is_all_that_counts_afterwards() -> None:
    made = work("a", "b")
    made.add("b", 100)
    made.add("a", 5_000)
    assert dict(made.tokens) == {"a": 5_000, "b": 0}


def test_who_has_left_is_not_counted() -> None:
    made = work("a", "b")
    made.leave("a")
    made.leave("a")
    made.add("a", 100)
    assert dict(made.tokens) == {"b": 0}
    made.leave("b")
    assert (made.mean, made.mean_capacity) == (0, 0)
