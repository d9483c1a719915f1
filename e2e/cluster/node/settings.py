"""What a node agent is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.node.images import Image

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 20.0
"""A kubelet waits 10 s, then twice as long, up to 5 minutes. The rule is the same, and tests wait less."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node: ``capacity`` is what it offers to the scheduler, such as ``{"nvidia.com/gpu": "8"}``; ``folder`` has
    its pods and its disk."""

    name: str
    number: int
    address: str
    folder: Path
    launcher: Path
    images: Sequence[Image]
    capacity: Mapping[str, str]
    labels: Mapping[str, str]


def backoff_seconds(failures: int) -> float:
    """Return the wait before a container that has ended ``failures`` times in a row is started again: at once, then
    doubling."""
    if failures <= 1:
        return 0.0
    return float(min(FIRST_BACKOFF_SECONDS * 2 ** (failures - 2), MAX_BACKOFF_SECONDS))
