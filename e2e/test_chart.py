"""The chart on a real API server: it installs, passes its own test, gives the rights it should, and goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helm_python import HelmError
from kubernetes import config
from support_chart import render

from chart_release import NAMESPACE, Release, connect
from world import World

OPERATOR = f"system:serviceaccount:{NAMESPACE}:sapwood-operator"
GATEWAY = f"system:serviceaccount:{NAMESPACE}:sapwood-gateway"
SERVING = "serving.sapwood.dev"
RBAC = "rbac.authorization.k8s.io"
ELSEWHERE = "default"
"""A namespace that the chart is not installed in."""

MAY: list[tuple[str, str, str, str]] = [
    (OPERATOR, "watch", f"{SERVING}/inferenceservices", ELSEWHERE),
    (OPERATOR, "patch", f"{SERVING}/inferenceservices/status", ELSEWHERE),
    (OPERATOR, "get", "apps/deployments", ELSEWHERE),
    (OPERATOR, "create", "apps/deployments", ELSEWHERE),
    (OPERATOR, "patch", "/services", ELSEWHERE),
    (OPERATOR, "delete", "networking.k8s.io/ingresses", ELSEWHERE),
    *(
        (OPERATOR, verb, resource, ELSEWHERE)
        for resource in ("monitoring.coreos.com/podmonitors", "gateway.networking.k8s.io/httproutes")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    (OPERATOR, "watch", "/pods", ELSEWHERE),
    (OPERATOR, "create", "events.k8s.io/events", ELSEWHERE),
    (OPERATOR, "update", "coordination.k8s.io/leases=sapwood-operator", NAMESPACE),
    (GATEWAY, "watch", "discovery.k8s.io/endpointslices", ELSEWHERE),
    (GATEWAY, "list", "/configmaps", ELSEWHERE),
    *((account, "watch", f"{SERVING}/tenants", ELSEWHERE) for account in (OPERATOR, GATEWAY)),
    (OPERATOR, "patch", f"{SERVING}/tenants/status", ELSEWHERE),
    (OPERATOR, "create", "/secrets", ELSEWHERE),
]
MAY_NOT: list[tuple[str, str, str, str]] = [
    *(
        (account, verb, "/secrets", ELSEWHERE)
        for account in (OPERATOR, GATEWAY)
        for verb in ("get", "list", "watch", "patch", "update", "delete")
    ),
    (GATEWAY, "create", "/secrets", ELSEWHERE),
    (OPERATOR, "get", "/secrets", NAMESPACE),
    (OPERATOR, "create", f"{SERVING}/inferenceservices", ELSEWHERE),
    (OPERATOR, "patch", f"{SERVING}/inferenceservices", ELSEWHERE),
    (OPERATOR, "delete", f"{SERVING}/inferenceservices", ELSEWHERE),
    (OPERATOR, "patch", f"{SERVING}/tenants", ELSEWHERE),
    (GATEWAY, "patch", f"{SERVING}/tenants/status", ELSEWHERE),
    (OPERATOR, "create", "/pods", ELSEWHERE),
    (OPERATOR, "delete", "/pods", ELSEWHERE),
    (OPERATOR, "create", "/pods/exec", ELSEWHERE),
    (OPERATOR, "get", "/pods/log", ELSEWHERE),
    (OPERATOR, "create", "/serviceaccounts/token", ELSEWHERE),
    (OPERATOR, "impersonate", "/serviceaccounts", ELSEWHERE),
    (OPERATOR, "create", f"{RBAC}/roles", ELSEWHERE),
    (OPERATOR, "create", f"{RBAC}/clusterrolebindings", ""),
    (OPERATOR, "list", "/nodes", ""),
    (OPERATOR, "list", "/namespaces", ""),
    (OPERATOR, "create", "gateway.networking.k8s.io/referencegrants", NAMESPACE),
    (OPERATOR, "list", "monitoring.coreos.com/prometheuses", ELSEWHERE),
    (OPERATOR, "list", "apiextensions.k8s.io/customresourcedefinitions", ""),
    (OPERATOR, "update", "coordination.k8s.io/leases=another", NAMESPACE),
    (OPERATOR, "create", "coordination.k8s.io/leases", ELSEWHERE),
    (GATEWAY, "get", "/configmaps", ELSEWHERE),
    (GATEWAY, "create", "/configmaps", ELSEWHERE),
    (GATEWAY, "list", "/pods", ELSEWHERE),
    (GATEWAY, "list", f"{SERVING}/inferenceservices", ELSEWHERE),
]
"""(who, verb, GROUP/RESOURCE[/SUBRESOURCE][=NAME], namespace), as in `kubectl auth can-i`."""


@pytest.fixture(scope="module")
def world() -> World:
    return World(config.new_client_from_config())  # type: ignore[no-untyped-call]  # as the library is


@pytest.fixture(scope="module")
def release(world: World) -> Iterator[Release]:
    """Installed while this module runs."""
    found = connect(world)
    found.uninstall()
    found.install()
    yield found
    found.uninstall()


def can(world: World, who: str, verb: str, what: str, namespace: str) -> bool:
    target, _, name = what.partition("=")
    group, resource, *rest = target.split("/")
    asked = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": "/".join(rest),
        "name": name,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    spec = {"user": who, "groups": ["system:serviceaccounts", "system:authenticated"], "resourceAttributes": asked}
    answer = world.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {**review, "spec": spec})
    return bool(answer["status"]["allowed"])


def test_helm_test_passes_on_what_was_just_installed(release: Release) -> None:
    logs = str(release.helm.test("sapwood", timeout=120, logs=True)["logs"])
    assert "the gateway answers" in logs


@pytest.mark.parametrize("case", MAY, ids=lambda case: " ".join(case[1:]))
def test_a_program_may_do_what_it_does(release: Release, case: tuple[str, str, str, str]) -> None:
    assert can(release.world, *case)


@pytest.mark.parametrize("case", MAY_NOT, ids=lambda case: " ".join(case[1:]))
def test_a_program_may_do_nothing_else(release: Release, case: tuple[str, str, str, str]) -> None:
    assert not can(release.world, *case)


@pytest.mark.parametrize("component", ["operator", "gateway"])
def test_what_runs_is_ready_and_was_never_restarted(release: Release, component: str) -> None:
    selector = f"labelSelector=app.kubernetes.io%2Fcomponent%3D{component}"
    pods = release.world.items(f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")
    statuses = [status for pod in pods for status in pod["status"]["containerStatuses"]]
    assert statuses
    assert [(status["ready"], status["restartCount"]) for status in statuses] == [(True, 0)] * len(statuses)


def test_an_upgrade_that_the_schema_refuses_changes_nothing(release: Release) -> None:
    with pytest.raises(HelmError, match="additional properties 'replica' not allowed"):
        release.upgrade({"gateway": {"replica": 3}})
    assert len(release.helm.history("sapwood")) == 1


def test_uninstalling_leaves_the_crds_with_their_objects_and_installing_again_takes_them_up(release: Release) -> None:
    world = release.world
    world.make_service(ELSEWHERE, "kept", replicas=0)
    try:
        release.uninstall()
        assert {manifest["kind"] for manifest in release.present()} == {"CustomResourceDefinition"}
        assert world.service(ELSEWHERE, "kept") is not None
        release.install()
        assert len(release.present()) == len([m for m in render() if m["kind"] != "Pod"])
        assert world.service(ELSEWHERE, "kept") is not None
    finally:
        world.delete(f"/apis/{SERVING}/v1alpha1/namespaces/{ELSEWHERE}/inferenceservices/kept")


def test_an_upgrade_changes_what_runs(release: Release) -> None:
    values: dict[str, Any] = {"gateway": {"replicas": 1}, "operator": {"replicas": 2}}
    release.upgrade(values)
    deployments = {
        item["metadata"]["name"]: item["status"].get("readyReplicas")
        for item in release.world.items(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
    }
    assert deployments == {"sapwood-gateway": 1, "sapwood-operator": 2}
