"""Tells a pod's story as Events, each sentence once."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from cluster.node.api import NETWORK_ERRORS, ApiError, NodeApi
from cluster.node.clock import now

EventKind = Literal["Normal", "Warning"]
LOG = logging.getLogger(__name__)


class PodEvents:
    """The Events of one pod. They are sent beside its life, and one that cannot be sent is dropped."""

    def __init__(self, api: NodeApi, pod: Mapping[str, Any], node: str) -> None:
        self._api = api
        self._pod = pod
        self._node = node
        self._told: set[tuple[str, str]] = set()
        self._sending: set[asyncio.Task[None]] = set()

    def tell(self, kind: EventKind, reason: str, message: str) -> None:
        if (reason, message) in self._told:
            return
        self._told.add((reason, message))
        task = asyncio.create_task(self._send(kind, reason, message))
        self._sending.add(task)  # a task that nobody refers to may be collected before it is done
        task.add_done_callback(self._sending.discard)

    async def _send(self, kind: EventKind, reason: str, message: str) -> None:
        metadata, time = self._pod["metadata"], now()
        namespace = metadata["namespace"]
        target = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": namespace,
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        event = {
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": target,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "kubelet", "host": self._node},
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
        try:
            await self._api.create(f"/api/v1/namespaces/{namespace}/events", event)
        except (ApiError, *NETWORK_ERRORS) as error:
            # Nothing new may be made in a namespace that is being deleted: that is how most pods of tests end.
            LOG.debug("event %s of %s/%s: %s", reason, namespace, metadata["name"], error)
