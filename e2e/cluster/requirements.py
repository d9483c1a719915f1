"""Looks whether this machine can run the cluster, and says everything that is missing at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.errors import MissingError

COMMANDS = {
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
"""Command -> the Debian package that brings it."""
MIN_GO = (1, 26)
"""What Kubernetes' own go.mod asks for."""


def check() -> None:
    """Return when a cluster can be built and run here; else `MissingError` with one line for each thing."""
    missing = [*_system(), *_commands(), *_go()]
    if not missing:
        missing = _namespaces()
    if missing:
        raise MissingError(missing)


def _system() -> list[str]:
    if sys.platform != "linux":
        return [f"Linux: namespaces are its own, and this is {sys.platform}"]
    if os.geteuid() != 0:
        return ["root: network namespaces and mounts need it (run as root, or in a machine of your own)"]
    return []


def _commands() -> list[str]:
    return [
        f"the command {command} (Debian: apt-get install {package})"
        for command, package in COMMANDS.items()
        if shutil.which(command) is None
    ]


def _go() -> list[str]:
    go = shutil.which("go")
    needed = ".".join(map(str, MIN_GO))
    if go is None:
        return [f"Go {needed} or newer: the control plane is built from its modules"]
    said = subprocess.run([go, "env", "GOVERSION"], check=False, capture_output=True, text=True).stdout
    if go_version(said) < MIN_GO:
        return [f"Go {needed} or newer: {go} says {said.strip() or 'nothing'}"]
    return []


def go_version(said: str) -> tuple[int, int]:
    """Return (major, minor) of what ``go env GOVERSION`` printed; (0, 0) where it is no version."""
    match = re.match(r"go(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _namespaces() -> list[str]:
    """Try what only a kernel and its policy can say."""
    probe = ["unshare", "--net", "--pid", "--fork", "--mount", "--uts", "--ipc", "--mount-proc", "true"]
    tried = subprocess.run(probe, check=False, capture_output=True, text=True)
    missing = []
    if tried.returncode:
        missing.append(f"the right to make namespaces: unshare says {tried.stderr.strip()!r}")
    if "\toverlay\n" not in Path("/proc/filesystems").read_text(encoding="utf-8"):
        missing.append("the overlay file system (modprobe overlay)")
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        missing.append("bridge netfilter (modprobe br_netfilter): replies between pods would miss a Service's address")
    return missing
