"""Runs one container once: starts the launcher, executes commands beside it, ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.node.images import Image

ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nsapwood:x:10001:10001::/nonexistent:/usr/sbin/nologin\n"
"""The accounts of every image."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a container runs: its pod's network and names."""

    network: Path
    address: str
    hostname: str
    namespace: str
    nameserver: str
    cluster_domain: str

    def files(self) -> dict[str, str]:
        """Return the files that a container runtime puts into each container."""
        domain = f"svc.{self.cluster_domain}"
        return {
            "/etc/hosts": f"127.0.0.1 localhost\n{self.address} {self.hostname}\n",
            "/etc/hostname": f"{self.hostname}\n",
            "/etc/passwd": ACCOUNTS,
            "/etc/resolv.conf": (
                f"search {self.namespace}.{domain} {domain} {self.cluster_domain}\n"
                f"nameserver {self.nameserver}\noptions ndots:5\n"
            ),
        }


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom a container runs, and with which rights."""

    user: int
    group: int
    groups: Sequence[int]
    is_root_read_only: bool
    may_gain_rights: bool
    has_capabilities: bool


def identity_of(pod: Mapping[str, Any], container: Mapping[str, Any], image: Image) -> Identity:
    """Return the identity that the pod's and the container's security contexts ask for; pure.

    A container's own setting wins; without any, the image's user counts.
    """
    outer, inner = pod["spec"].get("securityContext", {}), container.get("securityContext", {})
    user = inner.get("runAsUser", outer.get("runAsUser", image.user))
    group = inner.get("runAsGroup", outer.get("runAsGroup", image.user))
    groups = [*outer.get("supplementalGroups", []), *([outer["fsGroup"]] if "fsGroup" in outer else [])]
    return Identity(
        user=user,
        group=group,
        groups=groups,
        is_root_read_only=inner.get("readOnlyRootFilesystem", False),
        may_gain_rights=inner.get("allowPrivilegeEscalation", True),
        has_capabilities="ALL" not in inner.get("capabilities", {}).get("drop", []),
    )


def violation_of(pod: Mapping[str, Any], container: Mapping[str, Any], identity: Identity) -> str:
    """Return why a kubelet would refuse to run the container as that user; empty where it would not. Pure."""
    must_not = container.get("securityContext", {}).get(
        "runAsNonRoot", pod["spec"].get("securityContext", {}).get("runAsNonRoot", False)
    )
    return "container has runAsNonRoot and image will run as root" if must_not and identity.user == 0 else ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the machine, and where the container sees it."""

    source: Path
    target: str
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class Command:
    """What runs: argv and environment with all variables expanded."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    working_folder: str


def specification(
    place: Place, identity: Identity, command: Command, mounts: Sequence[Mount], image: Image, folder: Path
) -> bytes:
    """Return what the launcher reads (its main.go names the fields); pure."""
    wanted = {
        "folder": str(folder),
        "hostname": place.hostname,
        "argv": list(command.argv),
        "environment": [f"{name}={value}" for name, value in command.environment.items()],
        "working_dir": command.working_folder,
        "exposed": list(image.exposed),
        "files": place.files(),
        "mounts": [
            {"source": str(mount.source), "target": mount.target, "read_only": mount.is_read_only} for mount in mounts
        ],
        "user": identity.user,
        "group": identity.group,
        "groups": list(identity.groups),
        "read_only": identity.is_root_read_only,
        "no_new_rights": not identity.may_gain_rights,
        "no_rights": not identity.has_capabilities,
    }
    return json.dumps(wanted).encode()


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """A container that was started."""

    launcher: Process

    @property
    def _first(self) -> int:
        """Process id of the container's process 1, as the agent sees it; 0 before its start and after its end."""
        pid = self.launcher.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return int(children[0]) if children else 0

    async def wait(self) -> int:
        """Return the exit code, 128 + n where signal n ended it."""
        code = await self.launcher.wait()
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """Ask it to end: SIGTERM to its process 1."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.launcher.returncode is not None:
            return
        first = self._first
        try:
            # Without a child the launcher has not begun, or is at its end.
            os.kill(first or self.launcher.pid, number)
        except ProcessLookupError:
            return

    async def execute(self, argv: Sequence[str]) -> int:
        """Run a command in the container, as its user and with its environment, and return its exit code."""
        first = self._first
        if not first:
            return 128
        enter = ["nsenter", f"--target={first}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd=/"]
        process = await asyncio.create_subprocess_exec(
            *enter,
            *_ids_of(first),
            *argv,
            env=_environment_of(first),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            # The command is a child of nsenter: only their common process group names both.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise


def _environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _ids_of(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    ids = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("Uid:", "Gid:"))}
    return [f"--setuid={ids['Uid:']}", f"--setgid={ids['Gid:']}"]


async def start(launcher: Path, network: Path, wanted: bytes, log: Path) -> ContainerProcess:
    """Start a container in a pod's network; its output is appended to ``log``."""
    enter = ["nsenter", f"--net={network}"]  # becomes the launcher, so the process id is the launcher's
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *enter, launcher, stdin=PIPE, stdout=output, stderr=output, start_new_session=True
        )
    assert process.stdin is not None
    process.stdin.write(wanted)
    process.stdin.close()
    return ContainerProcess(process)
