"""A small reader of PromQL: which series an expression asks for, by which matchers, and which labels it groups by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*") | (?P<range>\[[^\]]*\]) | (?P<name>[a-zA-Z_:][\w:]*) | (?P<number>[\d.]+)
    | (?P<mark>=~|!~|!=|>=|<=|==|[-+*/%^(){},=<>]) | (?P<space>\s+)""",
    re.VERBOSE,
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


@dataclass(frozen=True)
class Selection:
    """A series that is asked for; ``matchers``: label, operator and text of each."""

    series: str
    matchers: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Asked:
    """What an expression asks for."""

    selections: tuple[Selection, ...]
    grouped_by: frozenset[str]


def read(expr: str) -> Asked:
    """Return what ``expr`` asks for; `ValueError` where something in it is no token of PromQL."""
    tokens = list(_tokens(expr))
    selections: list[Selection] = []
    labels: set[str] = set()
    position = 0
    while position < len(tokens):
        kind, text = tokens[position]
        following = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        position += 1
        if text == "offset":
            position += 2  # a duration: its number and its unit
        if kind != "name" or text in _OPERATORS:
            continue
        if text in _GROUPING:
            if following == "(":
                end = tokens.index(("mark", ")"), position)
                labels |= {label for kind, label in tokens[position:end] if kind == "name"}
                position = end + 1
        elif following == "{":
            end = tokens.index(("mark", "}"), position)
            selections.append(Selection(text, tuple(_matchers(tokens[position + 1 : end]))))
            position = end + 1
        elif following != "(" and following not in _GROUPING:
            selections.append(Selection(text))
    return Asked(tuple(selections), frozenset(labels))


def _tokens(expr: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(expr):
        found = _TOKEN.match(expr, position)
        if found is None:
            raise ValueError(f"{expr[position:]!r} does not begin with a token of PromQL")
        position = found.end()
        assert found.lastgroup is not None
        if found.lastgroup != "space":
            yield found.lastgroup, found[0]


def _matchers(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    for (_, label), (_, operator), (_, value) in zip(tokens[::4], tokens[1::4], tokens[2::4], strict=True):
        yield label, operator, value[1:-1]
