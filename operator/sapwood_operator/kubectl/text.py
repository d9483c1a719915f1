"""Columns and ages, as kubectl writes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def columns(rows: Sequence[Sequence[str]], *, indent: str = "") -> list[str]:
    """Return one line a row, columns aligned and two spaces apart; the last column is as long as it likes."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [
        (indent + "".join(f"{cell:<{width + 2}}" for cell, width in zip(row, widths, strict=False)) + row[-1]).rstrip()
        for row in rows
    ]


def age(then: str, now: datetime) -> str:
    """``then``: a time as the API server writes it. Returns 45s, 12m, 3h or 9d."""
    seconds = max(0, int((now - datetime.fromisoformat(then)).total_seconds()))
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= 2 * unit:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"
