"""Hashes of API keys that Tenants keep in Secrets (``sha256SecretRef``): which are read, and what of them is taken.

A Tenant reaches Secrets of its own namespace alone. Of a Secret nothing is kept but values that are hashes. What cannot
be read makes the one key unknown.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood_gateway.core.tenant_documents import is_name, is_sha256, place_of

MOST_SECRETS = 32
"""Of one namespace: each costs a question every few seconds, and anybody who writes Tenants may name more."""
DEFAULT_KEY = "sha256"
NO_SECRET = "its namespace has no Secret of that name"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class SecretName:
    """What tells a Secret from every other one."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Hashes:
    """What is taken of a Secret."""

    by_key: Mapping[str, str]
    """SHA-256 as 64 hexadecimal digits."""
    others: frozenset[str] = frozenset()
    """Keys whose values are no hashes; the values are forgotten."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Nothing is known of a Secret or a key; ``reason`` names neither a Secret nor a key."""

    reason: str


Secret = Hashes | Unreadable
KnownSecrets = Mapping[SecretName, Secret]
"""What is known of Secrets; of one that is not in it nobody has asked yet."""
NO_SECRETS: KnownSecrets = {}


@dataclass(frozen=True, slots=True)
class Filled:
    """Documents with the hashes that could be found; where one could not, ``sha256SecretRef`` is left."""

    documents: Sequence[Document]
    problems: tuple[str, ...]
    """Sentences for the log, as of `tenant_documents.Known`."""


def named_secrets(tenants: Iterable[Document]) -> Mapping[SecretName, frozenset[str]]:
    """Return the Secrets that ``tenants`` name, at most `MOST_SECRETS` of a namespace, each with the keys in question.

    Names in it are fit to be a part of a path, whatever the documents say.
    """
    found: dict[SecretName, set[str]] = {}
    for tenant in tenants:
        for _, reference in _references(tenant):
            if isinstance(reference, _Reference):
                found.setdefault(reference.secret, set()).add(reference.key)
    num_named: dict[str, int] = {}
    named: dict[SecretName, frozenset[str]] = {}
    for secret in sorted(found):
        num_named[secret.namespace] = num_named.get(secret.namespace, 0) + 1
        if num_named[secret.namespace] <= MOST_SECRETS:
            named[secret] = frozenset(found[secret])
    return named


def with_hashes(tenants: Sequence[Document], secrets: KnownSecrets) -> Filled:
    """Write into Tenant documents the hashes that ``secrets`` hold; never raises, whatever a document is."""
    named = named_secrets(tenants)
    filled: list[Document] = []
    problems: list[str] = []
    for number, tenant in enumerate(tenants, start=1):
        hashes: dict[int, str] = {}
        for index, reference in _references(tenant):
            match _hash(reference, named, secrets):
                case str(sha256):
                    hashes[index] = sha256
                case Unreadable(reason):
                    place = f"{place_of(number, tenant)}: apiKeys[{index}].sha256SecretRef"
                    problems.append(f"{place}: {reason}; this key is unknown")
                case _NotAsked():
                    pass
        filled.append(_filled(tenant, hashes) if hashes else tenant)
    return Filled(filled, tuple(problems))


def hashes_of(secret: object) -> Hashes:
    """Return the hashes in a Secret's ``data`` (base64) and ``stringData``, which comes first; never raises."""
    texts = {key: _decoded(value) for key, value in _mapping(secret, "data").items()} | _mapping(secret, "stringData")
    stripped = {str(key): text.strip() if isinstance(text, str) else "" for key, text in texts.items()}
    hashes = {key: text for key, text in stripped.items() if is_sha256(text)}
    return Hashes(hashes, frozenset(stripped.keys() - hashes.keys()))


def secrets_among(secrets: Iterable[Document], tenants: Iterable[Document]) -> KnownSecrets:
    """Return what is known of the Secrets that ``tenants`` name where there are no others than ``secrets``."""
    found: dict[SecretName, list[Document]] = {}
    for secret in secrets:
        metadata = _mapping(secret, "metadata")
        found.setdefault(SecretName(str(metadata.get("namespace")), str(metadata.get("name"))), []).append(secret)
    return {name: _only(found.get(name, [])) for name in named_secrets(tenants)}


def _only(same: Sequence[Document]) -> Secret:
    match same:
        case []:
            return Unreadable(NO_SECRET)
        case [secret]:
            return hashes_of(secret)
        case _:
            return Unreadable("there are several Secrets of that name; give it once")


@dataclass(frozen=True, slots=True)
class _Reference:
    secret: SecretName
    key: str


class _NotAsked:
    """The Secret has not been looked for yet: there is nothing to tell."""


def _references(tenant: object) -> Iterator[tuple[int, _Reference | Unreadable]]:
    """Yield the place in ``apiKeys`` of each key that is in a Secret, and where."""
    keys = _mapping(tenant, "spec").get("apiKeys")
    for index, key in enumerate(keys if isinstance(keys, list) else ()):
        if isinstance(key, Mapping) and key.get("sha256") is None and "sha256SecretRef" in key:
            yield index, _reference(_mapping(tenant, "metadata").get("namespace"), key["sha256SecretRef"])


def _reference(namespace: object, reference: object) -> _Reference | Unreadable:
    name = reference.get("name") if isinstance(reference, Mapping) else None
    key = reference.get("key", DEFAULT_KEY) if isinstance(reference, Mapping) else None
    if not is_name(namespace) or not is_name(name) or not isinstance(key, str):
        return Unreadable("it names no Secret; give name and key")
    return _Reference(SecretName(namespace, name), key)


def _hash(
    reference: _Reference | Unreadable, named: Mapping[SecretName, frozenset[str]], secrets: KnownSecrets
) -> str | Unreadable | _NotAsked:
    if isinstance(reference, Unreadable):
        return reference
    if reference.secret not in named:
        return Unreadable(
            f"the Tenants of its namespace name more than {MOST_SECRETS} Secrets, and this is beyond them"
        )
    match secrets.get(reference.secret):
        case None:
            return _NotAsked()
        case Unreadable() as unreadable:
            return unreadable
        case Hashes(by_key, others):
            if reference.key in by_key:
                return by_key[reference.key]
            if reference.key in others:  # what stands there may be the key itself, by mistake: it is not quoted
                return Unreadable("what the Secret holds there is not 64 hexadecimal digits in lower case")
            return Unreadable("the Secret has no such key")


def _filled(tenant: Document, hashes: Mapping[int, str]) -> Document:
    keys = [
        {"name": key.get("name"), "sha256": hashes[index]} if index in hashes else key
        for index, key in enumerate(tenant["spec"]["apiKeys"])
    ]
    return {**tenant, "spec": {**tenant["spec"], "apiKeys": keys}}


def _decoded(value: object) -> str:
    """Return the text of base64; of what is none, or no text, an empty one."""
    try:
        return base64.b64decode(value, validate=True).decode("ascii") if isinstance(value, str) else ""
    except (binascii.Error, ValueError):
        return ""


def _mapping(parent: object, field: str) -> dict[str, Any]:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}
