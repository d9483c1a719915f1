"""Adds nodes to a running cluster: the settings of their agents, and what images stand for on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cluster import pki, processes
from cluster.layout import BRIDGE, POD_PREFIX_LENGTH, Layout, kernels_root, node_address, node_number
from cluster.node.images import Image
from cluster.processes import Spec

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SAPWOOD_USER = 10001
"""The user that our Dockerfiles end with."""
_NODE_CACHE = Path("var/cache/sapwood")
"""On a node's disk: what tests give as ``spec.model.cache.nodePath``."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node to add: its name, what it offers, its labels."""

    name: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


def capacity(gpus: int) -> dict[str, str]:
    """Return what a node offers: more processors and memory than the machine has, since pods ask like on real ones."""
    sizes = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "500Gi", "pods": "110"}
    return sizes | ({"nvidia.com/gpu": str(gpus)} if gpus else {})


def default_images() -> list[Image]:
    """Return the images of every node: Sapwood's own, and a Python for the tests' small servers."""
    environment = Path(sys.prefix)
    exposed = [str(path) for path in (Path(sys.base_prefix).resolve(), environment, REPOSITORY)]
    path = {"PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    # What our Dockerfiles set.
    ours = path | {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    sapwood = [str(environment / "bin" / "sapwood")]
    return [
        Image("sapwood/engine:*", sapwood, exposed, ours, SAPWOOD_USER),
        Image("sapwood/control-plane:*", sapwood, exposed, ours, SAPWOOD_USER),
        Image("e2e/python:*", [sys.executable], exposed, path),
        Image("e2e/shell:*", ["/bin/sh"]),
    ]


def add(layout: Layout, plan: NodePlan, launcher: Path) -> None:
    """Give the node its address and identities and start its agent; it registers itself."""
    pki.issue_node(pki.load(layout.pki), plan.name)
    address = f"{node_address(node_number(plan.name))}/{POD_PREFIX_LENGTH}"
    subprocess.run(["ip", "-n", layout.netns, "address", "replace", address, "dev", BRIDGE], check=True)
    folder = layout.node_folder(plan.name)
    folder.mkdir(parents=True, exist_ok=True)
    give_kernels(kernels_root(os.environ), folder / "disk" / _NODE_CACHE)
    settings = {
        "name": plan.name,
        "number": node_number(plan.name),
        "address": node_address(node_number(plan.name)),
        "folder": str(folder),
        "launcher": str(launcher),
        "images": [asdict(image) for image in default_images()],
        "capacity": dict(plan.capacity),
        "labels": dict(plan.labels),
        "pki": str(layout.pki),
    }
    path = folder / "settings.json"
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    program = [sys.executable, "-m", "cluster.node", str(path)]
    processes.start(layout, Spec(plan.name, program, {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}))


def give_kernels(compiled: Path, node_cache: Path) -> None:
    """Copy the kernels that engines of this machine compiled last to where those of a node look for them.

    An engine runs none but its own, whole ones. So it does no harm that files come and go meanwhile.
    """
    folders = sorted(compiled.glob("*"), key=lambda folder: folder.stat().st_mtime)
    to = node_cache / "sapwood" / "kernels"
    to.mkdir(parents=True, exist_ok=True)
    for last in folders[-1:]:
        subprocess.run(["cp", "--recursive", str(last), str(to)], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["chmod", "--recursive", "a+rwX", str(node_cache)], check=True)
