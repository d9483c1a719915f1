"""What only some tests want: kwok, which plays nodes with thousands of pods that run nothing, Prometheus, its operator,
Jaeger.

All are built before the cluster's network is entered (``python -m cluster up --with kwok``): nothing can be fetched
from inside.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import definitions, processes
from cluster.api import Api, is_healthy, wait_until
from cluster.binaries import (
    JAEGER,
    KWOK,
    KWOK_STAGES,
    PROMETHEUS,
    PROMETHEUS_OPERATOR,
    Program,
    build_all,
    path_of,
)
from cluster.layout import CONTROL_PLANE_ADDRESS, KWOK_NETWORK, Layout
from cluster.processes import Spec

PROGRAMS: Mapping[str, tuple[Program, ...]] = {
    "kwok": (KWOK, KWOK_STAGES),
    "prometheus": (PROMETHEUS,),
    "optional-apis": (PROMETHEUS_OPERATOR,),
    "jaeger": (JAEGER,),
}
"""Name as ``--with`` takes it -> what is built for it."""
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
KWOK_LABEL = "type"
"""Pods go to kwok's nodes by ``nodeSelector: {type: kwok}`` and a toleration of the taint ``kwok.x-k8s.io/node``."""
PROMETHEUS_PORT = 9090
PROMETHEUS_OPERATOR_PORT = 9091
JAEGER_ADMIN_PORT, JAEGER_QUERY_PORT, JAEGER_OTLP_PORT = 14269, 16686, 4318
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Jaeger:
    """Where a Jaeger takes spans, and where it is asked for traces."""

    otlp_url: str
    query_url: str


def prepare(name: str, environment: Mapping[str, str]) -> None:
    """Build and fetch what the extra ``name`` needs."""
    build_all(PROGRAMS[name], environment)
    if name == "optional-apis":
        definitions.fetch(environment)


def start_kwok(layout: Layout, environment: Mapping[str, str]) -> None:
    """Start kwok; it plays the nodes that `make_kwok_node` makes and leaves all others alone."""
    stages = layout.state / "kwok-stages.yaml"
    printed = subprocess.run([path_of(KWOK_STAGES, environment)], check=True, capture_output=True)
    stages.write_bytes(printed.stdout)
    arguments = [
        f"--kubeconfig={layout.pki / 'kwok.kubeconfig'}",
        f"--config={stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
        f"--cidr={KWOK_NETWORK}",
        f"--node-ip={CONTROL_PLANE_ADDRESS}",
        "--node-lease-duration-seconds=40",
    ]
    processes.start(layout, Spec("kwok", [str(path_of(KWOK, environment)), *arguments], {"GOMAXPROCS": "1"}))


def kwok_node(name: str, capacity: Mapping[str, str]) -> dict[str, Any]:
    """Return a Node for kwok to play; nothing is scheduled to it that does not ask for it. Pure."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {KWOK_ANNOTATION: "fake"},
            "labels": {KWOK_LABEL: "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": KWOK_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": dict(capacity), "allocatable": dict(capacity)},
    }


def make_kwok_node(layout: Layout, name: str, *, num_pods: int = 1000) -> None:
    """Add a node with room for ``num_pods``, and return once it is ready."""
    api = Api(layout)
    capacity = {"cpu": "1000", "memory": "4Ti", "pods": str(num_pods), "nvidia.com/gpu": "1000"}
    api.create("/api/v1/nodes", kwok_node(name, capacity))

    def is_ready() -> bool:
        status, node = api.call("GET", f"/api/v1/nodes/{name}")
        conditions = node["status"].get("conditions", []) if status == 200 else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    wait_until(is_ready, name, timeout_seconds=START_SECONDS, alive=lambda: processes.check_alive(layout, "kwok"))


def start_prometheus(
    layout: Layout, config: Mapping[str, Any], environment: Mapping[str, str], *, rules: Mapping[str, str] | None = None
) -> str:
    """Start Prometheus with ``config`` (its configuration file as an object) and files of ``rules`` by their names, and
    return its address once it is ready.

    It begins without samples: what one before has scraped would be found for five minutes. It is in the cluster's
    network: pods and Services are reached, and ``kubernetes_sd_configs`` may use the cluster's ``kubeconfig_file``.
    """
    path, samples = layout.state / "prometheus.json", layout.data / "prometheus"
    shutil.rmtree(samples, ignore_errors=True)
    folder = layout.state / "prometheus-rules"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in (rules or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    path.write_text(json.dumps({**config, "rule_files": [f"{folder}/*"]}), encoding="utf-8")  # JSON is YAML
    arguments = [
        f"--config.file={path}",
        f"--storage.tsdb.path={samples}",
        f"--web.listen-address={CONTROL_PLANE_ADDRESS}:{PROMETHEUS_PORT}",
        "--web.enable-lifecycle",
        "--enable-feature=exemplar-storage",
    ]
    processes.start(
        layout, Spec("prometheus", [str(path_of(PROMETHEUS, environment)), *arguments], {"GOMAXPROCS": "1"})
    )
    wait_until(
        lambda: is_healthy(PROMETHEUS_PORT, "/-/ready", address=CONTROL_PLANE_ADDRESS),
        "prometheus",
        timeout_seconds=START_SECONDS,
        alive=lambda: processes.check_alive(layout, "prometheus"),
    )
    return f"http://{CONTROL_PLANE_ADDRESS}:{PROMETHEUS_PORT}"


def start_prometheus_operator(layout: Layout, environment: Mapping[str, str]) -> None:
    """Start the Prometheus Operator as the cluster's administrator, and return once it works; it needs its CRDs.

    It writes the configuration of each Prometheus object into a Secret. The pods that it asks for come from images that
    no node here can pull.
    """
    arguments = [
        f"--web.listen-address={CONTROL_PLANE_ADDRESS}:{PROMETHEUS_OPERATOR_PORT}",
        "--prometheus-config-reloader=e2e/none:1",
        "--prometheus-default-base-image=e2e/none",
        "--kubelet-endpoints=false",
    ]
    program = str(path_of(PROMETHEUS_OPERATOR, environment))
    started_with = {"GOMAXPROCS": "1", "KUBECONFIG": str(layout.kubeconfig)}
    processes.start(layout, Spec("prometheus-operator", [program, *arguments], started_with))
    wait_until(
        lambda: is_healthy(PROMETHEUS_OPERATOR_PORT, "/healthz", address=CONTROL_PLANE_ADDRESS),
        "prometheus-operator",
        timeout_seconds=START_SECONDS,
        alive=lambda: processes.check_alive(layout, "prometheus-operator"),
    )


def start_jaeger(layout: Layout, environment: Mapping[str, str]) -> Jaeger:
    """Start Jaeger with an empty memory, and return where it is once it is ready."""
    arguments = [
        f"--admin.http.host-port={CONTROL_PLANE_ADDRESS}:{JAEGER_ADMIN_PORT}",
        f"--collector.otlp.http.host-port={CONTROL_PLANE_ADDRESS}:{JAEGER_OTLP_PORT}",
        f"--query.http-server.host-port={CONTROL_PLANE_ADDRESS}:{JAEGER_QUERY_PORT}",
        "--memory.max-traces=1000",
    ]
    processes.start(layout, Spec("jaeger", [str(path_of(JAEGER, environment)), *arguments], {"GOMAXPROCS": "1"}))
    wait_until(
        lambda: is_healthy(JAEGER_ADMIN_PORT, "/", address=CONTROL_PLANE_ADDRESS),
        "jaeger",
        timeout_seconds=START_SECONDS,
        alive=lambda: processes.check_alive(layout, "jaeger"),
    )
    return Jaeger(
        otlp_url=f"http://{CONTROL_PLANE_ADDRESS}:{JAEGER_OTLP_PORT}",
        query_url=f"http://{CONTROL_PLANE_ADDRESS}:{JAEGER_QUERY_PORT}",
    )
