"""Numbers as texts and bars, each of them the same with colours and without. Pure.

What is unknown is shown as ``–``, never as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from sapwood_metrics.quantiles import Quantile
from sapwood_tools.top.figures import Latency

UNKNOWN = "–"
_BLOCKS = "▁▂▃▄▅▆▇█"

KV_CELLS: Mapping[str, tuple[str, str]] = {
    "active": ("█", "yellow"),
    "protected": ("▓", "green"),
    "evictable": ("▒", "cyan"),
    "free": ("·", "dim"),
}
"""State of KV -> how a cell of it is drawn, and its style."""
PHASE_CELLS: Mapping[str, tuple[str, str]] = {
    "tokenize": ("·", "dim"),
    "queue": ("░", "red"),
    "kv_load": ("▚", "magenta"),
    "prefill": ("▒", "yellow"),
    "decode": ("█", "green"),
    "detokenize": ("▪", "blue"),
}
"""Phase of a request -> likewise."""

_NEW_CELL = ("?", "")
"""Of something that a newer engine tells."""


def whole(number: float | None) -> str:
    """Return ``1,234``."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def rate(number: float | None) -> str:
    """Return a number a second: ``3.2``, ``120``, ``1,234``."""
    return UNKNOWN if number is None else f"{number:.1f}" if 0 < number < 100 else f"{number:,.0f}"


def share(number: float | None) -> str:
    """Return ``83%``."""
    return UNKNOWN if number is None else f"{number:.0%}"


def seconds(number: float) -> str:
    """Return ``0 s``, ``4.2 ms``, ``120 ms``, ``3.4 s``, ``75 s``, ``12 min``, ``5.1 h``."""
    if 0 < number < 1:
        return f"{number * 1000:.1f} ms" if number < 0.01 else f"{number * 1000:.0f} ms"
    if number < 600:
        return f"{number:.1f} s" if 0 < number < 10 else f"{number:.0f} s"
    return f"{number / 60:.0f} min" if number < 7200 else f"{number / 3600:.1f} h"


def quantile(found: Quantile | None) -> str:
    """Return a quantile; ``≥ 60 s`` where no more is known."""
    if found is None:
        return UNKNOWN
    return f"≥ {seconds(found.seconds)}" if found.is_least else seconds(found.seconds)


def latency(found: Latency | None) -> str:
    """Return ``p50 12 ms, p95 80 ms``."""
    p50, p95 = (None, None) if found is None else (found.p50, found.p95)
    return f"p50 {quantile(p50)}, p95 {quantile(p95)}"


def bar(amounts: Mapping[str, float], cells: Mapping[str, tuple[str, str]], width: int) -> Text:
    """Return ``width`` cells that show how ``amounts`` share their sum; empty where that is 0."""
    drawn = Text()
    for name, number in zip(amounts, apportion(list(amounts.values()), width), strict=True):
        character, style = cells.get(name, _NEW_CELL)
        drawn.append(character * number, style)
    return drawn


def apportion(amounts: Sequence[float], width: int) -> list[int]:
    """Return how many of ``width`` cells each amount gets: all of them, by the largest remainder.

    An amount above 0 gets one at least as long as there are cells enough; zeros where all are 0.
    """
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [amount / total * width for amount in amounts]
    cells = [max(int(each), 1) if amount > 0 else 0 for each, amount in zip(exact, amounts, strict=True)]
    while sum(cells) != width:
        step = 1 if sum(cells) < width else -1
        at = max(
            (i for i, amount in enumerate(amounts) if amount > 0 and cells[i] + step >= 0),
            key=lambda i: (cells[i] + step > 0, (exact[i] - cells[i]) * step),
        )
        cells[at] += step
    return cells


def sparkline(ratios: Sequence[float], width: int) -> str:
    """Return ratios from 0 to 1 as at most ``width`` blocks; of more, evenly chosen ones, the last among them."""
    if len(ratios) > width:
        ratios = [ratios[round(i * (len(ratios) - 1) / (width - 1))] for i in range(width)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(min(max(ratio, 0.0), 1.0) * top)] for ratio in ratios)
