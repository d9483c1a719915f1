"""The kinds that the operator reads and writes, and the addresses of their objects.

A closed table instead of the API server's discovery: the operator's rights (RBAC) name these kinds and no others,
and an address must not cost a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Kind:
    """A namespaced kind."""

    api_version: str
    kind: str
    plural: str

    @property
    def group_path(self) -> str:
        """Path of the group and version: ``/api/v1``, ``/apis/apps/v1``."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"

    def collection(self, namespace: str) -> str:
        """Path of all objects in ``namespace``; empty: in every namespace."""
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{self.group_path}{inside}/{self.plural}"

    def path(self, namespace: str, name: str) -> str:
        """Path of one object. Neither part may be empty, for that is the path of others."""
        assert "" not in (namespace, name), f"{self.kind} {namespace!r}/{name!r}"
        return f"{self.collection(namespace)}/{quote(name, safe='')}"


SERVICES = Kind("serving.sapwood.dev/v1alpha1", "InferenceService", "inferenceservices")
TENANTS = Kind("serving.sapwood.dev/v1alpha1", "Tenant", "tenants")
POLICIES = Kind("serving.sapwood.dev/v1alpha1", "AutoscalingPolicy", "autoscalingpolicies")
PODS = Kind("v1", "Pod", "pods")
REPLICA_SETS = Kind("apps/v1", "ReplicaSet", "replicasets")
EVENTS = Kind("events.k8s.io/v1", "Event", "events")
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases")
ENDPOINT_SLICES = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
"""Of the gateway's Service: listed to find the gateways, and nothing else."""
SECRETS = Kind("v1", "Secret", "secrets")
"""Of children, the one kind that is made and never read."""

WRITTEN_BY_USERS = (SERVICES, TENANTS, POLICIES)
"""Watched whole; of the others what bears our label."""

CHILDREN = (
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Service", "services"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
)
"""Children whose API every cluster has."""
OPTIONAL_CHILDREN = (
    Kind("networking.k8s.io/v1", "Ingress", "ingresses"),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
    Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules"),
    Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes"),
)
"""Children whose API a cluster may lack: discovered, never required."""

ALWAYS_THERE = (SERVICES, PODS, REPLICA_SETS, *CHILDREN)
DISCOVERED = (*OPTIONAL_CHILDREN, TENANTS, POLICIES)
"""What is looked after where its API is there: who installs the CRD of services alone still has services."""
BY_NAME: Mapping[tuple[str, str], Kind] = {
    (kind.api_version, kind.kind): kind for kind in (*ALWAYS_THERE, *DISCOVERED, SECRETS, EVENTS, LEASES)
}
"""(apiVersion, kind) -> `Kind`."""
