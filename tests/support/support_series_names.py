"""What an expression takes for granted of the series in `sapwood_contract.metrics`, and what of it is not so."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from support_promql import Selection, read

from sapwood_contract.metrics import BY_NAME, Series

OF_SCRAPES = {"namespace", "inference_service", "pod"}
"""Labels that Prometheus adds."""
_PARTS = re.compile(r"_(bucket|sum|count)$")


def mistakes(expr: str, recorded: Collection[str]) -> list[str]:
    """Return a sentence for each series, label and value in ``expr`` that no program exports and no rule records."""
    asked = read(expr)
    found = [mistake for selection in asked.selections for mistake in _of_selection(selection, recorded)]
    known = {label for selection in asked.selections for label in _labels(selection, recorded)}
    found += [f"grouped by {label}, which is no label of these series" for label in sorted(asked.grouped_by - known)]
    return found


def _series(name: str) -> Series | None:
    if name in BY_NAME:
        return None if BY_NAME[name].type == "histogram" else BY_NAME[name]
    whole = BY_NAME.get(_PARTS.sub("", name))
    return whole if whole is not None and whole.type == "histogram" else None


def _labels(selection: Selection, recorded: Collection[str]) -> set[str]:
    if selection.series in recorded:
        return OF_SCRAPES
    series = _series(selection.series)
    if series is None:
        return set()
    facts = {"version", "python", "model", "revision"} if series.type == "info" else set()
    bounds = {"le"} if selection.series.endswith("_bucket") else set()
    return OF_SCRAPES | set(series.labels) | facts | bounds


def _of_selection(selection: Selection, recorded: Collection[str]) -> Iterator[str]:
    series = _series(selection.series)
    if series is None and selection.series not in recorded:
        yield f"{selection.series} is exported by no program and recorded by no rule"
        return
    for label, operator, text in selection.matchers:
        if label not in _labels(selection, recorded):
            yield f"{selection.series} has no label {label}"
        if series is None:
            continue
        closed = tuple(f"{bound!r}" for bound in series.buckets) if label == "le" else series.values.get(label, ())
        if not closed or text.startswith("$"):
            continue
        if operator in ("=", "!="):
            matched = [value for value in closed if value == text]
        else:
            matched = [value for value in closed if re.fullmatch(text, value)]
        alternatives = text.split("|") if "~" in operator and re.fullmatch(r"[\w|]+", text) else []
        yield from (f"{label} of {selection.series} is never {each}" for each in alternatives if each not in closed)
        if not matched and not alternatives:
            yield f"{label} of {selection.series} is never {text}"
