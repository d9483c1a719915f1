"""What the chart lets its programs and the cluster's users do, frozen: a wider right is a change of this table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from support_chart import Manifest, of_kind, pods, render

from sapwood_operator.kubectl.operator_port import DEFAULT_OPERATOR, read_operator

WRITE = ("create", "delete", "get", "list", "patch", "watch")
READ = ("list", "watch")
RULES: dict[str, dict[str, tuple[str, ...]]] = {
    "sapwood-operator": {
        "serving.sapwood.dev/inferenceservices": READ,
        "serving.sapwood.dev/inferenceservices/status": ("patch",),
        "serving.sapwood.dev/tenants": READ,
        "serving.sapwood.dev/tenants/status": ("patch",),
        "serving.sapwood.dev/autoscalingpolicies": READ,
        "serving.sapwood.dev/autoscalingpolicies/status": ("patch",),
        "serving.sapwood.dev/inferenceservices/finalizers": ("update",),
        "/configmaps": WRITE,
        "/serviceaccounts": WRITE,
        "/services": WRITE,
        "/secrets": ("create",),
        "apps/deployments": WRITE,
        "policy/poddisruptionbudgets": WRITE,
        "networking.k8s.io/ingresses": WRITE,
        "networking.k8s.io/networkpolicies": WRITE,
        "gateway.networking.k8s.io/httproutes": WRITE,
        "monitoring.coreos.com/podmonitors": WRITE,
        "monitoring.coreos.com/prometheusrules": WRITE,
        "apps/replicasets": READ,
        "/pods": ("list", "patch", "watch"),
        "events.k8s.io/events": ("create",),
    },
    "sapwood-gateway": {
        "discovery.k8s.io/endpointslices": READ,
        "/configmaps": READ,
        "serving.sapwood.dev/tenants": READ,
    },
    "sapwood-operator-leader": {
        "coordination.k8s.io/leases": ("create",),
        "coordination.k8s.io/leases=sapwood-operator": ("get", "update"),
    },
    "sapwood-operator-gateways": {"discovery.k8s.io/endpointslices": ("list",)},
    "sapwood-operator-what-if": {"/services/proxy=sapwood-operator:http": ("get",)},
    "sapwood-view": {
        f"serving.sapwood.dev/{plural}": ("get", "list", "watch")
        for plural in ("autoscalingpolicies", "inferenceservices", "loraadapters")
    },
    "sapwood-edit": {
        f"serving.sapwood.dev/{plural}": ("create", "delete", "deletecollection", "patch", "update")
        for plural in ("autoscalingpolicies", "inferenceservices", "loraadapters")
    }
    | {"serving.sapwood.dev/inferenceservices/scale": ("get", "patch", "update")},
    "sapwood-admin": {
        "serving.sapwood.dev/tenants": (
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        )
    },
}
"""Role -> GROUP/RESOURCE[=NAME] -> verbs."""
NAMESPACED = {"watchNamespaces": ["team-a", "team-b"], "crds": {"install": False}}
OF_A_NAMESPACE = {
    "ConfigMap",
    "Deployment",
    "NetworkPolicy",
    "Pod",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "ServiceAccount",
}


def granted(rules: Iterable[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """RBAC rules in the form of `RULES`."""
    return {
        f"{group}/{resource}" + (f"={name}" if name else ""): tuple(sorted(rule["verbs"]))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def roles(manifests: tuple[Manifest, ...], kind: str) -> dict[str, dict[str, tuple[str, ...]]]:
    return {name: granted(role["rules"]) for name, role in of_kind(manifests, kind).items()}


def test_the_rights_over_the_whole_cluster_are_the_tables() -> None:
    manifests = render()
    assert roles(manifests, "ClusterRole") | roles(manifests, "Role") == RULES
    assert set(of_kind(manifests, "Role")) == {f"sapwood-operator-{part}" for part in ("leader", "gateways", "what-if")}


def test_people_who_ask_what_if_get_the_path_that_the_plugin_asks_and_no_other() -> None:
    (granted_path,) = RULES["sapwood-operator-what-if"]
    asked = read_operator(DEFAULT_OPERATOR)
    assert asked.path == f"/api/v1/namespaces/sapwood/services/{granted_path.partition('=')[2]}/proxy"
    assert "http" in {port["name"] for port in of_kind(render(), "Service")[asked.name]["spec"]["ports"]}


def test_the_rights_in_watched_namespaces_are_the_same_and_there_alone() -> None:
    assert roles(render(NAMESPACED), "Role") == {
        "prod/sapwood-operator-leader": RULES["sapwood-operator-leader"],
        "prod/sapwood-operator-gateways": RULES["sapwood-operator-gateways"],
        "prod/sapwood-operator-what-if": RULES["sapwood-operator-what-if"],
        **{
            f"{namespace}/sapwood-{program}": RULES[f"sapwood-{program}"]
            for namespace in ("team-a", "team-b")
            for program in ("operator", "gateway")
        },
    }


def test_an_installation_in_namespaces_makes_nothing_that_belongs_to_the_cluster() -> None:
    manifests = render(NAMESPACED)
    assert {manifest["kind"] for manifest in manifests} <= OF_A_NAMESPACE
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"prod", "team-a", "team-b"}


@pytest.mark.parametrize("values", [{}, NAMESPACED], ids=["cluster", "namespaces"])
def test_every_binding_gives_a_role_that_exists_to_the_account_of_the_same_component(values: dict[str, Any]) -> None:
    manifests = render(values)
    accounts = of_kind(manifests, "ServiceAccount")
    for kind in ("Role", "ClusterRole"):
        for name, binding in of_kind(manifests, f"{kind}Binding").items():
            assert binding["roleRef"]["kind"] == kind
            assert name.endswith(binding["roleRef"]["name"])
            assert name in of_kind(manifests, kind)
            (subject,) = binding["subjects"]
            assert subject["namespace"] == "prod"
            assert subject["name"] in accounts
            assert binding["metadata"]["labels"]["app.kubernetes.io/component"] in subject["name"]


def test_nobody_may_read_a_secret_or_do_everything() -> None:
    manifests = render()
    rules = roles(manifests, "ClusterRole") | roles(manifests, "Role")
    granted_ = [(resource, verbs) for role in rules.values() for resource, verbs in role.items()]
    assert not [resource for resource, _ in granted_ if "*" in resource]
    assert {verb for resource, verbs in granted_ if "secrets" in resource for verb in verbs} == {"create"}
    assert not [verbs for role in rules.values() for verbs in role.values() if "*" in verbs]


@pytest.mark.parametrize("values", [{}, NAMESPACED], ids=["cluster", "namespaces"])
def test_the_gateway_may_read_the_secrets_that_are_named_for_tenants_and_nobody_else_gains_a_right(
    values: dict[str, Any],
) -> None:
    named = {"gateway": {"tenants": {"keySecrets": ["tenant-keys", "123"]}}}
    for kind in ("ClusterRole", "Role"):
        before, after = roles(render(values), kind), roles(render(values | named), kind)
        for name in before:
            is_gateways = name.endswith("sapwood-gateway")
            more = {"/secrets=tenant-keys": ("get",), "/secrets=123": ("get",)} if is_gateways else {}
            assert after[name] == before[name] | more
        assert before.keys() == after.keys()


def test_users_get_rights_through_the_built_in_roles() -> None:
    users = {
        name: role
        for name, role in of_kind(render(), "ClusterRole").items()
        if name.split("-")[1] in ("view", "edit", "admin")
    }
    assert len(users) == 3
    for name, role in users.items():
        label = f"rbac.authorization.k8s.io/aggregate-to-{name.removeprefix('sapwood-')}"
        assert role["metadata"]["labels"][label] == "true"


def test_only_the_programs_that_speak_to_the_api_server_have_a_token() -> None:
    manifests = render()
    assert not [a for a in of_kind(manifests, "ServiceAccount").values() if a["automountServiceAccountToken"]]
    mounted = {name for name, pod in pods(manifests).items() if pod["automountServiceAccountToken"]}
    assert mounted == {"sapwood-operator", "sapwood-gateway"}
