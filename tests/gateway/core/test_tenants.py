"""Which tenant a key means."""

from __future__ import annotations

import pytest

from sapwood_gateway.core.tenants import Tenant, Tenants, UnknownKey, key_digest

ALPHA = Tenant(namespace="team", name="alpha", key_digests=frozenset({key_digest("sk-a"), key_digest("sk-a2")}))
BETA = Tenant(namespace="team", name="beta", key_digests=frozenset({key_digest("sk-b")}), is_suspended=True)
FAR = Tenant(namespace="other", name="alpha", key_digests=frozenset({key_digest("sk-far")}))
TENANTS = Tenants([ALPHA, BETA, FAR])


@pytest.mark.parametrize(
    ("namespace", "key", "found"),
    [
        ("team", "sk-a", ALPHA),
        ("team", "sk-a2", ALPHA),
        ("team", "sk-b", BETA),
        ("other", "sk-far", FAR),
        ("team", "sk-far", UnknownKey()),
        ("other", "sk-a", UnknownKey()),
        ("nowhere", "sk-a", UnknownKey()),
        ("team", "sk-A", UnknownKey()),
        ("team", " sk-a", UnknownKey()),
        ("team", "", UnknownKey()),
        ("team", "ключ", UnknownKey()),
        ("team", "\udcff", UnknownKey()),
    ],
)
def test_a_key_means_the_tenant_of_its_own_namespace_that_has_it(
    namespace: str, key: str, found: Tenant | UnknownKey
) -> None:
    assert TENANTS.find(namespace, key) == found


def test_the_empty_key_is_nobodys_even_where_its_hash_is_given() -> None:
    careless = Tenant(namespace="team", name="careless", key_digests=frozenset({key_digest("")}))
    assert Tenants([careless]).find("team", "") == UnknownKey()


def test_two_hashes_that_begin_alike_are_told_apart() -> None:
    digest = key_digest("sk-a")
    near = Tenant(namespace="team", name="near", key_digests=frozenset({digest[:-1] + bytes([digest[-1] ^ 1])}))
    assert Tenants([near, ALPHA]).find("team", "sk-a") == ALPHA


def test_the_same_key_may_be_known_in_two_namespaces() -> None:
    twin = Tenant(namespace="other", name="twin", key_digests=ALPHA.key_digests)
    tenants = Tenants([ALPHA, twin])
    assert (tenants.find("team", "sk-a"), tenants.find("other", "sk-a")) == (ALPHA, twin)


@pytest.mark.parametrize(
    ("models", "model", "may"),
    [
        (None, "llama", True),
        (frozenset({"llama"}), "llama", True),
        (frozenset({"llama"}), "qwen", False),
        (frozenset[str](), "llama", False),
    ],
)
def test_a_list_of_models_allows_those_and_no_list_allows_all(
    models: frozenset[str] | None, model: str, may: bool
) -> None:
    assert Tenant(namespace="team", name="alpha", models=models).may_call(model) is may
