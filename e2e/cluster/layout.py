"""Where everything of one cluster is: names, folders, addresses. Pure: nothing is made here.

Addresses are the same in every cluster, since each lives in a network namespace of its own::

    10.77.0.0/16    the bridge: pods and nodes
      10.77.0.1     control plane (API server 6443, CoreDNS 53)
      10.77.N.1     node N (its log server on 10250), N = 1, 2, …
      10.77.N.10…   pods of node N
    10.88.0.0/16    pods of nodes that kwok plays
    10.96.0.0/16    Services; 10.96.0.1 the API server, 10.96.0.10 CoreDNS
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import HarnessError

BRIDGE = "sap0"
CONTROL_PLANE_ADDRESS = "10.77.0.1"
POD_NETWORK = "10.77.0.0/16"
POD_PREFIX_LENGTH = 16
KWOK_NETWORK = "10.88.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_SERVICE_ADDRESS = "10.96.0.10"
API_PORT = 6443
KUBELET_PORT = 10250
CLUSTER_DOMAIN = "cluster.local"
DEFAULT_NAME = "e2e"

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
MAX_NODES = 250
"""Node N owns 10.77.N.0/24."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The names and folders of the cluster ``name``; ``state`` is its folder, all of it thrown away at the end."""

    name: str
    state: Path

    @property
    def netns(self) -> str:
        """Name of the network namespace, as ``ip netns`` lists it."""
        return f"sap-{self.name}"

    @property
    def netns_path(self) -> Path:
        return Path("/run/netns", self.netns)

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def data(self) -> Path:
        """What etcd and Prometheus keep."""
        return self.state / "data"

    @property
    def pids(self) -> Path:
        """One file a process, with its process id in the machine's own pid namespace."""
        return self.state / "run"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.jsonl"

    @property
    def kubeconfig(self) -> Path:
        """The cluster administrator's."""
        return self.pki / "admin.kubeconfig"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def node_folder(self, node: str) -> Path:
        """Logs, volumes and status of the node's pods."""
        return self.state / "nodes" / node


def layout(name: str, environment: Mapping[str, str]) -> Layout:
    """Return the layout of the cluster ``name``; `HarnessError` for a name that no namespace can have."""
    if not _NAME.fullmatch(name):
        raise HarnessError(f"cluster name {name!r}: use 1 to 20 lower-case letters, digits and dashes, a letter first")
    return Layout(name, state_root(environment) / name)


def state_root(environment: Mapping[str, str]) -> Path:
    """Return the folder under which each cluster has its own."""
    base = environment.get("XDG_STATE_HOME") or os.path.join(environment["HOME"], ".local", "state")
    return Path(base, "sapwood", "e2e")


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of built programs, which outlives clusters and checkouts."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment["HOME"], ".cache")
    return Path(base, "sapwood", "e2e")


def kernels_root(environment: Mapping[str, str]) -> Path:
    """Return the folder in which engines that are started outside of clusters keep their compiled kernels."""
    return cache_root(environment).parent / "kernels"


def node_name(number: int) -> str:
    """Return the name of node ``number`` (from 1)."""
    return f"node-{number}"


def node_number(name: str) -> int:
    """Return the number of a node that `node_name` named."""
    return int(name.removeprefix("node-"))


def node_address(number: int) -> str:
    """Return the address at which the node's log server listens."""
    if not 1 <= number <= MAX_NODES:
        raise HarnessError(f"node {number}: a cluster has nodes 1 to {MAX_NODES}")
    return f"10.77.{number}.1"
