"""Values of JSON answers by their types: who answers may be a newer engine, a proxy, or anything. Pure.

Each raises TypeError or ValueError for what is not what it should be.
"""

from __future__ import annotations

import math
from typing import Any

from sapwood_tools.terminal_text import printable

_MOST = 2.0**53
"""Above it a number has no exact float, and nothing that is counted here comes near it."""


def count(value: Any) -> int:
    """Read a whole number, 0 or more."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    if not 0 <= value <= _MOST:
        raise ValueError(f"{value} is no count")
    return value


def number(value: Any) -> float:
    """Read a finite number, 0 or more."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    if not 0 <= value <= _MOST:  # not NaN either
        raise ValueError(f"{value} is no amount")
    return float(value)


def number_or_nan(value: Any) -> float:
    """Read a number that null says to be unknown, which is NaN."""
    return math.nan if value is None else number(value)


def flag(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def text(value: Any) -> str:
    """Read a text, as it is."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def word(value: Any) -> Any:
    """Read one of a closed set of words that a newer engine may have added to: as a terminal may show it."""
    return printable(text(value))
