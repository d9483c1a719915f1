"""An operator's turns in a small cluster, with engines and gateways that answer at once."""

from __future__ import annotations

import copy
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import Any

from aiohttp import web
from kubernetes.client import Configuration
from support_gateway import serving
from support_operator import SETTINGS
from support_small_cluster import SmallCluster, is_ready

from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.autoscaling.engines import CacheSeen, EngineCall, EngineSeen, HandOver, LoadSeen, Warm
from sapwood_operator.autoscaling.movement import Lost
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.values import Decision, Demand
from sapwood_operator.autoscaling.victims import Cache
from sapwood_operator.handlers.reconcile import Reconciler
from sapwood_operator.handlers.scaling import Scaler
from sapwood_operator.handlers.store import ServiceKey, Store

CHAT = ServiceKey("team", "chat")
TURN_SECONDS = 2.0


class Killed(Exception):
    """The operator died at a write."""


@dataclass
class PretendEngines:
    """Engines that answer at once; what they were told is forgotten with the operator that told it."""

    cluster: SmallCluster
    handed_over: dict[str, float] = field(default_factory=dict)
    calls: list[EngineCall] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    def known(self, key: ServiceKey) -> Mapping[str, EngineSeen]:
        return {pod["metadata"]["uid"]: self._seen(pod) for pod in self.cluster.pods.values()}

    def _seen(self, pod: Mapping[str, Any]) -> EngineSeen:
        name, uid, at = pod["metadata"]["name"], pod["metadata"]["uid"], self.cluster.now.timestamp()
        load = LoadSeen(
            at=at,
            state="ready" if is_ready(pod) else "warming",
            num_requests=self.cluster.requests.get(name, 0),
            work_tokens=0.0,
        )
        return EngineSeen(
            load=load,
            cache=CacheSeen(at, Cache(("1", 16), _nodes(name, self.cluster.worth.get(name, 0.0)))),
            handed_over=self.handed_over.get(uid),
            warmed=name in self.cluster.warmed,
        )

    def carry_out(
        self,
        key: ServiceKey,
        service: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        calls: Sequence[EngineCall],
        lost: Sequence[Lost],
    ) -> None:
        self.calls += calls
        self.lost += lost
        for call in calls:
            match call:
                case HandOver(victim, since):
                    self.handed_over[victim.uid] = since
                case Warm(newcomer):
                    self.cluster.warmed.add(newcomer.pod)

    def forget(self, key: ServiceKey) -> None:
        self.handed_over.clear()


def _nodes(name: str, worth: float) -> tuple[Any, ...]:
    return ((array("Q", name.encode()[-8:]), worth),)


@dataclass
class PretendSignals:
    """What a sampler would know."""

    cluster: SmallCluster

    def of(self, key: ServiceKey) -> ServiceSignals:
        at = self.cluster.now.timestamp()
        running = {pod: count for pod, count in self.cluster.requests.items() if pod in self.cluster.names}
        demand = Demand(
            num_waiting=self.cluster.waiting,
            num_running=sum(running.values()),
            idle_seconds=0.0,
            running=running,
        )
        readings = {pod["metadata"]["uid"]: self.cluster.reading for pod in self.cluster.pods.values()}
        return ServiceSignals(readings=readings, demand=demand, demand_at=at, at=at)


class NoMetrics:
    """Nobody looks at decisions."""

    def observe_decision(self, namespace: str, name: str, decision: Decision, *, num_ready: int) -> None:
        pass

    def forget_decisions(self, namespace: str, name: str) -> None:
        pass


def a_scaler(store: Store, cluster: SmallCluster, engines: PretendEngines | None = None) -> Scaler:
    """A scaler whose world is the small cluster."""
    return Scaler(
        store, signals=PretendSignals(cluster), engines=engines or PretendEngines(cluster), metrics=NoMetrics()
    )


@dataclass
class Operator:
    """One process: what it remembers goes with it."""

    cluster: SmallCluster
    engines: PretendEngines
    reconciler: Reconciler
    store: Store

    async def run(self, turns: int = 1) -> None:
        """Let so many turns pass, each with what controllers do meanwhile; raises `Killed`."""
        for _ in range(turns):
            self._watch()
            await self.reconciler.reconcile(CHAT)
            if self.cluster.last_write and len(self.cluster.writes) >= self.cluster.last_write:
                raise Killed
            self.cluster.settle()
            self.cluster.now += timedelta(seconds=TURN_SECONDS)

    def _watch(self) -> None:
        for live in self.cluster.objects.values():
            self.store.put(copy.deepcopy(live))
        known = [*self.store.pods(CHAT)]
        for pod in known:
            if pod["metadata"]["name"] not in self.cluster.names:
                self.cluster.version += 1
                gone = {**pod["metadata"], "resourceVersion": str(self.cluster.version)}
                self.store.remove({**pod, "metadata": gone})


@asynccontextmanager
async def operating(cluster: SmallCluster) -> AsyncIterator[Operator]:
    """Run an operator that knows nothing yet."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.handle)
    engines, store = PretendEngines(cluster), Store()
    async with serving(app) as url:
        configuration = Configuration()
        configuration.host = url
        with ThreadPoolExecutor(1) as threads, Access(configuration).client(connections=1) as client:
            reconciler = Reconciler(
                store,
                Cluster(client, request_timeout_seconds=10.0, on_write=lambda _kind, _verb: None),
                scaler=a_scaler(store, cluster, engines),
                settings=SETTINGS,
                identity="test",
                threads=threads,
                now=lambda: cluster.now.astimezone(UTC),
            )
            yield Operator(cluster, engines, reconciler, store)
