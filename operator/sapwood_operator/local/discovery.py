"""The file by which the gateway knows services, replicas and tenants: the objects that it would find in a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sapwood_contract.routing import COMPONENT_LABEL, ROUTING_LABEL
from sapwood_operator.domain import names
from sapwood_operator.local.pod import LOOPBACK, Pod
from sapwood_operator.local.world import JsonObject

_SLICE_SERVICE_LABEL = "kubernetes.io/service-name"


def objects(config_maps: Iterable[JsonObject], pods: Iterable[Pod], callers: Iterable[JsonObject]) -> str:
    """Return the content of the file, as JSON: the same for the same state.

    ``callers``: Tenants, and the Secrets that they name.
    """
    routes = [each for each in config_maps if each["metadata"].get("labels", {}).get(ROUTING_LABEL) == "true"]
    items = [*routes, *map(_slice, pods), *callers]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)


def _slice(pod: Pod) -> dict[str, Any]:
    """One for each replica, because each has ports of its own."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": pod.name,
            "namespace": pod.service.namespace,
            "labels": {_SLICE_SERVICE_LABEL: names.engine(pod.service.name), COMPONENT_LABEL: "engine"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": pod.ports.http}, {"name": "admin", "port": pod.ports.admin}],
        "endpoints": [
            {
                "addresses": [LOOPBACK],
                "conditions": {
                    "ready": pod.is_ready and not pod.is_leaving,
                    "serving": pod.is_ready,
                    "terminating": pod.is_leaving,
                },
                "targetRef": {"kind": "Pod", "name": pod.name, "namespace": pod.service.namespace, "uid": pod.uid},
            }
        ],
    }


class DiscoveryFile:
    """Keeps one file; who reads it never sees half of a version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why the last version could not be written; it is tried again. Empty: it could."""
        self._written = ""

    def write(self, content: str) -> None:
        """Replace the file, where ``content`` is another one than the last."""
        if content == self._written:
            return
        draft = self.path.with_suffix(".new")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(content)
            draft.replace(self.path)
        except OSError as error:
            self.problem = f"the gateway cannot be told what has changed: {error}"
        else:
            self.problem, self._written = "", content
