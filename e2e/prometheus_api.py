"""What a Prometheus says of itself and of what it has scraped, asked over its HTTP API."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of ``/api/v1``."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of an instant query."""
        found = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def targets(self) -> list[dict[str, Any]]:
        """Return what is scraped."""
        return list(self.ask("targets", state="active")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules of all groups, with ``health``, ``lastError`` and the ``file`` that they stand in."""
        groups = self.ask("rules")["groups"]
        return [{**rule, "file": group["file"]} for group in groups for rule in group["rules"]]

    def exemplars(self, series: str) -> list[dict[str, str]]:
        """Return the labels of the exemplars of a series."""
        found = self.ask("query_exemplars", query=series, start="0", end=str(time.time() + 60))
        return [exemplar["labels"] for one in found for exemplar in one["exemplars"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing."""
        return list(self.ask("alerts")["alerts"])
