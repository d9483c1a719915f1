"""Makes a pod's volumes: a folder each, below the pod's own, that containers get mounted.

A hostPath is a folder below the node's own state: each node has its disk, and the machine's is not touched. Files of
ConfigMaps, Secrets and tokens are written once, when the pod starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.node.api import NodeApi
from cluster.node.environment import ConfigError, field_of
from cluster.node.objects import Objects, fetch, token

FILE_MODE = 0o644
GROUP_READS = 0o440


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes of one pod below ``folder``; ``disk`` stands for the root of the node's own file system."""

    folder: Path
    disk: Path

    async def make(self, api: NodeApi, pod: Mapping[str, Any]) -> None:
        """Make all volumes; making them again writes their files anew.

        Raises `ConfigError` for what is not there yet, naming the volume.
        """
        for volume in pod["spec"].get("volumes", []):
            try:
                await self._make_one(api, pod, volume)
            except ConfigError as error:
                raise ConfigError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error

    async def _make_one(self, api: NodeApi, pod: Mapping[str, Any], volume: Mapping[str, Any]) -> None:
        path = self.folder / volume["name"]
        if "hostPath" in volume:
            self._link(path, volume["hostPath"]["path"])
        elif "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            self._link(path, await _path_of_claim(api, pod["metadata"]["namespace"], name))
        elif "emptyDir" in volume:
            _make_empty(path, volume["emptyDir"], pod["spec"].get("securityContext", {}))
        else:
            files = await _files_of(api, pod, volume)
            _write_files(path, files, pod["spec"].get("securityContext", {}))

    def _link(self, path: Path, target: str) -> None:
        real = self.disk / target.lstrip("/")
        real.mkdir(parents=True, exist_ok=True)
        # A real node's folder would have been given to the pods' user by whoever set up the node.
        real.chmod(0o777)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(real)

    def source_of(self, mount: Mapping[str, Any]) -> Path:
        """Return the folder or file of the machine that one ``volumeMount`` shows."""
        path: Path = self.folder / mount["name"] / mount.get("subPath", "")
        if not path.exists():
            path.mkdir(parents=True)
        return path.resolve()

    def remove(self) -> None:
        """Remove everything but the node's own disk."""
        if not self.folder.exists():
            return
        for path in self.folder.iterdir():
            if os.path.ismount(path):
                subprocess.run(["umount", "--lazy", path], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _make_empty(path: Path, volume: Mapping[str, Any], security: Mapping[str, Any]) -> None:
    if path.exists():
        return
    path.mkdir(parents=True)
    if volume.get("medium") == "Memory":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    if "fsGroup" in security:
        os.chown(path, -1, security["fsGroup"])
        path.chmod(0o2777)
    else:
        path.chmod(0o777)


async def _path_of_claim(api: NodeApi, namespace: str, claim: str) -> str:
    """Return the path on the node of a claim that is bound to a hostPath or local volume."""
    found = await api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    name = found["spec"].get("volumeName", "")
    if found.get("status", {}).get("phase") != "Bound":
        raise ConfigError(f'claim "{claim}" is not bound')
    spec = (await api.get(f"/api/v1/persistentvolumes/{name}"))["spec"]
    source = spec.get("hostPath") or spec.get("local")
    if source is None:
        raise ConfigError(f'persistentvolume "{name}" is neither hostPath nor local: this node mounts no other kind')
    return str(source["path"])


async def _files_of(api: NodeApi, pod: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, tuple[bytes, int]]:
    """Return path in the volume -> (content, mode); `ConfigError` for a volume of a kind that is not known here."""
    namespace = pod["metadata"]["namespace"]
    if "projected" in source:
        found: dict[str, tuple[bytes, int]] = {}
        for part in source["projected"]["sources"]:
            found |= await _files_of(api, pod, part)
        return found
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: (await token(api, pod, wanted), FILE_MODE)}
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items", [])
        return {
            item["path"]: (field_of(pod, item["fieldRef"]["fieldPath"]).encode(), FILE_MODE)
            for item in items
            if "fieldRef" in item
        }
    for kind in ("configMap", "secret"):
        if kind in source:
            name = source[kind].get("secretName") or source[kind]["name"]
            return _items(kind, name, source[kind], await fetch(api, namespace, [(kind, name)]))
    raise ConfigError(f"this node makes no volume of {sorted(source)}")


def _items(kind: str, name: str, source: Mapping[str, Any], objects: Objects) -> dict[str, tuple[bytes, int]]:
    optional = source.get("optional", False)
    data = objects.read(kind, name, optional=optional)
    mode = source.get("defaultMode", FILE_MODE)
    if not source.get("items"):
        return {key: (content, mode) for key, content in data.items()}
    chosen = {}
    for item in source["items"]:
        if item["key"] in data:
            chosen[item["path"]] = (data[item["key"]], item.get("mode", mode))
        elif not optional:
            raise ConfigError(f"references non-existent config key: {item['key']}")
    return chosen


def _write_files(folder: Path, files: Mapping[str, tuple[bytes, int]], security: Mapping[str, Any]) -> None:
    """Files belong to the pod's ``fsGroup``, where it has one, which may read them whatever their mode says."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".new")
        unfinished.write_bytes(content)
        unfinished.chmod(mode)
        if "fsGroup" in security:
            os.chown(unfinished, -1, security["fsGroup"])
            unfinished.chmod(mode | GROUP_READS)
        unfinished.replace(path)
