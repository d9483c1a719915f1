"""Watches the pods that the scheduler gave to this node, and gives each a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.node import logs, register
from cluster.node.addresses import AddressPool
from cluster.node.api import NETWORK_ERRORS, ApiError, NodeApi
from cluster.node.pod import Node, PodWorker
from cluster.node.settings import NodeSettings

RETRY_SECONDS = 0.5
GONE = 410
"""The API server has forgotten the version from which a watch was to go on."""
LOG = logging.getLogger(__name__)


class Agent:
    """One node's agent; `run` returns never."""

    def __init__(self, settings: NodeSettings, api: NodeApi) -> None:
        self._settings = settings
        self._api = api
        self._node = Node(settings, api, AddressPool(settings.number))
        self._pods: dict[str, PodWorker] = {}
        self._ended: set[str] = set()
        """Pods of which nothing runs any more, and which a finalizer, or a late event, still shows."""
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, pki: Path) -> None:
        """Be a node, with the identities of ``pki``."""
        serving = pki / f"{self._settings.name}-serving.crt"
        async with asyncio.TaskGroup() as group:
            group.create_task(register.run(self._settings, self._api))
            group.create_task(
                logs.serve(self._settings.address, self._find_log, serving, serving.with_suffix(".key"), pki / "ca.crt")
            )
            group.create_task(self._watch_for_ever())

    async def _watch_for_ever(self) -> None:
        while True:
            try:
                version = await self._list()
                while True:
                    version = await self._watch(version)
            except ApiError as error:
                if error.status != GONE:
                    LOG.warning("watch: %s", error)
            except NETWORK_ERRORS as error:
                LOG.info("watch: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._settings.name}"}

    async def _list(self) -> str:
        """Take all pods of the node as they are now, and return the version from which to watch."""
        found = await self._api.get("/api/v1/pods", **self._selector())
        present = {pod["metadata"]["uid"] for pod in found["items"]}
        for uid in self._pods.keys() - present:
            self._pods[uid].forget()
        self._ended &= present
        for pod in found["items"]:
            self._take(pod)
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        async for event in self._api.watch("/api/v1/pods", version, **self._selector(), allowWatchBookmarks="true"):
            pod = event["object"]
            version = pod["metadata"]["resourceVersion"]
            if event["type"] in ("ADDED", "MODIFIED"):
                self._take(pod)
            elif event["type"] == "DELETED":
                self._forget(pod["metadata"]["uid"])
        return version

    def _forget(self, uid: str) -> None:
        self._ended.discard(uid)
        if uid in self._pods:
            self._pods[uid].forget()

    def _take(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid].update(pod)
            return
        is_over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if uid in self._ended or (is_over and "deletionTimestamp" not in pod["metadata"]):
            return
        worker = PodWorker(self._node, pod)
        self._pods[uid] = worker
        task = asyncio.create_task(self._run(uid, worker))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, uid: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            # A fault of the agent in one pod is for whoever reads the log; the other pods live on.
            LOG.exception("pod %s/%s", *worker.name)
        finally:
            del self._pods[uid]
            if not worker.is_gone:
                self._ended.add(uid)

    def _find_log(self, namespace: str, pod: str, container: str, is_previous: bool) -> logs.Log | None:
        worker = next((one for one in self._pods.values() if one.name == (namespace, pod)), None)
        return worker.log_of(container, is_previous=is_previous) if worker is not None else None
