"""Reads the code blocks of our documents, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = tuple(
    Path(name)
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "engine/README.md",
        "engine/sapwood_gateway/README.md",
        "operator/README.md",
        "crds/README.md",
        "charts/sapwood/README.md",
        "images/README.md",
        "e2e/README.md",
        "bench/README.md",
        "bench/peers/README.md",
        "bench/workloads/README.md",
        "dashboards/README.md",
        "docs/dashboards.md",
        "docs/ingress.md",
        "docs/local.md",
        "docs/metrics.md",
        "docs/performance.md",
        "docs/quotas.md",
        "docs/routing.md",
        "docs/runbooks.md",
        "docs/scaling.md",
        "docs/top.md",
    )
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    document: Path
    language: str
    code: str


def blocks(document: Path, language: str) -> list[Block]:
    """Return the document's fenced blocks in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(document, name, code) for name, code in found if name == language]


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a shell block as argument lists; variables are left as they stand."""
    found: list[list[str]] = []
    pending = ""
    for line in block.code.splitlines():
        pending += line
        if line.endswith("\\"):
            pending = pending[:-1]
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation goes on in the next line
            pending += "\n"
            continue
        pending = ""
        if words:
            found.append(words)
    assert not pending, f"{block.document}: a command has no end: {pending!r}"
    return found
