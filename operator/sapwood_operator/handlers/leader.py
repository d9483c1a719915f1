"""What the leading operator does: learns the cluster, then turns events, timers and discoveries into turns of keys.

Everything that is remembered belongs to the event loop's thread; watches and calls run in others and hand over to it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.adapters.access import Access
from sapwood_operator.adapters.cluster import Cluster, Listed
from sapwood_operator.adapters.health import Health
from sapwood_operator.adapters.kinds import (
    ALWAYS_THERE,
    DISCOVERED,
    POLICIES,
    SERVICES,
    TENANTS,
    WRITTEN_BY_USERS,
    Kind,
)
from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.adapters.outcomes import Refused, Retry
from sapwood_operator.adapters.scaling_port import NOBODY_LEADS
from sapwood_operator.handlers.engine_calls import Engines
from sapwood_operator.handlers.outlooks import ServiceOutlooks
from sapwood_operator.handlers.policies import PolicyStatuses
from sapwood_operator.handlers.reconcile import Reconciler
from sapwood_operator.handlers.scaling import Scaler
from sapwood_operator.handlers.signals import Signals
from sapwood_operator.handlers.store import Key, PoliciesKey, ServiceKey, Store, TenantsKey
from sapwood_operator.handlers.tenants import TenantStatuses
from sapwood_operator.handlers.watches import Gone, Relisted, Seen, Watches, WatchEvent
from sapwood_operator.handlers.work_queue import Pace, WorkQueue
from sapwood_operator.handlers.workers import Workers
from sapwood_operator.settings import OperatorSettings

_SETTLE_SECONDS = 1.0
"""Between a list of kopf's and ours: kopf lists every kind at once, and a long list in parts."""
_RETRY_SECONDS = 2.0
"""Between two tries to list or to discover."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """How one process works, whatever it decides."""

    num_workers: int = 4
    """Services reconciled at once. A turn waits for the API server for most of its time."""
    request_timeout_seconds: float = 10.0
    discovery_seconds: float = 30.0
    """How soon an optional API that was just installed is made use of: no event tells of it without more rights."""


class Leader:
    """One term of leadership."""

    def __init__(
        self,
        access: Access,
        settings: OperatorSettings,
        work: WorkSettings,
        *,
        identity: str,
        metrics: OperatorMetrics,
        health: Health,
    ) -> None:
        """To be made in the event loop's thread."""
        self._access = access
        self._settings = settings
        self._work = work
        self._health = health
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(work.num_workers, "reconcile")
        self._cluster = Cluster(
            access.client(connections=work.num_workers + 2),
            request_timeout_seconds=work.request_timeout_seconds,
            on_write=metrics.count_write,
        )
        self._store = Store()
        self._signals = Signals(self._store, self._cluster, settings, wake=self._wake_service)
        self._engines = Engines(settings, wake=self._wake_service, lose=metrics.lose)
        self._reconciler = Reconciler(
            self._store,
            self._cluster,
            scaler=Scaler(self._store, signals=self._signals, engines=self._engines, metrics=metrics),
            settings=settings,
            identity=identity,
            threads=self._threads,
            now=lambda: datetime.now(UTC),
        )
        queue: WorkQueue[ServiceKey] = WorkQueue(Pace(), random.random)
        self._workers = Workers(
            queue, self._reconciler.reconcile, kind=SERVICES.kind, num_workers=work.num_workers, metrics=metrics
        )
        tenants = TenantStatuses(self._store, self._cluster, threads=self._threads, now=lambda: datetime.now(UTC))
        tenant_queue: WorkQueue[TenantsKey] = WorkQueue(Pace(), random.random)
        self._tenant_workers = Workers(
            tenant_queue, tenants.reconcile, kind=TENANTS.kind, num_workers=1, metrics=metrics
        )
        policies = PolicyStatuses(self._store, self._cluster, threads=self._threads, now=lambda: datetime.now(UTC))
        policy_queue: WorkQueue[PoliciesKey] = WorkQueue(Pace(), random.random)
        self._policy_workers = Workers(
            policy_queue, policies.reconcile, kind=POLICIES.kind, num_workers=1, metrics=metrics
        )
        self._to_list: set[Kind] = set()
        self._asked_to_list = asyncio.Event()

    async def run(self) -> None:
        """Lead until cancelled."""
        self._health.phase = "syncing"
        self._reconciler.apis = await self._discover()
        await self._list(self._kinds)
        watched, watches = self._reconciler.apis, self._watch()
        try:
            self._wake(self._store.keys())
            self._health.outlooks = ServiceOutlooks(
                self._store, observer=self._reconciler, signals=self._signals, now=lambda: datetime.now(UTC)
            )
            self._health.phase = "leading"
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._workers.run())
                tasks.create_task(self._tenant_workers.run())
                tasks.create_task(self._policy_workers.run())
                tasks.create_task(self._signals.run())
                tasks.create_task(self._engines.run())
                tasks.create_task(self._resync())
                tasks.create_task(self._list_what_was_asked())
                while True:
                    await asyncio.sleep(self._work.discovery_seconds)
                    found = await self._discover()
                    # The reconciler may have met before that an API is gone; that one may be back, or still watched.
                    if found == watched == self._reconciler.apis:
                        continue
                    _log.info("optional APIs changed", extra={"kinds": sorted(kind.kind for kind in found)})
                    self._reconciler.apis = found
                    await asyncio.to_thread(watches.stop)
                    await self._list(self._kinds)
                    watched, watches = found, self._watch()
                    self._wake(self._store.keys())
        finally:
            self._health.phase, self._health.outlooks = "stopping", NOBODY_LEADS
            watches.ask_to_stop()

    async def finish(self, *, within_seconds: float) -> None:
        """Let the turns under way end; begin no call after that."""
        await asyncio.gather(
            self._workers.finish(within_seconds=within_seconds),
            self._tenant_workers.finish(within_seconds=within_seconds),
            self._policy_workers.finish(within_seconds=within_seconds),
        )
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- watching

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        optional = (kind for kind in DISCOVERED if kind in self._reconciler.apis)
        return (*ALWAYS_THERE, *optional)

    def _watch(self) -> Watches:
        watches = Watches(
            self._access,
            self._kinds,
            namespaces=self._settings.namespaces,
            request_timeout_seconds=self._work.request_timeout_seconds,
            deliver=self._deliver,
        )
        watches.start()
        self._health.is_watching = watches.is_watching
        return watches

    def _deliver(self, event: WatchEvent) -> None:
        """In the watches' thread, which may outlive the loop by a moment."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: WatchEvent) -> None:
        match event:
            case Seen(live):
                self._wake(self._store.put(live))
            case Gone(live):
                self._wake(self._store.remove(live))
            case Relisted(kind):
                self._to_list.add(kind)
                self._asked_to_list.set()

    def _wake_service(self, key: ServiceKey) -> None:
        self._workers.wake(key)

    def _wake(self, keys: Iterable[Key]) -> None:
        for key in keys:
            match key:
                case ServiceKey():
                    self._workers.wake(key)
                case TenantsKey():
                    self._tenant_workers.wake(key)
                case PoliciesKey():
                    self._policy_workers.wake(key)

    # --- listing

    async def _resync(self) -> None:
        """Make good what no event told, of the cluster and of the operator's own mistakes: look at every service."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            await self._list(self._kinds)
            self._reconciler.forget_secrets()
            self._wake(self._store.keys())

    async def _list_what_was_asked(self) -> None:
        while True:
            await self._asked_to_list.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            self._asked_to_list.clear()
            kinds, self._to_list = tuple(self._to_list), set()
            await self._list(kinds)

    async def _list(self, kinds: Iterable[Kind]) -> None:
        """Take in all objects of ``kinds``, trying until it works."""
        for kind in kinds:
            for namespace in self._settings.namespaces or ("",):
                await self._list_kind(kind, namespace)

    async def _list_kind(self, kind: Kind, namespace: str) -> None:
        selector = "" if kind in WRITTEN_BY_USERS else SERVICE_LABEL
        while True:
            answer = await asyncio.to_thread(self._cluster.list, kind, namespace, label_selector=selector)
            match answer:
                case Listed(objects, version):
                    self._wake(self._store.replace(kind, namespace, objects, version))
                    return
                case Refused(status=404) if kind in DISCOVERED:
                    return  # its API was removed; discovery will see that too
                case Refused() | Retry():
                    self._note_failure(f"listing {kind.plural}", answer)
                    await asyncio.sleep(_RETRY_SECONDS)

    async def _discover(self) -> frozenset[Kind]:
        while not isinstance(found := await asyncio.to_thread(self._cluster.present, DISCOVERED), frozenset):
            self._note_failure("discovery", found)
            await asyncio.sleep(_RETRY_SECONDS)
        return found

    @staticmethod
    def _note_failure(doing: str, failure: Refused | Retry) -> None:
        details = {"doing": doing, "reason": failure.reason, "detail": failure.message}
        _log.warning("the API server did not answer as hoped", extra=details)
