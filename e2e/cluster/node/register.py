"""Makes the Node object, and keeps telling the API server that the node lives."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from cluster.layout import KUBELET_PORT
from cluster.node.api import NETWORK_ERRORS, ApiError, NodeApi
from cluster.node.clock import now, now_exactly
from cluster.node.settings import NodeSettings

LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 3.0
HEARTBEATS_PER_STATUS = 3
"""The lease is what counts; the status is for people, and for an API server that lost it."""
LOG = logging.getLogger(__name__)


def node_object(settings: NodeSettings) -> dict[str, Any]:
    """Return the Node as it is created. Pure."""
    labels = {
        "kubernetes.io/hostname": settings.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64" if os.uname().machine == "x86_64" else "arm64",
        **settings.labels,
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": settings.name, "labels": labels}}


def node_status(settings: NodeSettings, time: str) -> dict[str, Any]:
    """Return the Node's status: ready, with all that it offers. Pure but for the kernel's release."""
    pressure = {
        "MemoryPressure": "KubeletHasSufficientMemory",
        "DiskPressure": "KubeletHasNoDiskPressure",
        "PIDPressure": "KubeletHasSufficientPID",
    }
    conditions = [{"type": kind, "status": "False", "reason": reason} for kind, reason in pressure.items()]
    conditions.append({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the node agent runs"})
    info = {
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "v1.36.3",
        "containerRuntimeVersion": "process://1.0.0",
        "kernelVersion": os.uname().release,
        "osImage": "processes of this machine",
        "operatingSystem": "linux",
        "architecture": node_object(settings)["metadata"]["labels"]["kubernetes.io/arch"],
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
    }
    return {
        "capacity": dict(settings.capacity),
        "allocatable": dict(settings.capacity),
        "addresses": [
            {"type": "InternalIP", "address": settings.address},
            {"type": "Hostname", "address": settings.name},
        ],
        "conditions": [one | {"lastHeartbeatTime": time, "lastTransitionTime": time} for one in conditions],
        "nodeInfo": info,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
    }


async def run(settings: NodeSettings, api: NodeApi) -> None:
    """Register the node and send heartbeats, for ever."""
    beats = 0
    is_registered = False
    while True:
        try:
            if not is_registered:
                await _create(api, "/api/v1/nodes", node_object(settings))
                is_registered = True
            if beats % HEARTBEATS_PER_STATUS == 0:
                path = f"/api/v1/nodes/{settings.name}/status"
                await api.patch(path, {"status": node_status(settings, now())})
            await _renew(settings, api)
            beats += 1
        except ApiError as error:
            LOG.warning("heartbeat: %s", error)
            # Somebody deleted the Node: a kubelet, too, comes back only when it is started again, but tests want it.
            is_registered = error.status != 404
        except NETWORK_ERRORS as error:
            LOG.info("heartbeat: %s", error)
        await asyncio.sleep(HEARTBEAT_SECONDS if is_registered else 0.5)


async def _create(api: NodeApi, path: str, body: dict[str, Any]) -> None:
    try:
        await api.create(path, body)
    except ApiError as error:
        if error.status != 409:
            raise


async def _renew(settings: NodeSettings, api: NodeApi) -> None:
    spec = {"holderIdentity": settings.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now_exactly()}
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    try:
        await api.patch(f"{leases}/{settings.name}", {"spec": spec})
    except ApiError as error:
        if error.status != 404:
            raise
        await api.create(leases, {"metadata": {"name": settings.name}, "spec": spec})
