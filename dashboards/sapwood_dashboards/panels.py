"""What a dashboard is: rows of panels, each with queries, a unit and a text that says what to do about it.

In an expression ``@pod``, ``@service``, ``@program``, ``@namespace`` and ``@scaled`` stand for the matchers of what is
chosen at the top of the dashboard; `selected` puts them in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["stat", "lines", "stacked", "heatmap", "bars"]
"""``stat`` and ``bars`` show the last value of each line, the others all."""
Unit = Literal["short", "s", "percentunit", "reqps", "ops"]
"""As Grafana names them. ``percentunit``: a ratio from 0 to 1. ``ops``: of anything a second, which the title names."""
Variable = Literal["namespace", "inference_service", "pod"]

SELECTORS: Mapping[str, str] = {
    "@pod": 'namespace=~"$namespace",inference_service=~"$inference_service",pod=~"$pod"',
    "@service": 'namespace=~"$namespace",inference_service=~"$inference_service"',
    "@program": 'namespace=~"$namespace",pod=~"$pod"',
    "@namespace": 'namespace=~"$namespace"',
    "@scaled": 'namespace=~"$namespace",name=~"$inference_service"',
}
"""``@pod``: engines. ``@service``: what rules have recorded of services. ``@program``: gateways or operators.
``@namespace``: what rules have recorded of gateways. ``@scaled``: what the operator says of services."""
_SELECTOR = re.compile("|".join(SELECTORS))


def selected(expr: str) -> str:
    """Return ``expr`` as Grafana gets it."""
    return _SELECTOR.sub(lambda found: SELECTORS[found[0]], expr)


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel."""

    expr: str
    legend: str = ""
    """Name of each line; ``{{label}}`` stands for the label's value."""
    exemplar: bool = False
    """Whether traces are marked on it: of latency histograms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A value from which on a panel shows another colour."""

    value: float
    colour: Literal["yellow", "red", "green"] = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    description: str
    """What it shows, what is unusual, and what to do then."""
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "lines"
    limits: tuple[Limit, ...] = ()
    """Rising; below the first all is well, unless `below` says otherwise."""
    below: Literal["green", "red"] = "green"
    """Colour of values below the first limit."""
    runbook: str = ""
    """Alert whose section to read; empty for none."""
    width: int = 8
    """Of 24."""

    @property
    def height(self) -> int:
        """Return its height in Grafana's units."""
        return 4 if self.kind == "stat" else 8


@dataclass(frozen=True, slots=True)
class Row:
    """A headline and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard; its uid, and so its address, never changes."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    subject: str
    """The series that names what can be chosen at its top."""
    variables: tuple[Variable, ...] = ("namespace", "inference_service", "pod")
    labels: Mapping[Variable, str] = field(default_factory=dict)
    """Labels of `subject` that are called otherwise than the variable whose values they hold."""

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return the panels of all rows."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def label_of(self, variable: Variable) -> str:
        """Return the label whose values ``variable`` takes."""
        return self.labels.get(variable, variable)

    def variable_queries(self) -> dict[Variable, str]:
        """Return by variable the series whose labels are its values, those before it chosen."""
        queries: dict[Variable, str] = {}
        for number, variable in enumerate(self.variables):
            matchers = ",".join(f'{self.label_of(each)}=~"${each}"' for each in self.variables[:number])
            queries[variable] = f"{self.subject}{{{matchers}}}" if matchers else self.subject
        return queries


def percentiles(
    series: str, *, matchers: str, by: str = "", shares: tuple[float, ...] = (0.5, 0.9, 0.99), name: str = ""
) -> tuple[Query, ...]:
    """Return a query per share: the value of the histogram ``series`` that so many keep below, told apart by ``by``.

    ``name``: of a single line; empty for p and the share.
    """
    labels = f"le, {by}" if by else "le"
    which = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(
            f"histogram_quantile({share:g}, sum by ({labels}) (rate({series}_bucket{{{matchers}}}[$__rate_interval])))",
            name or f"p{100 * share:g}{which}",
            exemplar=True,
        )
        for share in shares
    )


def rate(series: str, *, matchers: str, by: str = "", legend: str = "") -> Query:
    """Return how much the counter ``series`` grows a second, told apart by the label ``by``."""
    grouped = f"sum by ({by})" if by else "sum"
    return Query(f"{grouped} (rate({series}{{{matchers}}}[$__rate_interval]))", legend or f"{{{{{by}}}}}")


def hit_ratio(by: str = "", *, legend: str) -> Query:
    """Return the share of prompt tokens whose KV was cached, told apart by ``by``; absent without prompts."""
    summed = f"sum by ({by})" if by else "sum"
    tokens = f"{summed} (rate(sapwood_prompt_tokens_total{{@pod,source%s}}[$__rate_interval]))"
    cached, every = tokens % '=~"device|host|disk|remote"', tokens % '!="recompute"'
    return Query(f"{cached} / ({every} > 0)", legend)
