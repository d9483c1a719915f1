"""Writes a pod's status to the API server, whenever it is another than the server has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from cluster.node.api import NETWORK_ERRORS, ApiError, NodeApi
from cluster.node.clock import now
from cluster.node.status import PodView, phase_of, status_of

RETRY_SECONDS = 1.0
LOG = logging.getLogger(__name__)


def pod_path(pod: Mapping[str, Any]) -> str:
    """Return the path of a pod in the API."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


class Reporter:
    """Keeps one pod's status up to date while it `run`s."""

    def __init__(self, api: NodeApi, pod: Mapping[str, Any], view: Callable[[], PodView]) -> None:
        self._api = api
        self._pod = pod
        self._view = view
        self._sent: Mapping[str, Any] = pod.get("status", {})
        self._sent_version = 0
        self._is_overwritten = True
        self._changed = asyncio.Event()
        self.wake()

    def wake(self) -> None:
        """Say that the status may be another now."""
        self._changed.set()

    def observe(self, pod: Mapping[str, Any]) -> None:
        """Look at the pod as the server has it: the controller of lost nodes writes Ready too, and must be corrected
        when the node is back."""
        is_later = int(pod["metadata"]["resourceVersion"]) > self._sent_version
        if self._sent_version and is_later and _ready(pod.get("status", {})) != _ready(self._sent):
            self._is_overwritten = True
            self.wake()

    async def run(self) -> None:
        """Report every change, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.report()
            except (ApiError, *NETWORK_ERRORS) as error:
                LOG.info("status of %s: %s", pod_path(self._pod), error)
                await asyncio.sleep(RETRY_SECONDS)
                self.wake()

    async def report(self) -> None:
        """Write the status if the server has another; raises what `NodeApi.patch` raises."""
        view = self._view()
        status = status_of(view, phase_of(view), self._sent, now())
        if status == self._sent and not self._is_overwritten:
            return
        uid = self._pod["metadata"]["uid"]
        answer = await self._api.patch(f"{pod_path(self._pod)}/status", {"metadata": {"uid": uid}, "status": status})
        self._sent, self._is_overwritten = status, False
        self._sent_version = int(answer["metadata"]["resourceVersion"])


def _ready(status: Mapping[str, Any]) -> str:
    conditions = status.get("conditions", [])
    return str(next((one["status"] for one in conditions if one["type"] == "Ready"), "False"))
