"""The chart as a release on the cluster, made by Helm 4 itself through its SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helm_python import Config
from support_chart import CHART, Manifest, render

from world import World

NAME = "sapwood"
NAMESPACE = "sapwood"
SECONDS = 180
"""Until what was installed has to be ready."""
_CLUSTER_WIDE = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
_NAMESPACED = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PodMonitor": "/apis/monitoring.coreos.com/v1/namespaces/{}/podmonitors",
    "PrometheusRule": "/apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
    "ReferenceGrant": "/apis/gateway.networking.k8s.io/v1beta1/namespaces/{}/referencegrants",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
}
_OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": NAME, "meta.helm.sh/release-namespace": NAMESPACE},
}


def path_of(manifest: Manifest) -> str:
    """Return where the API server keeps an object of the chart."""
    about = manifest["metadata"]
    kind = manifest["kind"]
    collection = _CLUSTER_WIDE.get(kind) or _NAMESPACED[kind].format(about.get("namespace", ""))
    return f"{collection}/{about['name']}"


@dataclass(frozen=True, slots=True)
class Release:
    """The release `NAME` in the namespace `NAMESPACE`."""

    world: World
    helm: Config

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        """Install, and return once operator and gateway are ready."""
        self._adopt(render(values, release=NAME, namespace=NAMESPACE))
        self.helm.install(
            CHART, NAME, dict(values or {}), namespace=NAMESPACE, create_namespace=True, wait="watcher", timeout=SECONDS
        )

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Upgrade to ``values``, and return once everything is ready."""
        self.helm.upgrade(CHART, NAME, dict(values), namespace=NAMESPACE, wait="watcher", timeout=SECONDS)

    def uninstall(self) -> None:
        """Uninstall, and return once what goes is gone; does nothing where there is no release."""
        self.helm.uninstall(NAME, ignore_not_found=True, wait="watcher", timeout=SECONDS)

    def present(self) -> list[Manifest]:
        """Return what the chart makes by default, hooks left out, of which there is one on the cluster."""
        made = [m for m in render(release=NAME, namespace=NAMESPACE) if m["kind"] != "Pod"]
        return [manifest for manifest in made if self.world.get(path_of(manifest))]

    def _adopt(self, manifests: tuple[Manifest, ...]) -> None:
        """Let Helm take over what other tests have made of the same names (``helm install --take-ownership``)."""
        for manifest in manifests:
            if self.world.get(path_of(manifest)):
                self.world.edit(path_of(manifest), {"metadata": _OWNED})


def connect(world: World) -> Release:
    """Return the release as it can be made on the cluster of ``KUBECONFIG``."""
    return Release(world, Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=NAMESPACE))
