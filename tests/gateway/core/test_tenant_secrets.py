"""Hashes of API keys from Secrets: which Secrets are meant, and what of them a Tenant gets."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from support_crds import schema

from sapwood_gateway.core.tenant_documents import tenants_of
from sapwood_gateway.core.tenant_secrets import (
    DEFAULT_KEY,
    MOST_SECRETS,
    NO_SECRET,
    Hashes,
    KnownSecrets,
    SecretName,
    Unreadable,
    hashes_of,
    named_secrets,
    secrets_among,
    with_hashes,
)
from sapwood_gateway.core.tenants import key_digest

Json = dict[str, Any]
HASH = key_digest("sk-alpha").hex()
KEYS = SecretName("team", "tenant-keys")


def tenant(*references: Any, namespace: Any = "team", name: str = "alpha", uid: str = "1-2-3") -> Json:
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"apiKeys": [{"name": f"key-{n}", "sha256SecretRef": each} for n, each in enumerate(references)]},
    }


def in_keys(key: str) -> Json:
    return {"name": "tenant-keys", "key": key}


def secret(name: str = "tenant-keys", *, namespace: str = "team", **values: Any) -> Json:
    return {"kind": "Secret", "metadata": {"name": name, "namespace": namespace}, **values}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# --- which are read


def test_each_secret_that_a_tenant_names_is_read_once_with_all_keys_that_are_meant() -> None:
    tenants = [tenant(in_keys("a"), in_keys("b")), tenant({"name": "own"}, in_keys("a")), tenant(namespace="lab")]
    assert named_secrets(tenants) == {
        KEYS: frozenset({"a", "b"}),
        SecretName("team", "own"): frozenset({DEFAULT_KEY}),
    }


def test_the_key_that_is_meant_where_none_is_named_is_the_schemas() -> None:
    keys = schema("Tenant")["properties"]["spec"]["properties"]["apiKeys"]["items"]["properties"]
    assert keys["sha256SecretRef"]["properties"]["key"]["default"] == DEFAULT_KEY


def test_a_tenant_reaches_no_secret_outside_of_its_namespace() -> None:
    assert named_secrets([tenant(in_keys("a"), namespace="lab")]).keys() == {SecretName("lab", "tenant-keys")}


@pytest.mark.parametrize("name", ["../other/secrets/x", "a/b", "a?b", "..", "", "A", 5, None, ["a"]])
def test_what_is_no_name_is_asked_for_in_no_path_and_told(name: Any) -> None:
    documents = [tenant({"name": name, "key": "a"})]
    assert named_secrets(documents) == {}
    (problem,) = with_hashes(documents, {}).problems
    assert "it names no Secret; give name and key" in problem


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [],
        "Tenant",
        {"metadata": [], "spec": {"apiKeys": [{"sha256SecretRef": in_keys("a")}]}},
        {"metadata": {"namespace": "team"}, "spec": {"apiKeys": {"sha256SecretRef": in_keys("a")}}},
        {"metadata": {"namespace": "team"}, "spec": []},
        tenant("tenant-keys", in_keys("a") | {"key": 5}),
    ],
)
def test_whatever_a_document_is_it_names_no_secret_and_is_left_as_it_is(broken: Any) -> None:
    assert named_secrets([broken]) == {}
    assert with_hashes([broken], {}).documents == [broken]


def test_of_a_namespace_only_so_many_secrets_are_read_and_other_namespaces_are_no_matter() -> None:
    many = tenant(*({"name": f"s{number:03}"} for number in range(MOST_SECRETS + 1)))
    named = named_secrets([many, tenant(in_keys("a"), namespace="lab")])
    assert len(named) == MOST_SECRETS + 1
    assert SecretName("lab", "tenant-keys") in named
    filled = with_hashes([many], {})
    assert len(filled.problems) == 1
    assert f"apiKeys[{MOST_SECRETS}].sha256SecretRef: the Tenants of its namespace name more than" in filled.problems[0]


# --- what is taken of them


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"data": {"a": encoded(HASH)}}, Hashes({"a": HASH})),
        ({"data": {"a": encoded(HASH + "\n")}}, Hashes({"a": HASH})),
        ({"stringData": {"a": HASH}}, Hashes({"a": HASH})),
        ({"data": {"a": encoded("0" * 64)}, "stringData": {"a": HASH}}, Hashes({"a": HASH})),
        ({"data": {"a": encoded(HASH.upper())}}, Hashes({}, frozenset({"a"}))),
        ({"data": {"a": encoded(HASH[:-1]), "b": encoded(HASH)}}, Hashes({"b": HASH}, frozenset({"a"}))),
        ({"data": {"a": "not base64!"}}, Hashes({}, frozenset({"a"}))),
        ({"data": {"a": base64.b64encode(b"\xff" * 64).decode()}}, Hashes({}, frozenset({"a"}))),
        ({"data": {"a": 5}, "stringData": {"b": 6}}, Hashes({}, frozenset({"a", "b"}))),
        ({"data": None}, Hashes({})),
        ({"data": ["a"], "stringData": "a"}, Hashes({})),
    ],
)
def test_only_hashes_are_kept_of_a_secret(given: Json, expected: Hashes) -> None:
    assert hashes_of(secret(**given)) == expected


@pytest.mark.parametrize("document", [None, [], "text", 5])
def test_what_is_no_object_has_no_hashes(document: Any) -> None:
    assert hashes_of(document) == Hashes({})


def test_a_hash_from_a_secret_makes_its_key_known() -> None:
    filled = with_hashes([tenant(in_keys("a"))], {KEYS: Hashes({"a": HASH})})
    known = tenants_of(filled.documents)
    assert (filled.problems, known.problems) == ((), ())
    assert known.tenants.all[0].key_digests == {key_digest("sk-alpha")}


PROBLEMS: list[tuple[KnownSecrets, str]] = [
    ({KEYS: Unreadable(NO_SECRET)}, "its namespace has no Secret of that name"),
    ({KEYS: Hashes({"b": HASH})}, "the Secret has no such key"),
    ({KEYS: Hashes({}, frozenset({"a"}))}, "what the Secret holds there is not 64 hexadecimal digits in lower case"),
]


@pytest.mark.parametrize(("secrets", "reason"), PROBLEMS)
def test_what_cannot_be_read_makes_that_key_alone_unknown_and_is_told_without_names(
    secrets: KnownSecrets, reason: str
) -> None:
    document = tenant(in_keys("a"))
    document["spec"]["apiKeys"].append({"name": "other", "sha256": HASH})
    filled = with_hashes([document], secrets)
    assert filled.problems == (f"Tenant with uid 1-2-3: apiKeys[0].sha256SecretRef: {reason}; this key is unknown",)
    assert tenants_of(filled.documents).tenants.all[0].key_digests == {key_digest("sk-alpha")}


def test_of_a_secret_that_was_not_asked_for_yet_there_is_nothing_to_tell() -> None:
    filled = with_hashes([tenant(in_keys("a"))], {})
    known = tenants_of(filled.documents)
    assert (filled.problems, known.problems) == ((), ())
    assert known.tenants.all[0].key_digests == frozenset()


def test_documents_are_filled_in_copies() -> None:
    document = tenant(in_keys("a"))
    with_hashes([document], {KEYS: Hashes({"a": HASH})})
    assert document == tenant(in_keys("a"))


def test_a_hash_of_two_tenants_is_nobodys_also_where_it_comes_from_secrets() -> None:
    """Whoever may write Tenants could else catch another one's requests without seeing its hash."""
    by_hash = tenant(name="beta")
    by_hash["spec"]["apiKeys"] = [{"name": "k", "sha256": HASH}]
    for other in (by_hash, tenant(in_keys("a"), name="beta"), tenant(in_keys("copy"), name="beta")):
        secrets = {KEYS: Hashes({"a": HASH, "copy": HASH})}
        known = tenants_of(with_hashes([tenant(in_keys("a")), other], secrets).documents)
        assert [each.key_digests for each in known.tenants.all] == [frozenset(), frozenset()]
        assert len(known.problems) == 2


# --- Secrets that stand in a file


def test_beside_tenants_in_a_file_there_are_no_secrets_but_those_of_the_file() -> None:
    tenants = [tenant(in_keys("a"), {"name": "twice"}, {"name": "none"})]
    given = [
        secret(stringData={"a": HASH}),
        secret("twice"),
        secret("twice"),
        secret("beside"),
        secret("none", namespace="x"),
    ]
    assert secrets_among(given, tenants) == {
        KEYS: Hashes({"a": HASH}),
        SecretName("team", "twice"): Unreadable("there are several Secrets of that name; give it once"),
        SecretName("team", "none"): Unreadable(NO_SECRET),
    }
