"""Lines over time as SVG, written by hand: no library, no address outside, text that a browser can select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLORS = ("#1b7f5c", "#c2410c", "#2563eb", "#a21caf", "#b45309", "#64748b")
_WIDTH, _HEIGHT = 960, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 34, 34
_NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One curve."""

    name: str
    points: Sequence[tuple[float, float]]
    """Seconds, and the value from there on."""
    is_stepped: bool = False


def plot(title: str, lines: Sequence[Line], *, limit: float | None = None, most: float | None = None) -> str:
    """Return a plot over hours as an ``<svg>`` element.

    ``limit``: a value that is marked across. ``most``: where the axis ends at the latest; what is above is cut.
    """
    end = max((at for line in lines for at, _ in line.points), default=1.0) or 1.0
    top = max((value for line in lines for _, value in line.points), default=1.0)
    top = max(min(top, most or top), limit or 0.0) * 1.05 or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#334155"><title>{escape(title)}</title>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_axes(end, top),
    ]
    if limit is not None:
        y = _y(limit, top)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dc2626" '
            'stroke-dasharray="4 4"/>'
        )
    for number, line in enumerate(lines):
        color = _COLORS[number % len(_COLORS)]
        parts.append(
            f'<path d="{_path(line, end, top)}" fill="none" stroke="{color}" '
            f'stroke-width="{2.2 if number == 0 else 1.2}"/>'
        )
        y = _TOP + 8 + 18 * number
        parts.append(f'<rect x="{_WIDTH - _RIGHT + 14}" y="{y - 8}" width="12" height="4" fill="{color}"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 32}" y="{y}">{escape(line.name)}</text>')
    return "".join([*parts, "</svg>"])


def _axes(end: float, top: float) -> list[str]:
    parts = []
    for tick in range(_NUM_TICKS + 1):
        value = top * tick / _NUM_TICKS
        y = _y(value, top)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
        at = end * tick / _NUM_TICKS
        label = f"{at / 3600:.1f} h" if end > 7200 else f"{at / 60:.0f} min"
        parts.append(f'<text x="{_x(at, end):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{label}</text>')
    return parts


def _path(line: Line, end: float, top: float) -> str:
    written: list[str] = []
    for at, value in line.points:
        x, y = _x(at, end), _y(value, top)
        if not written:
            written.append(f"M{x:.1f} {y:.1f}")
        else:
            written.append(f"H{x:.1f}V{y:.1f}" if line.is_stepped else f"L{x:.1f} {y:.1f}")
    return "".join(written)


def _x(at: float, end: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / end


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(value, top) / top
