"""Writes the dashboards, the rules, and the chart's copies of those that it ships; ``make dashboards`` runs it.

``tests/dashboards`` checks that it would change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sapwood_dashboards.written import dashboard_files, rule_files

ROOT = Path(__file__).resolve().parent.parent
OF_SERVICES = Path("engines.yaml")


def expected() -> dict[Path, str]:
    """Return every generated file with its text.

    The chart ships all dashboards, and the rules of gateways and operator: the operator writes those of each service.
    """
    rules = rule_files()
    return {
        **_below("dashboards", dashboard_files()),
        **_below("dashboards/rules", rules),
        **_below("charts/sapwood/files/dashboards", dashboard_files()),
        **_below("charts/sapwood/files/rules", {name: text for name, text in rules.items() if name != OF_SERVICES}),
    }


def _below(folder: str, files: Mapping[Path, str]) -> dict[Path, str]:
    return {ROOT / folder / name: text for name, text in files.items()}


def main() -> None:
    """Write every file; remove dashboards and rules that there are no more."""
    files = expected()
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("*.json"), *folder.glob("*.yaml")):
            if old not in files:
                old.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
