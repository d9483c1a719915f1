"""What an operator needs of a cluster: the CRDs, and an account with the rights that the chart gives, no more."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support_chart import render

from fault_proxy import Upstream
from sapwood_operator.adapters.access import Access, find_access
from world import World, eventually

NAMESPACE = "sapwood"
ACCOUNT = "sapwood-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
CRDS = Path("crds")
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": _RBAC + "/namespaces/{namespace}/roles",
    "RoleBinding": _RBAC + "/namespaces/{namespace}/rolebindings",
    "ClusterRole": _RBAC + "/clusterroles",
    "ClusterRoleBinding": _RBAC + "/clusterrolebindings",
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_TOKEN_SECONDS = 6 * 3600


def install_definition(world: World, manifest: Mapping[str, Any]) -> None:
    """Apply a CRD, and return once its objects can be made."""
    world.apply(DEFINITIONS, manifest)
    path = f"{DEFINITIONS}/{manifest['metadata']['name']}"

    def established() -> bool:
        conditions = ((world.get(path) or {}).get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    eventually(established, path)


def install(world: World) -> str:
    """Install the CRDs and the operator's account, and return a token of it."""
    for path in sorted(CRDS.glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            install_definition(world, manifest)
    world.make_namespace(NAMESPACE)
    for manifest in render(namespace=NAMESPACE):
        component = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component")
        if manifest["kind"] in _COLLECTIONS and component == "operator":
            world.apply(_COLLECTIONS[manifest["kind"]].format(namespace=NAMESPACE), manifest)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    account = f"{_COLLECTIONS['ServiceAccount'].format(namespace=NAMESPACE)}/{ACCOUNT}"
    return str(world.call("POST", f"{account}/token", request)["status"]["token"])


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster that an operator may be run in."""

    world: World
    access: Access
    """The administrator's."""
    token: str
    """The operator's."""
    folder: Path
    """For kubeconfigs and logs."""

    @property
    def server(self) -> str:
        """Where the API server is."""
        return str(self.access.configuration.host)

    @property
    def authority(self) -> str:
        """The certificate of the cluster's authority."""
        path = self.access.configuration.ssl_ca_cert
        assert path is not None, "the kubeconfig names no authority"
        return Path(path).read_text(encoding="ascii")

    def upstream(self) -> Upstream:
        """Return the API server as a proxy speaks to it: as the operator."""
        return Upstream(self.server, ssl.create_default_context(cadata=self.authority), f"Bearer {self.token}")

    def kubeconfig(self, *, server: str = "") -> Path:
        """Write the operator's kubeconfig; ``server``: a proxy to speak to instead."""
        cluster = {"server": server or self.server}
        if not server:
            cluster["certificate-authority-data"] = base64.b64encode(self.authority.encode()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": "operator", "user": {"token": self.token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "operator", "namespace": "default"}}],
            "current-context": "e2e",
        }
        path = self.folder / ("through-proxy.kubeconfig" if server else "operator.kubeconfig")
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path


def prepare(folder: Path) -> Site:
    """Make the cluster of KUBECONFIG ready for an operator; ``folder`` is for what tests write."""
    access = find_access(None)
    world = World(access.client(connections=4))
    return Site(world, access, install(world), folder)
