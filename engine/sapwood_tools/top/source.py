"""Where answers come from and orders go: `poller.Poller` is it, and tests have one of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sapwood_tools.top.engines import EngineAddress
from sapwood_tools.top.gateway_figures import GatewayFigures
from sapwood_tools.top.samples import Sample


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """What a gateway answered."""

    url: str
    at: float
    """Seconds of the asker's monotonic clock."""
    figures: GatewayFigures | None
    problem: str = ""
    """Why there are no figures."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What everybody answered."""

    engines: tuple[tuple[EngineAddress, Sample], ...]
    gateway: GatewayAnswer | None = None
    """None: none is asked."""


class Source(Protocol):
    """Everybody that can be asked."""

    async def ask(self) -> Poll:
        """Ask everybody once; who does not answer has a problem, and nothing is raised."""
        ...

    async def abort(self, url: str, request_id: str) -> int:
        """End a call at the engine of that admin address; how many of its choices ran. Raises `Unanswered`."""
        ...

    async def flush(self, url: str) -> int:
        """Empty the prefix cache of an engine; how many tokens went. Raises `Unanswered`."""
        ...
