"""Who calls: tenants, what each may do, and which of them an API key means.

Only SHA-256 hashes of keys are known. A tenant belongs to a namespace and is known to the services there alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """How much one tenant may use, over all services and gateways; None is no bound."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One caller of the services in its namespace."""

    namespace: str
    name: str
    key_digests: frozenset[bytes] = frozenset()
    """SHA-256 of each of its keys, 32 bytes."""
    is_suspended: bool = False
    models: frozenset[str] | None = None
    """What it may call; None: every model."""
    adapters: frozenset[str] | None = None
    """LoRA adapters that it may call; None: every one."""
    quotas: Quotas = field(default_factory=Quotas)
    share: int = 1
    """Weight against other tenants when replicas are full."""
    priority_ceiling: int = 0
    group: str | None = None
    """Tenants of the same group and namespace may share computed prefixes."""

    @property
    def id(self) -> str:
        """Return what tells it from every other tenant: ``NAMESPACE/NAME``."""
        return f"{self.namespace}/{self.name}"

    def may_call(self, model: str) -> bool:
        """Whether it may call a base model of this name."""
        return self.models is None or model in self.models

    def may_call_adapter(self, adapter: str) -> bool:
        """Whether it may call an adapter of this name."""
        return self.adapters is None or adapter in self.adapters


ANONYMOUS = Tenant(namespace="", name="")
"""Everybody who calls a service that asks for no key: no quota, no bound on models, the same cache for all."""


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """No tenant of the namespace has this key."""


class Tenants:
    """All tenants at one moment, found by their keys; never changed."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """No two of ``tenants`` in one namespace have a key in common: else the later one's is found by nobody."""
        self.all = tuple(tenants)
        self._by_start: dict[tuple[str, bytes], list[tuple[bytes, Tenant]]] = {}
        for tenant in self.all:
            for digest in tenant.key_digests:
                self._by_start.setdefault((tenant.namespace, digest[:_INDEX_BYTES]), []).append((digest, tenant))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tenants) and self.all == other.all

    __hash__ = None  # type: ignore[assignment]  # compared, never a key

    def find(self, namespace: str, key: str) -> Tenant | UnknownKey:
        """Return the tenant of ``namespace`` that has ``key``, also one that is suspended.

        How long it takes tells at most how a known hash begins, from which no key can be made.
        """
        digest = key_digest(key)
        for known, tenant in self._by_start.get((namespace, digest[:_INDEX_BYTES]), ()):
            if key and hmac.compare_digest(digest, known):
                return tenant
        return UnknownKey()


def key_digest(key: str) -> bytes:
    """Return the SHA-256 of an API key as it stands in an Authorization header."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
