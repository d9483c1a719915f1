"""Line plots as SVG, small enough to lie beside a document: axes, lines, and a bar for each point's spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 120, 40, 48
"""Margins, in pixels; the right one holds the lines' names."""
_COLOURS = ("#1f6fb4", "#c8501e", "#3a8f3a")
_LEAST_GAP = 26
"""Pixels between two ticks of the x axis."""
_TURNED = f'transform="rotate(-90 16 {(_TOP + _HEIGHT - _BOTTOM) / 2})"'


@dataclass(frozen=True, slots=True)
class Mark:
    """A point: its median between two quartiles."""

    x: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """Marks in the order of x."""

    name: str
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Plot:
    """At most three lines over one x axis; y begins at 0 where it is not logarithmic."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    logarithmic: bool = False
    """Both axes"""
    x_names: Sequence[str] = ()
    """Instead of the numbers 0, 1, …"""


def svg(plot: Plot) -> str:
    """Return the plot as a document of its own; x and y must be above 0 where the axes are logarithmic."""
    marks = [mark for line in plot.lines for mark in line.marks]
    place = math.log2 if plot.logarithmic else float
    x_values = sorted({mark.x for mark in marks})
    y_ticks = list(_ticks(min(m.low for m in marks), max(m.high for m in marks), logarithmic=plot.logarithmic))
    x_of = _scale(place(x_values[0]), place(x_values[-1]), _LEFT, _WIDTH - _RIGHT, place)
    y_of = _scale(place(y_ticks[0]), place(y_ticks[-1]), _HEIGHT - _BOTTOM, _TOP, place)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 20, plot.title, "start", 'font-weight="bold"'),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, plot.x_label),
        _text(16, (_TOP + _HEIGHT - _BOTTOM) / 2, plot.y_label, "middle", _TURNED),
        *_grid(y_ticks, y_of),
        *_x_ticks(x_values, x_of, plot.x_names),
    ]
    for line, colour in zip(plot.lines, _COLOURS, strict=False):
        parts += _line(line, colour, x_of, y_of)
    return "\n".join([*parts, "</svg>", ""])


def _scale(
    first: float, last: float, begin: float, end: float, place: Callable[[float], float]
) -> Callable[[float], float]:
    """``first`` … ``last``, as ``place`` gives them, to pixels ``begin`` … ``end``."""
    width = (last - first) or 1.0
    return lambda value: round(begin + (place(value) - first) / width * (end - begin), 1)


def _ticks(least: float, most: float, *, logarithmic: bool) -> Iterable[float]:
    """Round values that span ``least`` … ``most``: powers of 2, or about five equal steps from 0."""
    if logarithmic:
        for power in range(math.floor(math.log2(least)), math.ceil(math.log2(most)) + 1):
            yield 2.0**power
        return
    rough = most / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    for number in range(math.ceil(most / step) + 1):
        yield number * step


def _grid(ticks: Sequence[float], y_of: Callable[[float], float]) -> Iterable[str]:
    for tick in ticks:
        y = y_of(tick)
        yield f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>'
        yield _text(_LEFT - 6, y + 4, f"{tick:g}", "end")


def _x_ticks(values: Sequence[float], x_of: Callable[[float], float], names: Sequence[str]) -> Iterable[str]:
    last = -math.inf
    for value in values:
        if x_of(value) - last >= _LEAST_GAP:
            last = x_of(value)
            yield _text(last, _HEIGHT - _BOTTOM + 18, names[int(value)] if names else f"{value:g}")


def _line(line: Line, colour: str, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> Iterable[str]:
    corners = " ".join(f"{x_of(mark.x)},{y_of(mark.middle)}" for mark in line.marks)
    yield f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for mark in line.marks:
        x = x_of(mark.x)
        yield f'<line x1="{x}" y1="{y_of(mark.low)}" x2="{x}" y2="{y_of(mark.high)}" stroke="{colour}"/>'
        yield f'<circle cx="{x}" cy="{y_of(mark.middle)}" r="3" fill="{colour}"/>'
    end = line.marks[-1]
    yield _text(x_of(end.x) + 8, y_of(end.middle) + 4, line.name, "start", f'fill="{colour}"')


def _text(x: float, y: float, text: str, anchor: str = "middle", attributes: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {attributes}>{escape(text)}</text>'
