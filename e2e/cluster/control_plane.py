"""How etcd, the API server, the controller manager and the scheduler are started: their arguments. Pure.

All listen inside the cluster's own network, so ports are the usual ones in every cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cluster.layout import (
    API_PORT,
    CLUSTER_DOMAIN,
    CONTROL_PLANE_ADDRESS,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
)
from cluster.processes import Spec

ETCD_URL = "http://127.0.0.1:2379"
SCHEDULER_HEALTH_PORT = 10259
CALLS_PER_SECOND = 200
"""Calls a second that controllers may make: the default of 20 would make hundreds of pods the wait of a test."""

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
    # Claims that name their volume are bound; nothing here attaches or provisions one.
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
)


def etcd(layout: Layout, programs: Mapping[str, Path]) -> Spec:
    """Its data is thrown away with the cluster, so it need not reach the disk."""
    peer = "http://127.0.0.1:2380"
    return Spec(
        "etcd",
        [
            str(programs["etcd"]),
            f"--data-dir={layout.data / 'etcd'}",
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
    )


def apiserver(layout: Layout, programs: Mapping[str, Path], audit_policy: Path) -> Spec:
    """RBAC and the Node authoriser are on, as in a real cluster: a missing permission must show."""
    pki = layout.pki
    issuer = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"
    return Spec(
        "kube-apiserver",
        [
            str(programs["kube-apiserver"]),
            f"--etcd-servers={ETCD_URL}",
            # The address of the Service `kubernetes`; a loopback address could not be its endpoint.
            f"--advertise-address={CONTROL_PLANE_ADDRESS}",
            "--bind-address=0.0.0.0",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-issuer={issuer}",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={audit_policy}",
            f"--audit-log-path={layout.audit_log}",
            # One file for the life of the cluster: tests keep positions in it.
            "--audit-log-maxsize=4096",
            "--allow-privileged=true",
            "--profiling=false",
        ],
        {"GOMAXPROCS": "2"},
    )


def controller_manager(layout: Layout, programs: Mapping[str, Path]) -> Spec:
    """A lost node is noticed after 12 s instead of 40 s, and metrics are looked at every second instead of every 15 s:
    tests wait for it."""
    pki = layout.pki
    return Spec(
        "kube-controller-manager",
        [
            str(programs["kube-controller-manager"]),
            *_own_identity(layout, "kube-controller-manager"),
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials=true",
            f"--cluster-cidr={POD_NETWORK}",
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=12s",
            "--horizontal-pod-autoscaler-sync-period=1s",
            f"--kube-api-qps={CALLS_PER_SECOND}",
            f"--kube-api-burst={2 * CALLS_PER_SECOND}",
            f"--controllers={','.join(CONTROLLERS)}",
        ],
        {"GOMAXPROCS": "2"},
    )


def scheduler(layout: Layout, programs: Mapping[str, Path]) -> Spec:
    return Spec(
        "kube-scheduler",
        [
            str(programs["kube-scheduler"]),
            *_own_identity(layout, "kube-scheduler"),
            f"--kube-api-qps={CALLS_PER_SECOND}",
            f"--kube-api-burst={2 * CALLS_PER_SECOND}",
        ],
        {"GOMAXPROCS": "1"},
    )


def _own_identity(layout: Layout, component: str) -> list[str]:
    kubeconfig = layout.pki / f"{component}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]
