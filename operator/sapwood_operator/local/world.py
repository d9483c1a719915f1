"""The objects that an API server would keep, in memory: services, their children, and what is known of them.

As there, an object keeps its uid as long as it lives, its generation rises when its spec changes, and what a service
owned goes with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sapwood_operator.domain.observed import ObjectRef, is_owned, ref_of
from sapwood_operator.domain.plan import Delete

JsonObject = Mapping[str, Any]


class ServiceKey(NamedTuple):
    """An InferenceService's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class World:
    """Every object that there is."""

    def __init__(self) -> None:
        self.services: dict[ServiceKey, JsonObject] = {}
        self._children: dict[ObjectRef, JsonObject] = {}
        self._version = 0

    def set_services(self, documents: Iterable[JsonObject]) -> None:
        """Make ``documents`` all services that there are; what the others owned goes."""
        given = {key_of(document): document for document in documents}
        for key in self.services.keys() - given.keys():
            uid = self.services.pop(key)["metadata"]["uid"]
            self._children = {ref: child for ref, child in self._children.items() if not is_owned(child, uid)}
        for key, document in given.items():
            former = self.services.get(key)
            if former is None or former["spec"] != document["spec"]:
                written = self._written(document, former)
                self.services[key] = {**written, "status": former.get("status")} if former else written

    def apply(self, desired: JsonObject) -> None:
        """Make ``desired`` so."""
        ref = ref_of(desired)
        self._children[ref] = self._written(desired, self._children.get(ref))

    def delete(self, deletion: Delete) -> None:
        """Remove an object, if it still has that uid."""
        found = self._children.get(deletion.ref)
        if found is not None and found["metadata"]["uid"] == deletion.uid:
            del self._children[deletion.ref]

    def set_status(self, key: ServiceKey, status: JsonObject) -> None:
        """Write a service's status, whole."""
        self.services[key] = {**self.services[key], "status": status}

    def children(self, key: ServiceKey) -> dict[ObjectRef, JsonObject]:
        """Return what a service owns."""
        uid = self.services[key]["metadata"]["uid"]
        return {ref: child for ref, child in self._children.items() if is_owned(child, uid)}

    def of_kind(self, kind: str) -> list[JsonObject]:
        """Return every child of one kind."""
        return [child for ref, child in sorted(self._children.items()) if ref.kind == kind]

    def _written(self, document: JsonObject, former: JsonObject | None) -> dict[str, Any]:
        self._version += 1
        before: JsonObject = {"uid": str(uuid.uuid4()), "generation": 0} if former is None else former["metadata"]
        is_other = former is None or former.get("spec") != document.get("spec")
        metadata = {
            **document["metadata"],
            "uid": before["uid"],
            "generation": before["generation"] + is_other,
            "resourceVersion": str(self._version),
        }
        return {**document, "metadata": metadata}


def key_of(service: JsonObject) -> ServiceKey:
    """Return what names a service."""
    return ServiceKey(service["metadata"]["namespace"], service["metadata"]["name"])
