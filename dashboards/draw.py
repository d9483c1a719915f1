"""Runs two engines, a gateway and a Prometheus under a minute of load, and draws every dashboard from what was scraped.

``make dashboard-pictures`` runs it; the pictures are those of ``docs/dashboards.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from sapwood_dashboards.catalogue import DASHBOARDS
from sapwood_dashboards.pictures import draw
from sapwood_dashboards.stand.observed import observe

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "images" / "dashboards"


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (default: 60)")
    seconds: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        answers = asyncio.run(observe(Path(folder), seconds))
    for dashboard in DASHBOARDS:
        draw(dashboard, answers, PICTURES / f"{dashboard.uid}.png")


if __name__ == "__main__":
    main()
