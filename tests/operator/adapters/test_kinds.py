"""Addresses of objects."""

from __future__ import annotations

import pytest

from sapwood_contract.metrics import WRITTEN_KINDS
from sapwood_operator.adapters.kinds import (
    BY_NAME,
    CHILDREN,
    EVENTS,
    OPTIONAL_CHILDREN,
    PODS,
    SECRETS,
    SERVICES,
    WRITTEN_BY_USERS,
    Kind,
)
from sapwood_operator.domain.children.desired import KINDS, OPTIONAL_APIS


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (PODS, "/api/v1/namespaces/team/pods/x"),
        (SERVICES, "/apis/serving.sapwood.dev/v1alpha1/namespaces/team/inferenceservices/x"),
        (BY_NAME["apps/v1", "Deployment"], "/apis/apps/v1/namespaces/team/deployments/x"),
    ],
)
def test_an_object_has_its_address(kind: Kind, path: str) -> None:
    assert kind.path("team", "x") == path


def test_a_name_leads_to_no_other_path() -> None:
    assert PODS.path("a/b", "x/log?y#z") == "/api/v1/namespaces/a%2Fb/pods/x%2Flog%3Fy%23z"


def test_no_namespace_means_all_of_them() -> None:
    assert PODS.collection("") == "/api/v1/pods"


def test_every_kind_that_is_written_is_counted_under_its_name() -> None:
    written = (*WRITTEN_BY_USERS, *CHILDREN, *OPTIONAL_CHILDREN, SECRETS, EVENTS, PODS)
    assert {kind.kind for kind in written} == set(WRITTEN_KINDS)


def test_every_kind_that_the_domain_makes_has_an_address() -> None:
    assert {(kind.api_version, kind.kind) for kind in (*CHILDREN, *OPTIONAL_CHILDREN)} == KINDS
    assert {(kind.api_version, kind.kind) for kind in OPTIONAL_CHILDREN} == OPTIONAL_APIS
