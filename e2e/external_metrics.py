"""A metrics server as HorizontalPodAutoscalers ask it: the API external.metrics.k8s.io, with numbers that tests set.

It runs in the test's process; the API server hands it what comes for the API's group (aggregation).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cluster.layout import Layout
from own_servers import certified, publish, serving
from world import World, condition, eventually

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
_GROUP_VERSION = f"{GROUP}/{VERSION}"
_NAME = "external-metrics"
_REGISTRATIONS = "/apis/apiregistration.k8s.io/v1/apiservices"
_REGISTRATION = f"{_REGISTRATIONS}/{VERSION}.{GROUP}"


@dataclass(slots=True)
class ExternalMetrics:
    """What it says."""

    values: dict[str, int] = field(default_factory=dict)
    """Name of a metric -> its value, in every namespace."""

    def answer(self, path: str) -> object:
        """Return what a GET of ``path`` answers; raises KeyError for a metric that there is not."""
        if path.rstrip("/") == f"/apis/{_GROUP_VERSION}":
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _GROUP_VERSION, "resources": []}
        name = path.rpartition("/")[2]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {"metricName": name, "metricLabels": {}, "timestamp": now, "value": str(self.values[name])}
        return {"kind": "ExternalMetricValueList", "apiVersion": _GROUP_VERSION, "metadata": {}, "items": [item]}


@contextmanager
def external_metrics(layout: Layout, world: World, namespace: str) -> Iterator[ExternalMetrics]:
    """Serve the API through the cluster's API server for as long as the context lasts; needs the harness's cluster.

    ``namespace``: gets the Service by which the API server finds it.
    """
    metrics = ExternalMetrics()
    with serving(metrics.answer, tls=certified(layout, f"{_NAME}.{namespace}.svc")) as port:
        publish(world, namespace, _NAME, port)
        try:
            _register(layout, world, namespace)
            yield metrics
        finally:
            # Of a group that does not answer the namespace controller cannot know what it would have to delete.
            world.delete(_REGISTRATION)


def _register(layout: Layout, world: World, namespace: str) -> None:
    """Return once the API server has found it available."""
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"namespace": namespace, "name": _NAME},
            "caBundle": base64.b64encode((layout.pki / "ca.crt").read_bytes()).decode(),
        },
    }
    world.apply(_REGISTRATIONS, registration)
    eventually(
        lambda: condition(world.get(_REGISTRATION), "Available").get("status") == "True",
        _REGISTRATION,
        within_seconds=60,
    )
