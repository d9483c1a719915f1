"""What a pod gives its containers: variables, volumes, files and Events. Implements ``container.Surroundings``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.layout import API_SERVICE_ADDRESS
from cluster.node import process
from cluster.node.api import NodeApi
from cluster.node.environment import references_of, variables
from cluster.node.events import EventKind, PodEvents
from cluster.node.images import Image
from cluster.node.objects import fetch
from cluster.node.volumes import Volumes

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class PodSurroundings:
    """Everything about one pod that does not change while its containers come and go.

    ``pod`` has its address in its status, for variables that name it.
    """

    api: NodeApi
    pod: Mapping[str, Any]
    place: process.Place
    folder: Path
    volumes: Volumes
    launcher: Path
    images: Sequence[Image]
    events: PodEvents

    async def environment(self, container: Mapping[str, Any], image: Image) -> dict[str, str]:
        objects = await fetch(self.api, self.pod["metadata"]["namespace"], references_of(container))
        defaults = {
            "PATH": PATH,
            "HOME": "/",
            "HOSTNAME": self.place.hostname,
            "KUBERNETES_SERVICE_HOST": API_SERVICE_ADDRESS,
            "KUBERNETES_SERVICE_PORT": "443",
            **image.environment,
        }
        return variables(self.pod, container, objects, defaults)

    def mounts(self, container: Mapping[str, Any]) -> list[process.Mount]:
        read_only = {
            volume["name"]
            for volume in self.pod["spec"].get("volumes", [])
            if {"configMap", "secret", "projected", "downwardAPI"} & volume.keys()
        }
        return [
            process.Mount(
                self.volumes.source_of(mount),
                mount["mountPath"],
                is_read_only=mount.get("readOnly", False) or mount["name"] in read_only,
            )
            for mount in container.get("volumeMounts", [])
        ]

    def log(self, name: str, restarts: int) -> Path:
        return self._path("log", f"{name}.{restarts}.log")

    def message_file(self, name: str) -> Path:
        return self._path("messages", name)

    def scratch(self, name: str) -> Path:
        path = self._path("roots", name)
        path.mkdir(exist_ok=True)
        return path

    def _path(self, folder: str, name: str) -> Path:
        path = self.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def event(self, kind: EventKind, reason: str, message: str) -> None:
        self.events.tell(kind, reason, message)
