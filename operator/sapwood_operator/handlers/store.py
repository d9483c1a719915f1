"""What is known of the cluster: the live objects of every service, and the Tenants and AutoscalingPolicies of every
namespace, fed by watches, lists and the answers to writes.

Feeders overtake each other: a watch lags behind the answer to a write, a list is older than both. An object's
resourceVersion decides: only a newer one replaces what is known, and what was deleted stays gone for anything older.
(Versions of a kind are compared as integers, which Kubernetes promises since 1.35 and etcd has always kept.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_contract.routing import SERVICE_LABEL
from sapwood_operator.adapters.kinds import PODS, POLICIES, REPLICA_SETS, SERVICES, TENANTS, Kind
from sapwood_operator.domain.observed import ObjectRef, ref_of
from sapwood_operator.domain.policies import named_policy

JsonObject = Mapping[str, Any]
MAX_REMEMBERED_DELETIONS = 10_000
"""Deletions that are remembered; an older event can lag by seconds, not by so many deletions."""


@dataclass(frozen=True, slots=True, order=True)
class ServiceKey:
    """Which InferenceService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class TenantsKey:
    """All Tenants of a namespace: they are judged together."""

    namespace: str

    def __str__(self) -> str:
        return self.namespace


@dataclass(frozen=True, slots=True, order=True)
class PoliciesKey:
    """All AutoscalingPolicies of a namespace: their statuses count the services that follow them."""

    namespace: str

    def __str__(self) -> str:
        return self.namespace


Key = ServiceKey | TenantsKey | PoliciesKey
"""What has turns of its own."""


def _is(ref: ObjectRef, kind: Kind) -> bool:
    return (ref.api_version, ref.kind) == (kind.api_version, kind.kind)


def _controller(live: Mapping[str, Any]) -> str | None:
    """Return the uid of what controls an object; None: nothing does."""
    owners = live["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


class Store:
    """Live objects by whose turns look at them. Belongs to one thread."""

    def __init__(self) -> None:
        self._objects: dict[ObjectRef, JsonObject] = {}
        self._key_of: dict[ObjectRef, Key] = {}
        self._refs_of: dict[Key, set[ObjectRef]] = {}
        self._deleted: OrderedDict[ObjectRef, int] = OrderedDict()

    # --- feeding; each returns the keys whose picture has changed

    def put(self, live: JsonObject) -> set[Key]:
        """Take in an object as it was at its resourceVersion."""
        ref, version = ref_of(live), _version(live)
        if version <= max(self._known_version(ref), self._deleted.get(ref, 0)):
            return set()
        return self._drop(ref) | self._insert(ref, live)

    def remove(self, live: JsonObject) -> set[Key]:
        """Take in that an object is gone, or does not match the watch's labels any more, as of its resourceVersion."""
        ref, version = ref_of(live), _version(live)
        if version < self._known_version(ref):
            return set()
        self._remember_deletion(ref, version)
        return self._drop(ref)

    def replace(self, kind: Kind, namespace: str, objects: Iterable[JsonObject], version: str) -> set[Key]:
        """Take in that ``objects`` were all there were of a kind in ``namespace`` (empty: in all of them) at
        ``version``, so what the watches missed is made good.
        """
        listed = {ref_of(live): live for live in objects}
        changed: set[Key] = set()
        for live in listed.values():
            changed |= self.put(live)
        known = [ref for ref in self._objects if _is(ref, kind) and namespace in ("", ref.namespace)]
        for ref in known:
            if ref not in listed and self._known_version(ref) <= int(version):
                self._remember_deletion(ref, int(version))
                changed |= self._drop(ref)
        return changed

    # --- asking

    def keys(self) -> list[Key]:
        """Every service that exists, and every namespace with Tenants, and with AutoscalingPolicies."""
        roots = (SERVICES, TENANTS, POLICIES)
        return list({self._key_of[ref] for ref in self._objects if any(_is(ref, kind) for kind in roots)})

    def service(self, key: ServiceKey) -> JsonObject | None:
        """The InferenceService, or None: it does not exist."""
        return self._objects.get(ObjectRef(SERVICES.api_version, SERVICES.kind, key.namespace, key.name))

    def tenants(self, key: TenantsKey) -> tuple[JsonObject, ...]:
        """The Tenants of a namespace, by name."""
        return tuple(self._objects[ref] for ref in self._refs(key))

    def policies(self, namespace: str) -> dict[str, JsonObject]:
        """The AutoscalingPolicies of a namespace, by name."""
        return {ref.name: self._objects[ref] for ref in self._refs(PoliciesKey(namespace))}

    def services(self, namespace: str) -> tuple[JsonObject, ...]:
        """The InferenceServices of a namespace."""
        return tuple(live for ref, live in self._objects.items() if _is(ref, SERVICES) and ref.namespace == namespace)

    def pods(self, key: ServiceKey) -> tuple[JsonObject, ...]:
        """The service's pods, by name: those that its ReplicaSets control. Anybody can give a pod our labels."""
        owners = {live["metadata"]["uid"] for live in self.replica_sets(key)}
        found = (self._objects[ref] for ref in self._refs(key) if _is(ref, PODS))
        return tuple(pod for pod in found if _controller(pod) in owners)

    def replica_sets(self, key: ServiceKey) -> tuple[JsonObject, ...]:
        """The ReplicaSets of the service's Deployment, by name."""
        return tuple(self._objects[ref] for ref in self._refs(key) if _is(ref, REPLICA_SETS))

    def children(self, key: ServiceKey) -> dict[ObjectRef, JsonObject]:
        """Everything else that bears the service's label."""
        others = (SERVICES, PODS, REPLICA_SETS)
        return {ref: self._objects[ref] for ref in self._refs(key) if not any(_is(ref, kind) for kind in others)}

    # --- inside

    def _refs(self, key: Key) -> list[ObjectRef]:
        return sorted(self._refs_of.get(key, ()))

    def _known_version(self, ref: ObjectRef) -> int:
        known = self._objects.get(ref)
        return 0 if known is None else _version(known)

    def _insert(self, ref: ObjectRef, live: JsonObject) -> set[Key]:
        key = _key(ref, live)
        if key is None:
            return set()
        self._objects[ref] = without_bookkeeping(live)
        self._key_of[ref] = key
        self._refs_of.setdefault(key, set()).add(ref)
        return {key} | self._followers(ref, live)

    def _drop(self, ref: ObjectRef) -> set[Key]:
        key = self._key_of.pop(ref, None)
        if key is None:
            return set()
        live = self._objects.pop(ref)
        self._refs_of[key].discard(ref)
        if not self._refs_of[key]:
            del self._refs_of[key]
        return {key} | self._followers(ref, live)

    def _followers(self, ref: ObjectRef, live: JsonObject) -> set[Key]:
        """Return who looks at the object besides its own key: a policy's services, and the policy of a service."""
        if _is(ref, SERVICES):
            return {PoliciesKey(ref.namespace)} if named_policy(live) else set()
        if not _is(ref, POLICIES):
            return set()
        services = (each for each in self.services(ref.namespace) if named_policy(each) == ref.name)
        return {ServiceKey(ref.namespace, each["metadata"]["name"]) for each in services}

    def _remember_deletion(self, ref: ObjectRef, version: int) -> None:
        self._deleted[ref] = max(version, self._deleted.pop(ref, 0))
        if len(self._deleted) > MAX_REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)


def _key(ref: ObjectRef, live: JsonObject) -> Key | None:
    if _is(ref, TENANTS):
        return TenantsKey(ref.namespace)
    if _is(ref, POLICIES):
        return PoliciesKey(ref.namespace)
    if _is(ref, SERVICES):
        return ServiceKey(ref.namespace, ref.name)
    service = (live["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    return ServiceKey(ref.namespace, service) if service else None


def _version(live: JsonObject) -> int:
    return int(live["metadata"]["resourceVersion"])


def without_bookkeeping(live: JsonObject) -> JsonObject:
    """``managedFields`` are half of an object's size, and nobody here reads them."""
    return {**live, "metadata": {key: value for key, value in live["metadata"].items() if key != "managedFields"}}
