"""A document is measured as if its aliases were written out, in the time that reading it takes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sapwood_contract.expansion import Expanding, check_expansion


def check(text: str) -> None:
    check_expansion(list(yaml.safe_load_all(text)), len(text.encode()))


def aliases(levels: int) -> str:
    """Nine aliases a level."""
    lines = ["a0: &a0 [" + ", ".join("x" * 9) + "]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [9, 90])
def test_aliases_that_stand_for_billions_are_refused(levels: int) -> None:
    with pytest.raises(Expanding, match="its aliases stand for more than"):
        check(aliases(levels))


def test_a_long_text_counts_as_often_as_it_is_named() -> None:
    with pytest.raises(Expanding, match="its aliases stand for more than"):
        check(f"a: &a {'x' * 2_000}\nb: [{', '.join(['*a'] * 200)}]\n")


def test_aliases_that_are_meant_are_read() -> None:
    check(aliases(4))
    check("a: &a {requests: 1}\n" + "\n".join(f"b{n}: *a" for n in range(1_000)))


def test_a_large_document_without_aliases_is_read() -> None:
    check_expansion([["x"] * 200_000], 400_000)


def test_a_document_that_contains_itself_is_refused() -> None:
    with pytest.raises(Expanding, match="nested deeper than 100 levels"):
        check("a: &a {b: [*a, *a], c: *a}")


def test_depth_counts_wherever_a_value_stands() -> None:
    deep: list[Any] = []
    for _ in range(98):
        deep = [deep]
    check_expansion([deep], 200)
    with pytest.raises(Expanding, match="nested deeper than 100 levels"):
        check_expansion([deep, [[[[deep]]]]], 200)
