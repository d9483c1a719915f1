"""What a replay of autoscaling says: a table as text and JSON, and one HTML file with plots that needs nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape

from sapwood_tools.replay.autoscale.plots import Line, plot
from sapwood_tools.replay.autoscale.run import Run
from sapwood_tools.replay.autoscale.score import PROMISE_SECONDS, Score, hit_ratios, percentiles

_COLUMNS: Mapping[str, Callable[[Score], str]] = {
    "controller": lambda each: each.controller,
    "minutes kept": lambda each: f"{each.slo_attainment:.1%}",
    "requests in time": lambda each: f"{each.requests_in_time:.1%}",
    "replica hours": lambda each: f"{each.replica_hours:.2f}",
    "of clairvoyant's": lambda each: f"{each.over_clairvoyant:.3f}",
    "within one": lambda each: f"{each.near_clairvoyant:.1%}",
    "changes": lambda each: str(each.scale_events),
    "most": lambda each: str(each.most_replicas),
    "hits": lambda each: f"{each.hit_ratio:.1%}",
    "recomputed": lambda each: f"{each.recomputed_tokens / 1e6:.1f} M",
    "TTFT p50": lambda each: f"{each.ttft_p50_seconds:.1f} s",
    "p90": lambda each: f"{each.ttft_p90_seconds:.1f} s",
    "p99": lambda each: f"{each.ttft_p99_seconds:.1f} s",
}
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1e293b;max-width:1000px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .7em;text-align:right;"
    "border-bottom:1px solid #e2e8f0}td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One trace with every controller, the operator's own first and the clairvoyant last."""

    title: str
    ttft_seconds: float
    """Promised at the 90th percentile."""
    runs: Sequence[Run]
    scores: Sequence[Score]
    settings: Mapping[str, str]
    """What was assumed, for people."""


def to_json(score: Score) -> str:
    """Return one line of JSON; numbers rounded to what they are worth."""
    return json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(score).items()})


def table(scores: Sequence[Score]) -> str:
    """Return the scores as aligned text, that is Markdown too."""
    cells = [[*_COLUMNS], *([show(each) for show in _COLUMNS.values()] for each in scores)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def plots(replayed: Replayed) -> Mapping[str, str]:
    """Return the plots of one trace as SVG, by name."""
    span = max(PROMISE_SECONDS, replayed.runs[0].intervals[-1].at / 240)
    return {
        "replicas": plot(
            "Replicas asked for",
            [Line(run.controller, [(each.at, each.asked) for each in run.intervals], True) for run in replayed.runs],
        ),
        "ttft": plot(
            f"Time to the first token, 90 of 100, seconds (promised: {replayed.ttft_seconds:g})",
            [Line(run.controller, percentiles(run, span, 0.9)) for run in replayed.runs],
            limit=replayed.ttft_seconds,
            most=3 * replayed.ttft_seconds,
        ),
        "hits": plot(
            "Share of prompt tokens found in caches",
            [Line(run.controller, hit_ratios(run, 5 * span)) for run in replayed.runs],
        ),
    }


def html(replayed: Replayed) -> str:
    """Return the report as one HTML document without an address outside of it."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(show(each))}</td>" for show in _COLUMNS.values()) + "</tr>"
        for each in replayed.scores
    )
    assumed = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in replayed.settings.items()
    )
    title = escape(f"Autoscaling replayed: {replayed.title}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><h1>{title}</h1><table><tr>{heads}</tr>{rows}</table>"
        f"{''.join(f'<p>{picture}</p>' for picture in plots(replayed).values())}"
        f"<h2>Assumed</h2><table>{assumed}</table></body></html>\n"
    )


def targets(score: Score, others: Sequence[Score]) -> str:
    """Return a sentence on each of what the replay is to show, with the numbers."""
    best = max((each.slo_attainment for each in others), default=math.nan)
    return "\n".join(
        [
            f"within one of the clairvoyant: {score.near_clairvoyant:.1%} of intervals (95 % are wanted)",
            f"replica hours: {score.over_clairvoyant:.3f} of the clairvoyant's (1.08 at most)",
            f"minutes in which the promise was kept: {score.slo_attainment:.1%}; of others the best {best:.1%}",
        ]
    )
