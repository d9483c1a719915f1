"""The life of one pod: network, volumes, init containers, containers, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.layout import CLUSTER_DOMAIN, DNS_SERVICE_ADDRESS
from cluster.node import process, sandbox
from cluster.node.addresses import AddressPool, NoAddressError
from cluster.node.api import NETWORK_ERRORS, ApiError, NodeApi
from cluster.node.clock import now
from cluster.node.container import RETRY_SECONDS, ContainerWorker
from cluster.node.environment import ConfigError
from cluster.node.events import PodEvents
from cluster.node.logs import Log
from cluster.node.reporter import Reporter, pod_path
from cluster.node.settings import NodeSettings
from cluster.node.status import ContainerView, PodView, Terminated, first_view
from cluster.node.surroundings import PodSurroundings
from cluster.node.volumes import Volumes

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """What the pods of one node share."""

    settings: NodeSettings
    api: NodeApi
    addresses: AddressPool


class PodWorker:
    """Runs one pod until the API server has it no more. `update` and `forget` bring what the watch sees."""

    def __init__(self, node: Node, pod: Mapping[str, Any]) -> None:
        self._node = node
        self.pod = pod
        self._uid: str = pod["metadata"]["uid"]
        self.folder: Path = node.settings.folder / "pods" / self._uid
        self._address = ""
        self._sandbox: sandbox.Sandbox | None = None
        self._is_initialized = not pod["spec"].get("initContainers")
        self._started_at = pod.get("status", {}).get("startTime") or now()
        self._events = PodEvents(node.api, pod, node.settings.name)
        self._volumes = Volumes(self.folder / "volumes", node.settings.folder / "disk")
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        self._first_views = {one["name"]: first_view(pod, one, now()) for one in containers}
        self._init_workers: list[ContainerWorker] = []
        self._workers: list[ContainerWorker] = []
        self._deleting = asyncio.Event()
        self._gone = asyncio.Event()
        self._reporter = Reporter(node.api, pod, self._view)
        self.update(pod)

    @property
    def name(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]

    def update(self, pod: Mapping[str, Any]) -> None:
        """Take the pod as the API server has it now."""
        self.pod = pod
        self._reporter.observe(pod)
        if "deletionTimestamp" in pod["metadata"]:
            self._deleting.set()

    @property
    def is_gone(self) -> bool:
        """Whether the API server has the pod no more."""
        return self._gone.is_set()

    def forget(self) -> None:
        """The API server has the pod no more: it was deleted by force."""
        self._gone.set()
        self._deleting.set()

    def log_of(self, container: str, *, is_previous: bool) -> Log | None:
        """Return the log of a container's latest run, or of the one before; None where it has no such run."""
        worker = next((one for one in [*self._init_workers, *self._workers] if one.view.name == container), None)
        if worker is None or worker.view.restarts < is_previous:
            return None
        path = self.folder / "log" / f"{container}.{worker.view.restarts - is_previous}.log"
        return Log(path, worker.is_running and not is_previous)

    async def run(self) -> None:
        """Return when the pod is gone from the API server and nothing of it runs. Its logs stay."""
        has_lived = not self._deleting.is_set()
        if has_lived:
            async with asyncio.TaskGroup() as group:
                reporting = group.create_task(self._reporter.run())
                living = group.create_task(self._live(group))
                await self._deleting.wait()
                living.cancel()
                await self._stop()
                reporting.cancel()
        await self._tear_down()
        if not self._gone.is_set():
            await self._finish(has_lived=has_lived)

    async def _tear_down(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.remove()
        if self._address not in ("", self._node.settings.address):
            self._node.addresses.give_back(self._address)
        self._volumes.remove()

    # -- up

    async def _live(self, group: asyncio.TaskGroup) -> None:
        network = await self._network()
        place = process.Place(
            network=network,
            address=self._address,
            hostname=self.pod["spec"].get("hostname", self.name[1])[:63],
            namespace=self.name[0],
            nameserver=DNS_SERVICE_ADDRESS,
            cluster_domain=CLUSTER_DOMAIN,
        )
        await self._make_volumes()
        status = {**self.pod.get("status", {}), "podIP": self._address, "hostIP": self._node.settings.address}
        surroundings = PodSurroundings(
            api=self._node.api,
            pod={**self.pod, "status": status},
            place=place,
            folder=self.folder,
            volumes=self._volumes,
            launcher=self._node.settings.launcher,
            images=self._node.settings.images,
            events=self._events,
        )
        spec = self.pod["spec"]
        self._init_workers = [self._worker(surroundings, one, is_init=True) for one in spec.get("initContainers", [])]
        self._workers = [self._worker(surroundings, one, is_init=False) for one in spec["containers"]]
        self._reporter.wake()
        await self._initialise(group)
        self._is_initialized = True
        for worker in self._workers:
            group.create_task(self._run(worker))

    async def _network(self) -> Path:
        """Return the path of the pod's network namespace, and set its address."""
        if self.pod["spec"].get("hostNetwork"):
            self._address = self._node.settings.address
            return Path("/proc/1/ns/net")
        before = self.pod.get("status", {}).get("podIP", "")
        # An address once reported stays: the API merges lists of addresses, and two would be refused.
        kept = before and self._node.addresses.claim(before)
        while self._sandbox is None:
            try:
                self._address = before if kept else self._address or self._node.addresses.take()
                self._sandbox = await sandbox.make(self._uid, self._address)
            except (sandbox.SandboxError, NoAddressError) as error:
                self._events.tell("Warning", "FailedCreatePodSandBox", str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return self._sandbox.network

    async def _make_volumes(self) -> None:
        while True:
            try:
                await self._volumes.make(self._node.api, self.pod)
                return
            except (ConfigError, ApiError) as error:
                self._events.tell("Warning", "FailedMount", str(error))
            except NETWORK_ERRORS as error:
                LOG.info("volumes of %s: %s", self.name, error)
            await asyncio.sleep(RETRY_SECONDS)

    def _worker(self, surroundings: PodSurroundings, container: Mapping[str, Any], *, is_init: bool) -> ContainerWorker:
        policy = self.pod["spec"]["restartPolicy"]
        if is_init and not _is_sidecar(container):
            policy = "Never" if policy == "Never" else "OnFailure"
        return ContainerWorker(
            self.pod,
            container,
            "Always" if _is_sidecar(container) else policy,
            surroundings,
            view=self._first_views[container["name"]],
            changed=self._reporter.wake,
        )

    async def _initialise(self, group: asyncio.TaskGroup) -> None:
        """Run the init containers, one after another; return never where one has failed for good."""
        for container, worker in zip(self.pod["spec"].get("initContainers", []), self._init_workers, strict=True):
            running = group.create_task(self._run(worker))
            if _is_sidecar(container):
                await worker.started.wait()
                continue
            await running
            if not (isinstance(worker.view.state, Terminated) and worker.view.state.exit_code == 0):
                await asyncio.Event().wait()

    async def _run(self, worker: ContainerWorker) -> None:
        """Run a container until it ends for good, or, where it waits to be started, until the pod is deleted."""
        running = asyncio.create_task(worker.run())
        deleted = asyncio.create_task(self._deleting.wait())
        try:
            await asyncio.wait([running, deleted], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()  # raises what it raised
                return
            worker.start_no_more()
            if worker.is_running:
                await running
        finally:
            running.cancel()
            deleted.cancel()
            await asyncio.gather(running, deleted, return_exceptions=True)

    def _view(self) -> PodView:
        spec = self.pod["spec"]
        return PodView(
            restart_policy=spec["restartPolicy"],
            init_containers=self._views(self._init_workers, spec.get("initContainers", [])),
            containers=self._views(self._workers, spec["containers"]),
            is_initialized=self._is_initialized,
            started_at=self._started_at,
            address=self._address,
            node_address=self._node.settings.address,
        )

    def _views(
        self, workers: Sequence[ContainerWorker], containers: Sequence[Mapping[str, Any]]
    ) -> Sequence[ContainerView]:
        if workers:
            return [worker.view for worker in workers]
        return [self._first_views[container["name"]] for container in containers]

    # -- down

    async def _stop(self) -> None:
        """End all containers within the pod's grace, sidecars last, and at once when the pod is deleted by force."""
        grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds", 0))
        if not self._gone.is_set() and any(worker.is_running for worker in self._workers):
            names = ", ".join(worker.view.name for worker in self._workers if worker.is_running)
            self._events.tell("Normal", "Killing", f"Stopping container {names}")
        ending = asyncio.create_task(self._stop_all([self._workers, self._init_workers], grace))
        gone = asyncio.create_task(self._gone.wait())
        await asyncio.wait([ending, gone], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            for worker in [*self._workers, *self._init_workers]:
                worker.kill()
        await ending
        gone.cancel()

    async def _stop_all(self, stages: Sequence[Sequence[ContainerWorker]], grace_seconds: float) -> None:
        for stage in stages:
            await asyncio.gather(*(worker.stop(grace_seconds) for worker in stage))

    async def _finish(self, *, has_lived: bool) -> None:
        """Report how the containers ended, if any ran here, then let the API server remove the pod."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}}
        while not self._gone.is_set():
            try:
                if has_lived:
                    await self._reporter.report()
                await self._node.api.delete(pod_path(self.pod), options)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                LOG.warning("delete %s: %s", self.name, error)
            except NETWORK_ERRORS as error:
                LOG.info("delete %s: %s", self.name, error)
            await asyncio.sleep(RETRY_SECONDS)


def _is_sidecar(container: Mapping[str, Any]) -> bool:
    """An init container that goes on running beside the others."""
    return container.get("restartPolicy") == "Always"
