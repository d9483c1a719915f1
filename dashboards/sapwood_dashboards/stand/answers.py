"""What a Prometheus answers to every expression of dashboards and rules."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import yaml

from sapwood_dashboards.catalogue import DASHBOARDS
from sapwood_dashboards.panels import selected
from sapwood_dashboards.written import rule_files

STEP_SECONDS = 1.0
_RATE_INTERVAL = "10s"
"""Grafana makes it four scrapes at least."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series that an expression gave; NaN is left out."""

    labels: dict[str, str]
    times: tuple[float, ...]
    """Seconds since the load began."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """By expression, as panels and rules have it, what it gave."""

    lines: dict[str, tuple[Line, ...]]
    firing: frozenset[str]
    """Names of alerts that fired at any time."""

    def empty(self, expressions: Iterable[str]) -> list[str]:
        """Return those of ``expressions`` that gave no value at any time."""
        return [expr for expr in expressions if not self.lines[expr]]


def panel_expressions() -> list[str]:
    """Return every expression of every panel, and of what can be chosen, as the catalogue has them."""
    panels = [query.expr for each in DASHBOARDS for panel in each.panels for query in panel.queries]
    return panels + [query for each in DASHBOARDS for query in each.variable_queries().values()]


def rule_file() -> dict[str, Any]:
    """Return all committed rules as one file; every group is evaluated as often as the Prometheus of a stand does."""
    groups = [group for text in rule_files().values() for group in yaml.safe_load(text)["groups"]]
    return {"groups": [{"name": group["name"], "rules": group["rules"]} for group in groups]}


def rule_expressions() -> list[str]:
    """Return what must give data for every rule: a recorded series by its name, of an alert whether it holds."""
    rules = [rule for group in rule_file()["groups"] for rule in group["rules"]]
    return [rule["record"] if "record" in rule else _whether(rule["expr"]) for rule in rules]


def _whether(condition: str) -> str:
    """Return an expression that gives 0 or 1 where ``condition`` gives nothing or something: so it gives nothing only
    where a series that the condition looks at is not there. A stand has no past: what was is taken to be what is.
    """
    return re.sub(r" (>=|>|==|<) ", r" \1 bool ", re.sub(r" offset \w+", "", condition))


async def ask(http: aiohttp.ClientSession, url: str, expressions: Iterable[str], begin: float, end: float) -> Answers:
    """Ask the Prometheus at ``url`` for every expression from ``begin`` to ``end``, seconds since 1970."""
    lines = {expr: await _range(http, url, _chosen(expr), begin, end) for expr in expressions}
    fired = await _range(http, url, 'ALERTS{alertstate="firing"}', begin, end)
    return Answers(lines, frozenset(line.labels["alertname"] for line in fired))


def _chosen(expr: str) -> str:
    """Return ``expr`` as Grafana sends it with all chosen."""
    with_all = re.sub(r"\$(namespace|inference_service|pod)", ".*", selected(expr))
    return with_all.replace("$__rate_interval", _RATE_INTERVAL)


async def _range(http: aiohttp.ClientSession, url: str, query: str, begin: float, end: float) -> tuple[Line, ...]:
    asked = {"query": query, "start": str(begin), "end": str(end), "step": str(STEP_SECONDS)}
    async with http.post(f"{url}/api/v1/query_range", data=asked) as response:
        answer = await response.json()
    if answer["status"] != "success":
        raise ValueError(f"Prometheus refuses {query}: {answer['error']}")
    return tuple(line for each in answer["data"]["result"] if (line := _line(each, begin)).values)


def _line(result: dict[str, Any], begin: float) -> Line:
    samples = [(float(at) - begin, float(value)) for at, value in result["values"]]
    known = [(at, value) for at, value in samples if not math.isnan(value)]
    return Line(result["metric"], tuple(at for at, _ in known), tuple(value for _, value in known))
