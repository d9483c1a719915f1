"""From Tenant documents (``crds/tenants.yaml``), as plain mappings, to tenants: of a cluster, or of a file.

In a cluster the schema has been checked already; a file is checked here alone, so nothing is taken on trust. What a
document gets wrong closes doors and opens none: a tenant that cannot be read is unknown, with all of its keys.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, cast

from sapwood_gateway.core.tenants import Quotas, Tenant, Tenants

KIND = "Tenant"
GROUP = "serving.sapwood.dev"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
SPEC_FIELDS = frozenset(
    {"displayName", "suspended", "apiKeys", "access", "quotas", "share", "priorityCeiling", "cacheSharing"}
)
QUOTA_FIELDS = {
    "requestsPerMinute": "requests_per_minute",
    "tokensPerMinute": "tokens_per_minute",
    "requestsPerDay": "requests_per_day",
    "tokensPerDay": "tokens_per_day",
    "concurrentRequests": "concurrent_requests",
}
_MOST_OF_A_QUOTA = 10**12


class InvalidTenant(ValueError):
    """The document is no Tenant; the message names the field, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Known:
    """The tenants, and why some documents or keys gave none: sentences for the log.

    They name neither a key nor a tenant, but the document's place in a file, or the object's uid in a cluster.
    """

    tenants: Tenants
    problems: tuple[str, ...]


def tenants_of(documents: Iterable[Mapping[str, Any]], *, default_namespace: str = "default") -> Known:
    """Return the tenants of all ``documents``; the result does not depend on their order.

    ``default_namespace``: of a document that names none, as in a file.
    """
    found: dict[str, list[_Found]] = {}
    problems: list[str] = []
    for number, document in enumerate(documents, start=1):
        where = place_of(number, document)
        try:
            tenant = _tenant_of(document, default_namespace)
        except Exception as error:  # anybody may write one in a namespace of theirs: it never stops the others
            reason = str(error) if isinstance(error, InvalidTenant) else reprlib.repr(error)
            problems.append(f"{where} is passed over: {reason}")
            continue
        found.setdefault(tenant.id, []).append(_Found(where, tenant))
    once: list[_Found] = []
    for _, same in sorted(found.items()):
        if len(same) == 1:
            once += same
        else:
            places = ", ".join(each.where for each in same)
            problems.append(f"{places}: they have one name and are all passed over; give each Tenant once")
    tenants, shared = _without_shared_keys(once)
    return Known(Tenants(tenants), (*sorted(problems), *shared))


@dataclass(frozen=True, slots=True)
class _Found:
    where: str
    tenant: Tenant


def _without_shared_keys(found: Sequence[_Found]) -> tuple[list[Tenant], list[str]]:
    """Take from each tenant the keys that another one of its namespace has: nobody can tell whose such a key is.

    To prefer one would let whoever writes a Tenant catch the requests of another one, whose hashes all can read.
    """
    owners = Counter((each.tenant.namespace, digest) for each in found for digest in each.tenant.key_digests)
    tenants: list[Tenant] = []
    problems: list[str] = []
    for each in found:
        tenant = each.tenant
        own = frozenset(digest for digest in tenant.key_digests if owners[tenant.namespace, digest] == 1)
        if own != tenant.key_digests:
            problems.append(
                f"{each.where}: apiKeys: another Tenant of its namespace has the same sha256, so that key is refused; "
                "give each key to one Tenant"
            )
        tenants.append(replace(tenant, key_digests=own))
    return tenants, problems


def _tenant_of(document: Mapping[str, Any], default_namespace: str) -> Tenant:
    metadata = _mapping(document, "metadata")
    name = _name(metadata.get("name"), "metadata.name")
    namespace = _name(metadata.get("namespace", default_namespace), "metadata.namespace")
    if document.get("kind") != KIND or not str(document.get("apiVersion", "")).startswith(f"{GROUP}/"):
        raise InvalidTenant(
            f"kind: {reprlib.repr(document.get('kind'))} of {reprlib.repr(document.get('apiVersion'))} is no {KIND} of "
            f"{GROUP}"
        )
    spec = _mapping(document, "spec")
    _check_fields(spec, "spec", SPEC_FIELDS)
    access = _mapping(spec, "access")
    _check_fields(access, "access", {"models", "adapters"})
    return Tenant(
        namespace=namespace,
        name=name,
        key_digests=_digests(spec),
        is_suspended=_bool(spec, "suspended"),
        models=_names(access, "models"),
        adapters=_names(access, "adapters"),
        quotas=_quotas(_mapping(spec, "quotas")),
        share=_whole(spec, "share", 1, least=1, most=1_000),
        priority_ceiling=_whole(spec, "priorityCeiling", 0, least=0, most=1_000),
        group=_group(spec),
    )


def _digests(spec: Mapping[str, Any]) -> frozenset[bytes]:
    """Return the hashes that stand here; those of Secrets are written in before (`tenant_secrets`), or unknown."""
    keys = spec.get("apiKeys") or []
    if not isinstance(keys, Sequence) or isinstance(keys, str):
        raise InvalidTenant("apiKeys: it is not a list")
    digests: set[bytes] = set()
    for number, key in enumerate(keys):
        sha256 = key.get("sha256") if isinstance(key, Mapping) else None
        if is_sha256(sha256):
            digests.add(bytes.fromhex(sha256))
        elif not (isinstance(key, Mapping) and sha256 is None and "sha256SecretRef" in key):
            # What stands there may be the key itself, by mistake: it is not quoted.
            raise InvalidTenant(f"apiKeys[{number}].sha256: it is not 64 hexadecimal digits in lower case")
    return frozenset(digests)


def _quotas(quotas: Mapping[str, Any]) -> Quotas:
    _check_fields(quotas, "quotas", QUOTA_FIELDS.keys())
    bounds = {
        ours: _whole(quotas, theirs, 0, least=0, most=_MOST_OF_A_QUOTA)
        for theirs, ours in QUOTA_FIELDS.items()
        if quotas.get(theirs) is not None
    }
    return Quotas(**bounds)


def _group(spec: Mapping[str, Any]) -> str | None:
    if spec.get("cacheSharing") is None:
        return None
    sharing = _mapping(spec, "cacheSharing")
    _check_fields(sharing, "cacheSharing", {"group"})
    return _name(sharing.get("group"), "cacheSharing.group")


def _check_fields(mapping: Mapping[str, Any], field: str, known: Set[str]) -> None:
    """Refuse what is not known: a misspelt bound would be none."""
    if unknown := mapping.keys() - known:
        names = ", ".join(sorted(known))
        raise InvalidTenant(f"{field}: {reprlib.repr(sorted(map(str, unknown)))} is not known; there are {names}")


def _mapping(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidTenant(f"{field}: {reprlib.repr(value)} is not a mapping")
    return cast("Mapping[str, Any]", value)


def _name(value: object, field: str) -> str:
    if not is_name(value):
        raise InvalidTenant(f"{field}: {reprlib.repr(value)} is not a name of small letters, digits, '-' and '.'")
    return value


def _names(access: Mapping[str, Any], field: str) -> frozenset[str] | None:
    values = access.get(field)
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(each, str) for each in values):
        raise InvalidTenant(f"access.{field}: {reprlib.repr(values)} is not a list of names")
    return frozenset(values)


def _bool(spec: Mapping[str, Any], field: str) -> bool:
    value = spec.get(field, False)
    if not isinstance(value, bool):
        raise InvalidTenant(f"{field}: {reprlib.repr(value)} is neither true nor false")
    return value


def _whole(spec: Mapping[str, Any], field: str, default: int, *, least: int, most: int) -> int:
    value = spec.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidTenant(f"{field}: {reprlib.repr(value)} is not a whole number from {least} to {most}")
    return value


def is_name(value: object) -> TypeGuard[str]:
    """Whether ``value`` can be the name of an object or a namespace."""
    return isinstance(value, str) and len(value) <= 253 and _NAME.fullmatch(value) is not None


def is_sha256(value: object) -> TypeGuard[str]:
    """Whether ``value`` is a hash as it is written in a Tenant."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def place_of(number: int, document: object) -> str:
    """Say which document is meant, which may be anything, without a tenant's name; ``number`` counts from 1."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return f"{KIND} document {number}" if uid is None else f"{KIND} with uid {uid!s:.64}"
