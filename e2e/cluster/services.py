"""What makes Services and names work: kube-proxy and CoreDNS. Arguments and manifests; pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.layout import (
    CLUSTER_DOMAIN,
    CONTROL_PLANE_ADDRESS,
    DNS_SERVICE_ADDRESS,
    POD_NETWORK,
    Layout,
)
from cluster.processes import Spec

PROXY_HEALTH_PORT = 10256
DNS_HEALTH_PORT = 8181


def kube_proxy(layout: Layout, programs: Mapping[str, Path], node: str) -> Spec:
    """One for all nodes, since they share a network. It sets no kernel limits: those are the machine's."""
    return Spec(
        "kube-proxy",
        [
            str(programs["kube-proxy"]),
            f"--kubeconfig={layout.pki / 'kube-proxy.kubeconfig'}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={POD_NETWORK}",
            f"--hostname-override={node}",
            f"--bind-address={CONTROL_PLANE_ADDRESS}",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
        {"GOMAXPROCS": "1"},
    )


def coredns(programs: Mapping[str, Path], corefile: Path) -> Spec:
    return Spec("coredns", [str(programs["coredns"]), f"-conf={corefile}"], {"GOMAXPROCS": "1"})


def corefile(layout: Layout) -> str:
    """Return CoreDNS's configuration: cluster names, and NXDOMAIN for all others, as nothing else can be reached."""
    return f"""\
.:53 {{
    bind {CONTROL_PLANE_ADDRESS}
    errors
    ready 127.0.0.1:{DNS_HEALTH_PORT}
    cache 1 {CLUSTER_DOMAIN}
    kubernetes {CLUSTER_DOMAIN} {{
        kubeconfig {layout.pki / "coredns.kubeconfig"}
        ttl 1
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def dns_manifests() -> list[tuple[str, dict[str, Any]]]:
    """Return (path, object) of the Service that pods ask for names, and of its one endpoint."""
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS_SERVICE_ADDRESS, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-control-plane",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [CONTROL_PLANE_ADDRESS], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [
        ("/api/v1/namespaces/kube-system/services/kube-dns", service),
        ("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns-control-plane", endpoints),
    ]
