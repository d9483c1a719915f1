"""Whom the sampler asks, and what it knows of one service when a turn asks it: what `autoscaling.turn` decides from,
beside the cluster's objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sapwood_contract.http import EngineState
from sapwood_operator.autoscaling.scrapes import NoScrape, Scrape
from sapwood_operator.autoscaling.values import Demand, NoDemand, NoReading, Reading, Taken

NOBODY_ASKED = NoDemand("nobody has asked the gateways yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePod:
    """One pod that is asked what it did."""

    uid: str
    name: str
    url: str
    """Of its admin API; empty: it has no address yet."""
    after: float
    """Unix time. What is older is known already, or of a former pod of that name."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What one question about a pod brought."""

    scrapes: tuple[Scrape, ...] = ()
    """None where nothing new was said."""
    problem: NoScrape | None = None
    """Why there is nothing, or nothing of late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSignals:
    """Of one service; pods that are gone are not in it."""

    readings: Mapping[str, Reading | NoReading] = field(default_factory=dict)
    """Pod's uid -> what it did lately; ask with `reading_of`, for a pod may be younger than the last sampling."""
    states: Mapping[str, EngineState] = field(default_factory=dict)
    """Pod's uid -> what its engine said of itself when it last answered, of those that answered lately."""
    demand: Demand | NoDemand = NOBODY_ASKED
    demand_at: float | None = None
    """Unix time at which the gateways were asked: what came later is not in their answers. None: they were not."""
    at: float | None = None
    """Unix time of the last sampling; None: there was none."""
    taken: tuple[Taken, ...] = ()
    """What the service took within the last minutes, pods that are gone included."""

    def reading_of(self, uid: str) -> Reading | NoReading:
        """Return what the pod did lately."""
        return self.readings.get(uid, NoReading("nobody has asked it yet"))
