"""Draws a dashboard as Grafana would lay it out, from what a Prometheus answered: pictures for the documents."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from sapwood_dashboards.panels import Dashboard, Kind, Panel, Row, Unit
from sapwood_dashboards.stand.answers import STEP_SECONDS, Answers, Line

_COLUMNS = 24
_INCHES = 0.62
"""Of a column's width."""
_HEIGHTS: dict[Kind, float] = {"stat": 1.15, "lines": 2.5, "stacked": 2.5, "heatmap": 2.5, "bars": 2.5}
"""Inches of a panel's axes."""
_ROW, _TITLE, _LEGEND, _GAP, _HEAD = 0.36, 0.34, 0.68, 0.16, 0.75
_DOTS = 84
_COLOURS_IN_FILE = 224
_MOST_NAMED = 6
_LONG_NAME = 21
_FEWEST_BARS = 5
"""As many have room at least, so that one alone is no wall."""
_PAUSE_SECONDS = 2.5 * STEP_SECONDS
"""Without samples: a line is broken there. What ended so long before the others has no last value any more."""
_INK, _SOFT, _GRID, _PAPER, _CARD = "#22262b", "#69727d", "#e3e6ea", "#f3f4f6", "#ffffff"
_STATES = {"green": "#2e8b57", "yellow": "#c98a00", "red": "#c0392b"}
_PALETTE = (
    "#3b6fb6",
    "#e08a1e",
    "#3f9e6a",
    "#b5487f",
    "#7a68b8",
    "#2a9aa8",
    "#a6761d",
    "#8a9099",
    "#d0604c",
    "#5b8c2a",
)


def draw(dashboard: Dashboard, answers: Answers, path: Path) -> None:
    """Write the picture of ``dashboard`` to ``path``, a PNG."""
    rows = [_wrapped(row) for row in dashboard.rows]
    height = _HEAD + sum(_ROW + sum(_height(line) for line in lines) for lines in rows) + _GAP
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 8, "text.color": _INK}):
        figure = Figure(figsize=(_COLUMNS * _INCHES, height), dpi=_DOTS, facecolor=_PAPER)
        page = _Page(figure, height)
        page.text(_GAP, 0.32, dashboard.title, size=14, weight="bold")
        page.text(_GAP, 0.58, dashboard.description, colour=_SOFT)
        top = _HEAD
        for row, lines in zip(dashboard.rows, rows, strict=True):
            page.text(_GAP, top + 0.24, row.title, size=10, weight="bold")
            top += _ROW
            for line in lines:
                left = 0.0
                for panel in line:
                    _draw_panel(page, panel, answers, left=left, top=top)
                    left += panel.width * _INCHES
                top += _height(line)
        _write(figure, path)


def _wrapped(row: Row) -> list[list[Panel]]:
    """Return the panels of a row in lines of 24 columns."""
    lines: list[list[Panel]] = [[]]
    for panel in row.panels:
        if sum(each.width for each in lines[-1]) + panel.width > _COLUMNS:
            lines.append([])
        lines[-1].append(panel)
    return lines


def _height(line: Sequence[Panel]) -> float:
    return max(_HEIGHTS[panel.kind] + (0.1 if panel.kind == "stat" else _LEGEND) for panel in line) + _TITLE + _GAP


class _Page:
    """A figure measured in inches from its upper left corner."""

    def __init__(self, figure: Figure, height: float) -> None:
        self._figure = figure
        self._width = _COLUMNS * _INCHES
        self._height = height

    def text(
        self, left: float, top: float, text: str, *, size: float = 8, weight: str = "normal", colour: str = _INK
    ) -> None:
        at = (left / self._width, 1 - top / self._height)
        self._figure.text(*at, text, fontsize=size, fontweight=weight, color=colour, va="baseline")

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        place = (left / self._width, 1 - (top + height) / self._height, width / self._width, height / self._height)
        return self._figure.add_axes(place)


def _draw_panel(page: _Page, panel: Panel, answers: Answers, *, left: float, top: float) -> None:
    width, height = panel.width * _INCHES - _GAP, _height([panel]) - _GAP
    card = page.axes(left + _GAP / 2, top, width, height)
    card.set_facecolor(_CARD)
    card.set_xticks([])
    card.set_yticks([])
    for spine in card.spines.values():
        spine.set_color(_GRID)
    page.text(left + _GAP / 2 + 0.12, top + 0.24, panel.title, weight="bold", size=8.5)
    named = [
        (_name(query.legend, line), line)
        for query in panel.queries
        for line in sorted(answers.lines[query.expr], key=lambda line: sorted(line.labels.items()))
    ]
    margin = 0.12 if panel.kind == "stat" else 1.9 if panel.kind == "bars" else 0.62
    axes = page.axes(left + _GAP / 2 + margin, top + _TITLE, width - margin - 0.2, _HEIGHTS[panel.kind])
    _DRAWERS[panel.kind](axes, panel, named)


def _name(legend: str, line: Line) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: line.labels.get(found[1], ""), legend).strip() or "all"


Named = Sequence[tuple[str, Line]]


def _draw_lines(axes: Axes, panel: Panel, named: Named) -> None:
    _time_axes(axes, panel)
    for number, (name, line) in enumerate(_shown(named)):
        axes.plot(*_broken(line), color=_colour(number), linewidth=1.1, label=name)
    highest = max((value for _, line in named for value in line.values), default=0)
    for limit in panel.limits:
        if limit.value <= max(highest * 1.5, 1e-9):
            axes.axhline(limit.value, color=_STATES[limit.colour], linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_ylim(bottom=0, top=None if highest > 0 else 1)
    _legend(axes)


def _draw_stacked(axes: Axes, panel: Panel, named: Named) -> None:
    _time_axes(axes, panel)
    shown = _shown(named)
    times = sorted({at for _, line in shown for at in _broken(line)[0]})
    layers = [np.interp(times, *_broken(line, gap=0.0), left=0, right=0) for _, line in shown]
    if layers:
        colours = [_colour(number) for number in range(len(shown))]
        axes.stackplot(times, layers, labels=[name for name, _ in shown], colors=colours, alpha=0.75, linewidth=0)
        axes.set_ylim(bottom=0, top=None if np.sum(layers) > 0 else 1)
    _legend(axes)


def _draw_heatmap(axes: Axes, panel: Panel, named: Named) -> None:
    """Buckets hold all values up to their border: what lies between two of them is their difference."""
    _time_axes(axes, panel)
    by_border = {float(line.labels["le"]): line for _, line in named}
    borders = sorted(by_border)
    times = sorted({at for line in by_border.values() for at in line.times})
    upto = np.array([np.interp(times, by_border[border].times, by_border[border].values) for border in borders])
    counts = np.diff(upto, axis=0, prepend=0).clip(min=0)
    filled = [number for number in range(len(borders)) if counts[number].max() > 0] or [0]
    first, last = filled[0], filled[-1]
    axes.pcolormesh(times, range(first, last + 1), counts[first : last + 1], cmap="Blues", shading="nearest")
    axes.set_yticks(range(first, last + 1), [_text(borders[number], panel.unit) for number in range(first, last + 1)])
    axes.grid(False)


def _draw_stat(axes: Axes, panel: Panel, named: Named) -> None:
    axes.set_axis_off()
    shown = _last(named)[:2]
    for number, (name, line) in enumerate(shown):
        x = (number + 0.5) / len(shown)
        value = line.values[-1]
        axes.text(x, 0.56, _text(value, panel.unit), ha="center", va="center", fontsize=20, color=_state(panel, value))
        if panel.queries[0].legend:
            axes.text(x, 0.12, name, ha="center", va="center", fontsize=7.5, color=_SOFT)


def _draw_bars(axes: Axes, panel: Panel, named: Named) -> None:
    last = _last(named)
    names, values = [name for name, _ in last], [line.values[-1] for _, line in last]
    axes.barh(range(len(names)), values, color=_PALETTE[0], height=0.62)
    axes.set_yticks(range(len(names)), [name if len(name) < 34 else name[:32] + "…" for name in names])
    axes.set_ylim(max(len(names), _FEWEST_BARS) - 0.5, -0.5)
    for number, value in enumerate(values):
        axes.text(value, number, " " + _text(value, panel.unit), va="center", color=_INK)
    _plain(axes)
    axes.set_xlim(0, 1.12 if panel.unit == "percentunit" else max([*values, 1e-9]) * 1.25)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(value, panel.unit)))


_DRAWERS: dict[Kind, Callable[[Axes, Panel, Named], None]] = {
    "lines": _draw_lines,
    "stacked": _draw_stacked,
    "heatmap": _draw_heatmap,
    "stat": _draw_stat,
    "bars": _draw_bars,
}


def _time_axes(axes: Axes, panel: Panel) -> None:
    _plain(axes)
    axes.grid(color=_GRID, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:.0f} s"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(value, panel.unit)))


def _plain(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, length=0, labelsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _broken(line: Line, gap: float = math.nan) -> tuple[list[float], list[float]]:
    """Return times and values with ``gap`` where there were none for a while."""
    times, values = [line.times[0]], [line.values[0]]
    for at, value in zip(line.times[1:], line.values[1:], strict=True):
        if at - times[-1] > _PAUSE_SECONDS:
            times += [times[-1] + STEP_SECONDS / 2, at - STEP_SECONDS / 2]
            values += [gap, gap]
        times.append(at)
        values.append(value)
    return times, values


def _last(named: Named) -> Named:
    """Leave out what has no last value."""
    end = max((line.times[-1] for _, line in named), default=0)
    return [(name, line) for name, line in named if line.times[-1] > end - _PAUSE_SECONDS]


def _shown(named: Named) -> Named:
    """Leave out lines that never left zero where others did, as far as there are too many for all to be named."""
    if len(named) <= _MOST_NAMED:
        return named
    return [each for each in named if any(each[1].values)] or named[:1]


def _legend(axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if names and names != ["all"]:
        short = [name if len(name) < _LONG_NAME else name[: _LONG_NAME - 2] + "…" for name in names]
        axes.legend(
            *(handles[:_MOST_NAMED], short[:_MOST_NAMED]),
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.1),
            ncols=3,
            frameon=False,
            fontsize=6.8,
            handlelength=1.1,
            columnspacing=1.0,
            labelspacing=0.25,
        )


def _colour(number: int) -> str:
    return _PALETTE[number % len(_PALETTE)]


def _state(panel: Panel, value: float) -> str:
    state: str = panel.below
    for limit in panel.limits:
        if value >= limit.value:
            state = limit.colour
    return _STATES[state] if panel.limits else _INK


def _text(value: float, unit: Unit) -> str:
    """Return a value as Grafana writes it."""
    if value == float("inf"):
        return "∞"
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
    number = f"{value / 1000:.3g}k" if abs(value) >= 1000 else f"{value:.3g}"
    return number if unit == "short" else f"{number}/s"


def _write(figure: Figure, path: Path) -> None:
    """Save with few colours: a third of the size, and nothing to be seen of it."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", facecolor=_PAPER)
    image = Image.open(drawn).convert("RGB").quantize(_COLOURS_IN_FILE, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True)
