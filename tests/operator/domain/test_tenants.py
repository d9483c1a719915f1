"""What is said of Tenants, which are judged with all others of their namespace."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from support_crds import problems
from support_operator import LATER, NOW

from sapwood_contract.metrics import RECONCILED_KINDS
from sapwood_gateway.core.tenant_documents import tenants_of
from sapwood_operator.domain.tenants import READY, status_changes

A, B, C = (f"{number:064x}" for number in (1, 2, 3))


def a_tenant(name: str = "acme", *keys: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name, "namespace": "team", "generation": 3, "uid": f"uid-of-{name}"},
        "spec": {"apiKeys": list(keys), **spec},
    }


def by_hash(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "sha256": sha256}


def by_secret(name: str) -> dict[str, Any]:
    return {"name": name, "sha256SecretRef": {"name": "tenant-keys", "key": "sha256"}}


def verdict(*tenants: dict[str, Any]) -> tuple[str, str, int, str]:
    """Status and reason of the first tenant's Ready, its number of keys, and the message."""
    _, status = status_changes(tenants, NOW)[0]
    (condition,) = status["conditions"]
    return condition["status"], condition["reason"], status["keys"], condition["message"]


@pytest.mark.parametrize(
    ("tenants", "expected", "message"),
    [
        ([a_tenant("acme", by_hash("laptop", A), by_hash("ci", B))], ("True", "Ready", 2), "laptop, ci"),
        ([a_tenant("acme", by_hash("ci", A), suspended=True)], ("False", "Suspended", 1), "spec.suspended"),
        ([a_tenant()], ("False", "NoKeys", 0), "give spec.apiKeys a key"),
        ([a_tenant(suspended=True)], ("False", "Suspended", 0), "spec.suspended"),
        (
            [a_tenant("acme", by_hash("ci", A), by_secret("vault"))],
            ("True", "Ready", 1),
            "Keys in force: ci. The gateway takes from Secrets: vault (Secret tenant-keys). It may read those alone "
            "that the chart's gateway.tenants.keySecrets names",
        ),
        ([a_tenant("acme", by_secret("vault"))], ("True", "Ready", 0), "Keys in force: none. The gateway takes"),
        ([a_tenant("acme", by_secret("vault"), suspended=True)], ("False", "Suspended", 0), "spec.suspended"),
        (
            [a_tenant("acme", by_hash("ci", A), by_secret("vault")), a_tenant("zeta", by_hash("x", A))],
            ("False", "KeyConflict", 0),
            "Keys in force: none. The gateway takes from Secrets: vault",
        ),
        (
            [a_tenant("acme", by_hash("ci", A), by_hash("old", B)), a_tenant("zeta", by_hash("x", B))],
            ("False", "KeyConflict", 1),
            "old with zeta; give each key to one Tenant. Keys in force: ci",
        ),
        (
            [a_tenant("acme", by_hash("ci", A)), a_tenant("zeta", by_hash("x", A), suspended=True)],
            ("False", "KeyConflict", 0),
            "ci with zeta",
        ),
    ],
    ids=[
        "well",
        "suspended",
        "no keys",
        "neither",
        "one in a Secret",
        "all in Secrets",
        "in a Secret and suspended",
        "in a Secret beside a shared one",
        "shared",
        "with a suspended one",
    ],
)
def test_a_tenant_is_ready_when_every_key_of_it_is_taken(
    tenants: list[dict[str, Any]], expected: tuple[str, str, int], message: str
) -> None:
    *told, said = verdict(*tenants)
    assert tuple(told) == expected
    assert message in said


def test_both_tenants_of_a_shared_key_are_told() -> None:
    changes = status_changes([a_tenant("a", by_hash("k", A)), a_tenant("b", by_hash("k", A))], NOW)
    assert [status["conditions"][0]["reason"] for _, status in changes] == ["KeyConflict", "KeyConflict"]


def test_the_gateway_takes_the_very_keys_that_the_status_counts() -> None:
    tenants = [
        a_tenant("a", by_hash("own", A), by_hash("shared", B), by_secret("vault")),
        a_tenant("b", by_hash("shared", B), by_hash("own", C)),
        a_tenant("c"),
    ]
    counted = {tenant["metadata"]["name"]: status["keys"] for tenant, status in status_changes(tenants, NOW)}
    taken = {tenant.name: len(tenant.key_digests) for tenant in tenants_of(tenants).tenants.all}
    assert counted == taken == {"a": 1, "b": 1, "c": 0}


def test_a_status_that_is_as_it_should_be_is_not_written_again_and_heals_when_the_world_does() -> None:
    tenants = [a_tenant("a", by_hash("k", A)), a_tenant("b", by_hash("k", A))]
    for tenant, (_, status) in zip(tenants, status_changes(tenants, NOW), strict=True):
        tenant["status"] = status
    assert status_changes(tenants, LATER) == []
    (change,) = status_changes(tenants[:1], LATER)
    assert change[1]["conditions"][0]["reason"] == "Ready"
    assert change[1]["conditions"][0]["lastTransitionTime"] == "2026-11-30T13:00:00Z"


def test_a_tenant_that_is_being_deleted_gets_no_status_and_still_has_its_keys() -> None:
    leaving = a_tenant("a", by_hash("k", A))
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    ((tenant, status),) = status_changes([leaving, a_tenant("b", by_hash("k", A))], NOW)
    assert tenant["metadata"]["name"] == "b"
    assert status["conditions"][0]["reason"] == "KeyConflict"


def test_what_others_keep_in_the_status_stays_and_the_schema_allows_all_of_it() -> None:
    tenant = a_tenant("acme", by_hash("ci", A))
    other = {
        "type": "Billed",
        "status": "True",
        "reason": "Paid",
        "message": "",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
    }
    tenant["status"] = {"conditions": [other]}
    before = copy.deepcopy(tenant)
    ((_, status),) = status_changes([tenant], NOW)
    assert tenant == before
    assert status["conditions"][1] == other
    assert status["observedGeneration"] == 3
    assert problems({**tenant, "status": status}) == []


def test_every_rule_stands_in_the_readmes_table() -> None:
    found = re.search(r"<!-- tenants -->\n(.*?)<!-- /tenants -->", Path("operator/README.md").read_text(), re.DOTALL)
    assert found
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()[2:]]
    assert [row[0] for row in rows] == [rule.sentence for rule in READY]


def test_turns_of_tenants_are_counted() -> None:
    assert "Tenant" in RECONCILED_KINDS
