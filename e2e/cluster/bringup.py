"""Brings a cluster up, step by step, and takes it down. The thread that brings it up is in its network afterwards."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, control_plane, namespaces, nodes, pki, processes, requirements, services
from cluster.api import Api, is_healthy, wait_until
from cluster.audit import POLICY
from cluster.errors import HarnessError, NoClusterError
from cluster.layout import Layout, node_name
from cluster.locks import exclusive, say
from cluster.nodes import NodePlan

START_SECONDS = 60.0
"""How long one step may take; it takes 1 to 8 s on an idle machine."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to bring up: nodes node-1, node-2, …, each with ``gpus_per_node``.

    Without nodes there is a control plane alone: pods stay Pending, and Services have no addresses that answer.
    """

    num_nodes: int = 2
    gpus_per_node: int = 8
    ends_with_us: bool = False
    """The cluster ends with the process that brings it up, even if that is killed."""


def up(layout: Layout, plan: ClusterPlan, environment: Mapping[str, str]) -> None:
    """Build what is missing and start a cluster; `HarnessError` where that cannot be: nothing of it is left then."""
    requirements.check()
    wanted = binaries.CONTROL_PLANE + (binaries.NODES if plan.num_nodes else ())
    programs = binaries.build_all(wanted, environment)
    with _alone(layout):
        if is_up(layout):
            ending = f"python -m cluster down --name {layout.name}"
            raise HarnessError(f"cluster {layout.name!r} runs already; end it with: {ending}")
        _remove(layout)
        for folder in (layout.state, layout.logs, layout.data, layout.pids):
            folder.mkdir(parents=True, mode=0o700)
        began = time.monotonic()
        try:
            namespaces.create(layout, ends_with_us=plan.ends_with_us)
            namespaces.enter(layout)
            _start_control_plane(layout, programs)
            if plan.num_nodes:
                _start_nodes(layout, programs, plan)
        except BaseException:
            namespaces.destroy(layout)  # the logs stay to be read
            raise
    say(f"cluster {layout.name} is up after {time.monotonic() - began:.1f} s")


def is_up(layout: Layout) -> bool:
    """Return whether a cluster of that name runs."""
    try:
        namespaces.init_of(layout)
    except NoClusterError:
        return False
    return True


def down(layout: Layout) -> None:
    """End the cluster and remove all that it kept; does nothing where there is none."""
    with _alone(layout):
        _remove(layout)


def end(layout: Layout) -> None:
    """End the cluster, and keep what it logged until the next one of its name."""
    with _alone(layout):
        namespaces.destroy(layout)


def _alone(layout: Layout) -> AbstractContextManager[None]:
    return exclusive(layout.state.with_suffix(".lock"), f"the start or end of cluster {layout.name}")


def _remove(layout: Layout) -> None:
    namespaces.destroy(layout)
    shutil.rmtree(layout.state, ignore_errors=True)


def _start_control_plane(layout: Layout, programs: Mapping[str, Path]) -> None:
    pki.create(layout.pki)
    policy = layout.state / "audit-policy.json"
    policy.write_text(json.dumps(POLICY), encoding="utf-8")
    processes.start(layout, control_plane.etcd(layout, programs))
    processes.start(layout, control_plane.apiserver(layout, programs, policy))
    wait_for_api(layout)
    api = Api(layout)
    processes.start(layout, control_plane.controller_manager(layout, programs))
    processes.start(layout, control_plane.scheduler(layout, programs))
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait(layout, "kube-controller-manager", lambda: api.answers(account))
    _wait(layout, "kube-scheduler", lambda: is_healthy(control_plane.SCHEDULER_HEALTH_PORT, "/readyz", tls=True))


def _start_nodes(layout: Layout, programs: Mapping[str, Path], plan: ClusterPlan) -> None:
    names = [node_name(number) for number in range(1, plan.num_nodes + 1)]
    for name in names:
        nodes.add(layout, NodePlan(name, nodes.capacity(plan.gpus_per_node)), programs["launcher"])
    corefile = layout.state / "Corefile"
    corefile.write_text(services.corefile(layout), encoding="utf-8")
    processes.start(layout, services.coredns(programs, corefile))
    api = Api(layout)
    for path, manifest in services.dns_manifests():
        api.apply(path, manifest)
    for name in names:
        wait_for_node(layout, name)
    processes.start(layout, services.kube_proxy(layout, programs, names[0]))
    _wait(layout, "coredns", lambda: is_healthy(services.DNS_HEALTH_PORT, "/ready"))
    _wait(layout, "kube-proxy", lambda: is_healthy(services.PROXY_HEALTH_PORT, "/healthz"))


def wait_for_api(layout: Layout) -> None:
    """Return once the API server is ready; for a thread in the cluster's network."""
    _wait(layout, "kube-apiserver", lambda: Api(layout).answers("/readyz"))


def wait_for_node(layout: Layout, name: str) -> None:
    """Return once the API server has the node as ready, for pods to be scheduled to it."""
    api = Api(layout)

    def is_ready() -> bool:
        status, node = api.call("GET", f"/api/v1/nodes/{name}")
        if status != 200:
            return False
        ready = [one["status"] for one in node["status"].get("conditions", []) if one["type"] == "Ready"]
        return ready == ["True"] and not node["spec"].get("taints")

    _wait(layout, name, is_ready)


def _wait(layout: Layout, process: str, holds: Callable[[], bool]) -> None:
    wait_until(
        holds,
        process,
        timeout_seconds=START_SECONDS,
        alive=lambda: processes.check_alive(layout, process),
    )
