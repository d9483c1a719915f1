"""A plot of peers has a line for each, and of each workload the last ratio."""

from __future__ import annotations

import json

from peers_plot import plot_of
from plot import Line, Mark, svg


def ratio(workload: str, peer: str, median: float) -> str:
    return json.dumps(
        {"ratio": {"workload": workload, "peer": peer, "median": median, "least": median - 0.1, "most": median + 0.1}}
    )


def test_of_each_workload_the_last_ratio_counts() -> None:
    lines = [ratio("b_x", "one", 5.0), ratio("a_x", "one", 2.0), ratio("b_x", "one", 3.0), json.dumps({"machine": {}})]
    plot = plot_of(lines)
    assert plot.lines == [Line("one", [Mark(0, 1.9, 2.0, 2.1), Mark(1, 2.9, 3.0, 3.1)])]
    assert plot.x_names == ["a", "b"]


def test_workloads_are_named_on_the_axis() -> None:
    drawn = svg(plot_of([ratio("a_x", "one", 2.0), ratio("b_x", "two", 3.0)]))
    assert ">a</text>" in drawn
    assert ">two</text>" in drawn
