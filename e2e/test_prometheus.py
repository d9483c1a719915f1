"""Prometheus finds pods by itself, as it does in users' clusters: dashboards and alerts will be tried on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kubernetes import config

from cluster import processes
from cluster.binaries import PROMETHEUS, cached_path
from cluster.extras import start_prometheus
from cluster.layout import Layout
from pods import PYTHON, Pods
from prometheus_api import Prometheus
from world import World, eventually

NAMESPACE = "prometheus"
EXPORTER = """
import http.server
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"e2e_answer 42\\n")
http.server.ThreadingHTTPServer(("", 8000), Metrics).serve_forever()
"""


@pytest.fixture(scope="module")
def pods(harness: Layout) -> Iterator[Pods]:
    world = World(config.new_client_from_config(str(harness.kubeconfig)))  # type: ignore[no-untyped-call]  # as it is
    yield Pods(world, world.make_namespace(NAMESPACE))
    world.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture(scope="module")
def prometheus(harness: Layout) -> Iterator[Prometheus]:
    """A Prometheus that scrapes each pod of the namespace every second."""
    if not cached_path(PROMETHEUS, os.environ).exists():
        pytest.skip("needs Prometheus: python -m cluster up --with prometheus")
    discovery = {"role": "pod", "kubeconfig_file": str(harness.kubeconfig), "namespaces": {"names": [NAMESPACE]}}
    name = {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"}
    job = {"job_name": "pods", "kubernetes_sd_configs": [discovery], "relabel_configs": [name]}
    configuration = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
    yield Prometheus(start_prometheus(harness, configuration, os.environ))
    processes.stop(harness, "prometheus")


def query(prometheus: Prometheus, expression: str) -> dict[str, float]:
    """Return pod -> value of an instant query."""
    return {labels["pod"]: value for labels, value in prometheus.query(expression)}


def test_a_pod_that_comes_is_scraped_and_one_that_goes_is_forgotten(prometheus: Prometheus, pods: Pods) -> None:
    port = {"name": "metrics", "containerPort": 8000}
    pods.make("exporter", {"name": "main", "image": PYTHON, "args": ["-c", EXPORTER], "ports": [port]})
    eventually(lambda: query(prometheus, "e2e_answer") == {"exporter": 42}, "the pod's metric")
    assert query(prometheus, "up") == {"exporter": 1}
    pods.delete("exporter")
    eventually(lambda: query(prometheus, "up") == {}, "the pod forgotten")
