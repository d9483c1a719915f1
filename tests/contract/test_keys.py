"""Chained block hashes: what they cover, and what they never confuse."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_contract.keys import HASH_BYTES, TOKEN_BYTES, chain, namespace_root, placing_weight
from sapwood_engine.core.keys import token_key

fields = st.none() | st.text(max_size=4)
namespaces = st.tuples(st.text(max_size=4), fields, fields, fields, fields)
Fields = tuple[str, str | None, str | None, str | None, str | None]
"""Of a namespace; the last one is the tenant."""
tokens = st.lists(st.integers(0, 2), max_size=12)
PAGE_BYTES = 4 * TOKEN_BYTES
ROOT = namespace_root("model", None, None, None)


@given(namespaces, namespaces)
def test_two_namespaces_have_one_root_only_where_they_are_the_same(one: Fields, other: Fields) -> None:
    assert (namespace_root(*one) == namespace_root(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("m", "ab", None, None, None), ("m", "a", "b", None, None)),
        (("m", "a", None, None, None), ("ma", None, None, None, None)),
        (("m", "", None, None, None), ("m", None, None, None, None)),
        (("m", "-", None, None, None), ("m", None, "-", None, None)),
        (("m", "0:", None, None, None), ("m", "", "", None, None)),
        (("m", "1:a", None, None, None), ("m", "a", None, None, None)),
        (("m", None, None, None, "a"), ("m", None, None, "a", None)),
        (("m", None, None, "a", "b"), ("m", None, None, "a1:b", None)),
        (("m", None, None, None, "a"), ("m", None, None, None, "b")),
    ],
)
def test_nobody_forges_a_namespace_by_moving_text_between_its_fields(one: Fields, other: Fields) -> None:
    assert namespace_root(*one) != namespace_root(*other)


@given(tokens, tokens)
def test_hashes_agree_as_far_as_whole_pages_do(one: list[int], other: list[int]) -> None:
    ours, theirs = (chain(ROOT, token_key(ids), PAGE_BYTES) for ids in (one, other))
    num_shared = sum(one[: 4 * n] == other[: 4 * n] for n in range(1, min(len(one), len(other)) // 4 + 1))
    assert len(ours) == len(one) // 4
    assert [mine == yours for mine, yours in zip(ours, theirs, strict=False)] == [
        n < num_shared for n in range(min(len(ours), len(theirs)))
    ]
    assert all(len(hash_) == HASH_BYTES for hash_ in ours)


@given(tokens, st.integers(0, 3))
def test_a_chain_goes_on_from_any_of_its_blocks(ids: list[int], at: int) -> None:
    whole = chain(ROOT, token_key(ids), PAGE_BYTES)
    at = min(at, len(whole))
    before = whole[at - 1] if at else ROOT
    assert chain(before, token_key(ids[4 * at :]), PAGE_BYTES) == whole[at:]


@given(tokens, st.sampled_from([("model", None, None, "salt", None), ("model", None, None, None, "acme")]))
def test_other_namespaces_share_no_block(ids: list[int], fields_of_other: Fields) -> None:
    other = namespace_root(*fields_of_other)
    assert not set(chain(ROOT, token_key(ids), PAGE_BYTES)) & set(chain(other, token_key(ids), PAGE_BYTES))


def test_the_hashes_are_those_of_every_version_before() -> None:
    key = array("i", range(8)).tobytes()
    assert [hash_.hex() for hash_ in chain(ROOT, key, PAGE_BYTES)] == [
        "8051a6dc774db0e7719576070d77ca04",
        "e1c910a492ef2ff3c8305b12feb4be8b",
    ]


@given(st.binary(max_size=HASH_BYTES), st.lists(st.text(max_size=3), unique=True, min_size=2))
def test_when_a_replica_goes_only_its_own_keys_get_another_place(key: bytes, replicas: list[str]) -> None:
    def place(among: list[str]) -> str:
        return max(among, key=lambda replica: placing_weight(key, replica))

    first = place(replicas)
    for gone in replicas:
        rest = [replica for replica in replicas if replica != gone]
        assert gone == first or place(rest) == first
