"""The identity of a cached prefix, the same in cache, events and gateway: a chain of hashes, one a block.

A block is a whole page of tokens. Its hash covers everything that its KV depends on: the namespace, all blocks before
it, and its own tokens. So two blocks with the same hash hold the same, whoever computed them; and without a
namespace's fields nobody can name one of its blocks.
"""

from __future__ import annotations

from hashlib import blake2b

HASH_BYTES = 16
TOKEN_BYTES = 4
"""A token id in a key: int32, little-endian."""
_PERSON = b"sapwood kv 1"
"""Sets these hashes apart from all others, and from those of a later scheme."""


def namespace_root(
    model_revision: str,
    adapter_id: str | None,
    extra_key: str | None,
    tenant_salt: str | None,
    tenant: str | None = None,
) -> bytes:
    """Return what the first block of every sequence of a namespace follows on.

    Each field enters with its length, and None as what no text is, so that no two namespaces are written alike; without
    a ``tenant`` there is nothing in its place.
    """
    digest = blake2b(digest_size=HASH_BYTES, person=_PERSON)
    named = (model_revision, adapter_id, extra_key, tenant_salt)
    for field in named if tenant is None else (*named, tenant):
        written = b"" if field is None else field.encode("utf-8", "surrogatepass")
        digest.update(b"-" if field is None else b"%d:" % len(written))
        digest.update(written)
    return digest.digest()


def chain(parent: bytes, key: bytes, page_bytes: int) -> list[bytes]:
    """Return the hashes of the whole pages of ``key``, the first of which follows on ``parent``.

    ``key``: token ids as `TOKEN_BYTES` says; ``page_bytes``: of a page of them. What fills no page has no hash.
    """
    fresh = blake2b(digest_size=HASH_BYTES, person=_PERSON)  # to make one anew takes longer than to hash a page
    hashes = []
    for at in range(0, len(key) - page_bytes + 1, page_bytes):
        digest = fresh.copy()
        digest.update(parent + key[at : at + page_bytes])
        parent = digest.digest()
        hashes.append(parent)
    return hashes


def placing_weight(key: bytes, replica: str) -> bytes:
    """Return how much ``replica`` is the place of what ``key``, of at most 64 bytes, names: the one with the greatest
    weight of all is it.

    Highest random weight (Thaler and Ravishankar, 1998): when a replica goes, only its own keys go elsewhere.
    ``replica``: `replica_id`.
    """
    return blake2b(replica.encode(), key=key, digest_size=8).digest()


def replica_id(namespace: str, service: str, uid: str) -> str:
    """Return what the gateway calls a replica; ``uid``: of its pod, or its address where it has none."""
    return f"{namespace}/{service}/{uid}"
