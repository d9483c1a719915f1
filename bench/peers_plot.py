"""Draws the ratios of ``make bench PEER=…``: ``bench/peers_plot.py OUTPUT.svg RUN.jsonl …``, a line for each peer.

Of a workload that several runs measured beside the same peer, the last one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from plot import Line, Mark, Plot, svg


def main(argv: Sequence[str]) -> None:
    """Write the plot of the runs in ``argv[1:]`` to ``argv[0]``."""
    output, *runs = map(Path, argv)
    output.write_text(svg(plot_of(line for run in runs for line in run.read_text().splitlines())))


def plot_of(lines: Iterable[str]) -> Plot:
    """Return the plot of the JSON ``lines`` that are ratios."""
    ratios = [found["ratio"] for line in lines if "ratio" in (found := json.loads(line))]
    workloads = sorted({ratio["workload"] for ratio in ratios})
    marks: dict[str, dict[int, Mark]] = {}
    for ratio in ratios:
        x = workloads.index(ratio["workload"])
        marks.setdefault(ratio["peer"], {})[x] = Mark(x, ratio["least"], ratio["median"], ratio["most"])
    return Plot(
        "Output tokens a second, ours over a peer's",
        "workload",
        "ratio: median, least and most of the pairs",
        [Line(peer, [found[x] for x in sorted(found)]) for peer, found in marks.items()],
        x_names=[workload.partition("_")[0] for workload in workloads],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
