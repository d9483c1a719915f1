"""One trace through one controller: what was asked for at every look, and what became of every request."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from sapwood_operator.autoscaling.values import Observation
from sapwood_tools.replay.autoscale.fleet import Answered, Fleet, FleetSettings
from sapwood_tools.replay.autoscale.observe import SAMPLE_SECONDS, observe
from sapwood_tools.replay.trace import TraceRequest


class Controller(Protocol):
    """Says how many replicas there are to be."""

    @property
    def name(self) -> str:
        """Return what tables call it."""

    def desired(self, observation: Observation, now: float) -> int:
        """Return how many, from 0 on; called every `SAMPLE_SECONDS`, in order of time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From one look to the next."""

    at: float
    asked: int
    """Replicas asked for at its beginning, after the look."""
    ready: int
    existing: int
    """Those on their way in and out included."""


@dataclass(slots=True)
class Run:
    """All that a replay leaves."""

    controller: str
    scored_from: float
    """Seconds. Before that it did not decide."""
    intervals: list[Interval] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    pod_seconds: float = 0.0
    """From `scored_from` on."""
    num_changes: int = 0
    """Likewise."""
    num_held: int = 0
    """Requests that no pod was there for, up to the end."""

    @property
    def scored(self) -> list[Answered]:
        """Return the requests that arrived while it decided."""
        return [each for each in self.answered if each.arrived_at >= self.scored_from]


def play(
    requests: Sequence[TraceRequest], controller: Controller, settings: FleetSettings, opening: Sequence[int]
) -> Run:
    """Send all ``requests`` to a service and return what came of it.

    Time begins at 0 and ends with the interval of the last arrival. ``opening``, at least one: how many pods there are
    in each of the first intervals, before ``controller`` is asked; the first ones are ready and cold. Raises
    `sapwood_tools.replay.engine.CacheTooSmall` where a prompt fits nowhere.
    """
    run = Run(controller.name, scored_from=len(opening) * SAMPLE_SECONDS)
    fleet = Fleet(settings, opening[0])
    arrivals = iter(requests)
    request = next(arrivals, None)
    look = pod_seconds = 0.0
    num_changes = 0
    with _no_collecting():
        while request is not None:
            fleet.advance(look)
            number, seen = len(run.intervals), observe(fleet, look)
            fleet.resize(opening[number] if number < len(opening) else controller.desired(seen, look))
            if number == len(opening):
                pod_seconds, num_changes = fleet.pod_seconds_until(look), fleet.num_changes
            run.intervals.append(Interval(look, fleet.asked, fleet.num_in("ready"), len(fleet.pods)))
            look += SAMPLE_SECONDS
            while request is not None and request.arrival_seconds < look:
                fleet.send(request)
                request = next(arrivals, None)
        fleet.advance(look)
    run.answered = fleet.answered
    run.pod_seconds, run.num_changes = fleet.pod_seconds_until(look) - pod_seconds, fleet.num_changes - num_changes
    run.num_held = len(fleet.held)
    return run


@contextmanager
def _no_collecting() -> Iterator[None]:
    """A replay makes no cycles of its own, and looking for some among millions of blocks takes a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
