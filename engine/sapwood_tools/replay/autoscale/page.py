"""What replays printed, as the parts of docs/autoscaling.md that nobody writes by hand.

A part stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``: one for each trace, and one that reckons from
those by how much each bound is kept or missed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MISSED = "missed"
_LEAST_NEAR, _MOST_HOURS = 95.0, 1.08
_PARTS = ("", "first half", "second half")
"""Of a trace's time, in the order in which their tables are printed."""
_CLAIRVOYANT, _OWN = "clairvoyant", "sapwood"


def told_of(page: str) -> dict[str, str]:
    """Return name -> text of all parts of ``page``."""
    return dict(re.findall(r"<!-- (\S+): begin -->\n(.*?)<!-- \1: end -->", page, re.DOTALL))


def written(page: str, told: Mapping[str, str]) -> str:
    """Return ``page`` with what the replays of ``told`` printed, and what follows from all of them.

    Raises KeyError where the page has no place for one.
    """
    for name, text in told.items():
        page = _with(page, name, text)
    scenes = {name: text for name, text in told_of(page).items() if name != MISSED}
    return _with(page, MISSED, missed(scenes))


def missed(scenes: Mapping[str, str]) -> str:
    """Return a table of the bounds, a row for each trace and half of it."""
    head = ("", "within one (95 %)", "replica hours (1.08)", "minutes kept", "best of other rules")
    rows = [
        _row(name, part, scores)
        for name, text in scenes.items()
        for part, scores in zip(_PARTS, tables(text), strict=False)
    ]
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def tables(text: str) -> list[dict[str, dict[str, str]]]:
    """Return the tables of ``text``: controller -> column -> cell."""
    found: list[dict[str, dict[str, str]]] = []
    columns: Sequence[str] = ()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| controller"):
            columns = cells
            found.append({})
        elif line.startswith("| "):
            found[-1][cells[0]] = dict(zip(columns, cells, strict=True))
    return found


def _with(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    if begin not in page or end not in page:
        raise KeyError(name)
    before, rest = page.split(begin, 1)
    return f"{before}{begin}{text}{end}{rest.split(end, 1)[1]}"


def _row(name: str, part: str, scores: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    own = scores[_OWN]
    near, hours = _number(own["within one"]), _number(own["of clairvoyant's"])
    kept = _number(own["minutes kept"])
    best = max(_number(each["minutes kept"]) for who, each in scores.items() if who not in (_OWN, _CLAIRVOYANT))
    return (
        f"{name}, {part}" if part else f"**{name}**",
        f"{near:.1f} %{_short(_LEAST_NEAR - near, '{:.1f} points')}",
        f"{hours:.3f}{_short(hours - _MOST_HOURS, '{:.3f}')}",
        f"{kept:.1f} %{_short(best - kept, '{:.1f} points')}",
        f"{best:.1f} %",
    )


def _short(by: float, form: str) -> str:
    return f", **missed** by {form.format(by)}" if by > 1e-9 else ", kept"


def _number(cell: str) -> float:
    return float(cell.rstrip("%"))
