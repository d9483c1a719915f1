"""From Tenant documents to tenants."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support_crds import schema

from sapwood_gateway.core import tenant_documents
from sapwood_gateway.core.tenant_documents import tenants_of
from sapwood_gateway.core.tenants import Quotas, Tenant, key_digest

Json = dict[str, Any]

HASH = key_digest("sk-alpha").hex()


def document(name: str = "alpha", *, namespace: str | None = "team", uid: str | None = None, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": uid}
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {field: value for field, value in metadata.items() if value is not None},
        "spec": spec,
    }


def test_every_field_of_a_document_is_read() -> None:
    full = document(
        displayName="Alpha & Co",
        suspended=True,
        apiKeys=[{"name": "old", "sha256": HASH}, {"name": "new", "sha256": key_digest("sk-new").hex()}],
        access={"models": ["llama"], "adapters": []},
        quotas={
            "requestsPerMinute": 1,
            "tokensPerMinute": 2,
            "requestsPerDay": 3,
            "tokensPerDay": 4,
            "concurrentRequests": 0,
        },
        share=7,
        priorityCeiling=5,
        cacheSharing={"group": "both"},
    )
    known = tenants_of([full])
    assert known.problems == ()
    assert known.tenants.all == (
        Tenant(
            namespace="team",
            name="alpha",
            key_digests=frozenset({key_digest("sk-alpha"), key_digest("sk-new")}),
            is_suspended=True,
            models=frozenset({"llama"}),
            adapters=frozenset(),
            quotas=Quotas(
                requests_per_minute=1,
                tokens_per_minute=2,
                requests_per_day=3,
                tokens_per_day=4,
                concurrent_requests=0,
            ),
            share=7,
            priority_ceiling=5,
            group="both",
        ),
    )


def test_an_empty_spec_is_a_tenant_without_keys_that_the_schemas_defaults_describe() -> None:
    known = tenants_of([document()])
    assert known.tenants.all == (Tenant(namespace="team", name="alpha"),)
    assert known.problems == ()


def test_a_document_of_a_file_is_in_the_default_namespace_where_it_names_none() -> None:
    known = tenants_of([document(namespace=None)], default_namespace="static")
    assert [tenant.id for tenant in known.tenants.all] == ["static/alpha"]


def test_the_fields_that_are_known_are_those_of_the_schema() -> None:
    spec = schema("Tenant")["properties"]["spec"]["properties"]
    assert spec.keys() == tenant_documents.SPEC_FIELDS
    assert spec["quotas"]["properties"].keys() == tenant_documents.QUOTA_FIELDS.keys()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"suspended": "no"}, "suspended: 'no' is neither true nor false"),
        ({"model": ["llama"]}, "spec: ['model'] is not known"),
        ({"access": {"model": ["llama"]}}, "access: ['model'] is not known; there are adapters, models"),
        ({"access": {"models": "llama"}}, "access.models: 'llama' is not a list of names"),
        ({"access": {"models": [1]}}, "access.models: [1] is not a list of names"),
        ({"access": []}, "access: [] is not a mapping"),
        ({"quotas": {"requestsPerHour": 1}}, "quotas: ['requestsPerHour'] is not known"),
        ({"quotas": {"requestsPerMinute": -1}}, "requestsPerMinute: -1 is not a whole number from 0"),
        ({"quotas": {"requestsPerMinute": True}}, "requestsPerMinute: True is not a whole number from 0"),
        ({"share": 0}, "share: 0 is not a whole number from 1 to 1000"),
        ({"share": "2"}, "share: '2' is not a whole number from 1 to 1000"),
        ({"priorityCeiling": 1001}, "priorityCeiling: 1001 is not a whole number from 0 to 1000"),
        ({"cacheSharing": {"groups": "x"}}, "cacheSharing: ['groups'] is not known; there are group"),
        ({"cacheSharing": {}}, "cacheSharing.group: None is not a name"),
        ({"cacheSharing": {"group": "A/B"}}, "cacheSharing.group: 'A/B' is not a name"),
        ({"apiKeys": "sk"}, "apiKeys: it is not a list"),
        ({"apiKeys": [{"name": "k", "sha256": HASH.upper()}]}, "apiKeys[0].sha256: it is not 64 hexadecimal digits"),
        ({"apiKeys": [{"name": "k"}]}, "apiKeys[0].sha256: it is not 64 hexadecimal digits"),
        ({"apiKeys": ["sk"]}, "apiKeys[0].sha256: it is not 64 hexadecimal digits"),
    ],
)
def test_a_field_that_cannot_be_used_makes_its_tenant_unknown_and_is_named(spec: Json, words: str) -> None:
    known = tenants_of([document(**spec), document("beta")])
    assert [tenant.name for tenant in known.tenants.all] == ["beta"]
    (problem,) = known.problems
    assert problem.startswith("Tenant document 1 is passed over: ")
    assert words in problem


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [],
        "Tenant",
        {"metadata": []},
        {"metadata": {"name": 5}},
        {"metadata": {"name": "A B"}, "spec": {}},
        {"metadata": {"name": "a"}, "spec": {}, "kind": "ConfigMap", "apiVersion": "v1"},
        document(namespace="../x"),
        {**document(), "spec": [1]},
    ],
)
def test_whatever_a_document_is_it_does_not_stop_the_others(broken: Any) -> None:
    known = tenants_of([broken, document("beta")])
    assert [tenant.name for tenant in known.tenants.all] == ["beta"]
    assert len(known.problems) == 1


def test_what_is_written_instead_of_a_hash_is_in_no_problem_for_it_may_be_the_key() -> None:
    known = tenants_of([document(apiKeys=[{"name": "k", "sha256": "sk-secret-by-mistake"}])])
    assert "sk-secret" not in "".join(known.problems)


def test_a_problem_names_an_object_of_a_cluster_by_its_uid_and_never_by_the_tenants_name() -> None:
    (problem,) = tenants_of([document("alpha", uid="1-2-3", share=0)]).problems
    assert problem.startswith("Tenant with uid 1-2-3 is passed over")
    assert "alpha" not in problem


def test_a_hash_that_was_not_found_in_its_secret_is_unknown_and_the_others_of_its_tenant_are_not() -> None:
    keys = [{"name": "a", "sha256SecretRef": {"name": "s"}}, {"name": "b", "sha256": HASH}]
    known = tenants_of([document(apiKeys=keys)])
    assert known.tenants.all[0].key_digests == {key_digest("sk-alpha")}
    assert known.problems == ()


def test_a_key_of_two_tenants_in_one_namespace_is_refused_for_both_and_their_other_keys_stay() -> None:
    shared = {"name": "shared", "sha256": HASH}
    own = {"name": "own", "sha256": key_digest("sk-own").hex()}
    known = tenants_of([document("alpha", apiKeys=[shared, own]), document("thief", apiKeys=[shared])])
    assert [tenant.key_digests for tenant in known.tenants.all] == [{key_digest("sk-own")}, frozenset()]
    assert len(known.problems) == 2


def test_tenants_of_two_namespaces_may_have_one_key() -> None:
    key = [{"name": "k", "sha256": HASH}]
    known = tenants_of([document(apiKeys=key), document(namespace="other", apiKeys=key)])
    assert known.problems == ()
    assert all(tenant.key_digests for tenant in known.tenants.all)


def test_a_tenant_that_is_given_twice_is_unknown_for_nobody_can_tell_which_one_holds() -> None:
    known = tenants_of([document(suspended=True), document(), document("beta")])
    assert [tenant.name for tenant in known.tenants.all] == ["beta"]
    assert known.problems == (
        "Tenant document 1, Tenant document 2: they have one name and are all passed over; give each Tenant once",
    )


def test_the_order_of_documents_does_not_matter() -> None:
    key = [{"name": "k", "sha256": HASH}]
    documents = [
        document("alpha", uid="1", apiKeys=key),
        document("beta", uid="2", apiKeys=key),
        document("gamma", uid="3", share=0),
    ]
    known = tenants_of(documents)
    assert all(tenants_of(order) == known for order in itertools.permutations(documents))
