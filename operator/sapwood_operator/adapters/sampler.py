"""Asks engines and gateways all the time, and remembers of each pod what it said of late.

What a turn asks for (`Sampler.of`) is computed from memory, so a turn never waits for a pod that does not answer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeGuard

from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.demand import ROUTED_SECONDS, GatewaysHeard, demand_of
from sapwood_operator.autoscaling.readings import STALE_SECONDS, reading, window_with
from sapwood_operator.autoscaling.scrapes import NoScrape, Scrape
from sapwood_operator.autoscaling.signals import NOBODY_ASKED, EnginePod, Heard, ServiceSignals
from sapwood_operator.autoscaling.taken import taken_with
from sapwood_operator.autoscaling.values import Demand, NoDemand, Taken

EVERY_SECONDS = 15.0
"""Between two samplings of all services that scale."""
URGENT_SECONDS = 0.5
"""Between two questions to the gateways while a service is urgent."""
_FAILED = NoScrape("asking it failed inside of the operator: see its log")
_log = logging.getLogger(__name__)


class ScrapeSource(Protocol):
    """Knows what pods do."""

    async def ask(self, service: Watched) -> Mapping[str, Heard]:
        """Return what is new of each of its pods, by uid."""


class DemandSource(Protocol):
    """Knows what gateways have to do."""

    async def ask(self, so_far: Callable[[GatewaysHeard], None]) -> GatewaysHeard:
        """Return what each of them says now; ``so_far``: told at every answer what has been said until then."""


Name = tuple[str, str]
"""Namespace and name of a service."""


@dataclass(frozen=True, slots=True)
class _Pod:
    window: tuple[Scrape, ...] = ()
    problem: NoScrape | None = None


@dataclass(frozen=True, slots=True)
class _Early:
    """What the first answers to a question say of a service; the others are still awaited."""

    number: int
    demand: Demand


class Sampler:
    """Belongs to one event loop."""

    def __init__(
        self,
        services: Callable[[], Iterable[Watched]],
        scrapes: ScrapeSource,
        gateways: DemandSource,
        *,
        wake: Callable[[str, str], None],
        every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``services``: all that there are now; ``wake``: told namespace and name of a service of which there is news;
        ``every_seconds``: between two samplings; ``clock``: Unix time.
        """
        self._services, self._scrapes, self._gateways = services, scrapes, gateways
        self._wake, self._every_seconds, self._clock = wake, every_seconds, clock
        self._pods: dict[Name, dict[str, _Pod]] = {}
        self._taken: dict[Name, tuple[Taken, ...]] = {}
        self._heard: GatewaysHeard | None = None
        self._former: list[GatewaysHeard] = []
        """Earlier answers to questions that were `EVERY_SECONDS` apart or more, the oldest first."""
        self._heard_number = -1
        """Of the question that `_heard` answers."""
        self._numbers = itertools.count()
        self._early: dict[Name, _Early] = {}
        """Of urgent services for which requests wait that nobody knew of."""
        self._told: dict[Name, Demand | NoDemand] = {}
        """What there was to do for each urgent service when it was last woken for that."""
        self._at: float | None = None

    def of(self, namespace: str, name: str) -> ServiceSignals:
        """Return what is known of a service at this moment; nothing of one that is not sampled."""
        now = self._clock()
        pods = self._pods.get((namespace, name), {})
        latest = {uid: pod.window[-1] for uid, pod in pods.items() if pod.window}
        return ServiceSignals(
            readings={uid: reading(pod.window, now, problem=pod.problem) for uid, pod in pods.items()},
            states={uid: scrape.state for uid, scrape in latest.items() if now - scrape.at <= STALE_SECONDS},
            demand=self._demand(namespace, name, now),
            demand_at=self._heard.at if self._heard else None,
            at=self._at,
            taken=self._taken.get((namespace, name), ()),
        )

    async def run(self) -> None:
        """Sample until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_all())
            tasks.create_task(self._run_urgent())

    async def sample(self) -> None:
        """Ask the pods of all services that scale, and the gateways, and wake these services."""
        scaling = [each for each in self._services() if each.scales]
        if scaling:
            await asyncio.gather(self._ask_gateways(), *map(self._sample, scaling))
        wanted = {(each.namespace, each.name) for each in scaling}
        self._pods = {name: pods for name, pods in self._pods.items() if name in wanted}
        self._taken = {name: taken for name, taken in self._taken.items() if name in wanted}
        self._at = self._clock()
        for each in scaling:
            self._wake(each.namespace, each.name)

    async def sample_urgent(self) -> None:
        """Ask the gateways if a service is urgent, and wake those for which there is other work than before."""
        urgent = {(each.namespace, each.name) for each in self._services() if each.is_urgent}
        self._told = {name: told for name, told in self._told.items() if name in urgent}
        if not urgent:
            return
        await self._ask_gateways(urgent)
        for name in sorted(urgent):
            self._tell(name)

    def _tell(self, name: Name) -> None:
        demand = self._demand(*name, self._clock())
        told = replace(demand, idle_seconds=0.0, routed_by_prefix=None) if isinstance(demand, Demand) else demand
        if self._told.get(name) != told:
            self._told[name] = told
            self._wake(*name)

    async def _run_all(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await self.sample()
            await asyncio.sleep(max(0.0, began + self._every_seconds - clock()))

    async def _run_urgent(self) -> None:
        """Ask on time, also while a gateway that hangs still owes its answers to the questions before."""
        async with asyncio.TaskGroup() as questions:
            while True:
                await asyncio.sleep(URGENT_SECONDS)
                questions.create_task(self.sample_urgent())

    async def _sample(self, service: Watched) -> None:
        name = service.namespace, service.name
        former = self._pods.get(name, {})
        pods = tuple(_later(pod, former.get(pod.uid, _Pod())) for pod in service.pods)
        try:
            heard = await self._scrapes.ask(replace(service, pods=pods))
        except Exception:
            # A mistake of ours about one service must not leave the others unknown.
            _log.exception("sampling failed", extra={"service": f"{service.namespace}/{service.name}"})
            heard = {}
        now = self._clock()
        known: dict[str, _Pod] = {}
        for pod in pods:
            each = heard.get(pod.uid, Heard(problem=_FAILED))
            known[pod.uid] = _Pod(window_with(former.get(pod.uid, _Pod()).window, each.scrapes, now), each.problem)
        self._pods[name] = known
        self._taken[name] = taken_with(self._taken.get(name, ()), _windows(former), _windows(known))

    async def _ask_gateways(self, urgent: Set[Name] = frozenset()) -> None:
        """Several questions may be under way at once: the answers to the latest count, whichever come last."""
        number = next(self._numbers)
        try:
            heard = await self._gateways.ask(partial(self._hear_so_far, number, urgent))
        except Exception:
            _log.exception("asking the gateways failed")
            return
        finally:
            self._early = {name: early for name, early in self._early.items() if early.number > number}
        if number > self._heard_number:
            self._remember(self._heard)
            self._heard, self._heard_number = heard, number

    def _hear_so_far(self, number: int, urgent: Set[Name], heard: GatewaysHeard) -> None:
        """Who waits for a first replica does not wait for a slow gateway too: one that waits is enough to wake."""
        for name in sorted(urgent):
            demand = demand_of(heard, *name)
            if number > self._heard_number and _waits(demand) and not _waits(self._demand(*name, self._clock())):
                self._early[name] = _Early(number, demand)
                self._tell(name)

    def _remember(self, heard: GatewaysHeard | None) -> None:
        if heard is not None:
            self._former = [each for each in self._former if 0 <= heard.at - each.at <= ROUTED_SECONDS]
            if not self._former or heard.at - self._former[-1].at >= EVERY_SECONDS:
                self._former.append(heard)

    def _demand(self, namespace: str, name: str, now: float) -> Demand | NoDemand:
        if (early := self._early.get((namespace, name))) is not None:
            return early.demand
        if self._heard is None:
            return NOBODY_ASKED
        if now - self._heard.at > STALE_SECONDS:
            return NoDemand(f"the gateways were last asked {now - self._heard.at:.0f} s ago")
        return demand_of(self._heard, namespace, name, former=self._former)


def _windows(pods: Mapping[str, _Pod]) -> Mapping[str, Sequence[Scrape]]:
    return {uid: pod.window for uid, pod in pods.items()}


def _later(pod: EnginePod, known: _Pod) -> EnginePod:
    """Ask for what is not known yet."""
    return replace(pod, after=max(pod.after, known.window[-1].at)) if known.window else pod


def _waits(demand: Demand | NoDemand) -> TypeGuard[Demand]:
    return isinstance(demand, Demand) and demand.num_waiting > 0
