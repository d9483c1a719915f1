"""What a discovery file holds, sorted by kind: the objects are those of a cluster, in one YAML or JSON file."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_KINDS = ("ConfigMap", "EndpointSlice", "Tenant", "Secret")
DEFAULT_NAMESPACE = "default"
"""Of an object that names none."""


class InvalidObjects(ValueError):
    """The file does not hold what it should; the message names document and field, and no tenant."""


@dataclass(frozen=True, slots=True)
class FileObjects:
    """The objects of one version of the file, each with a name and a namespace."""

    config_maps: tuple[Mapping[str, Any], ...]
    slices: tuple[Mapping[str, Any], ...]
    tenants: tuple[Mapping[str, Any], ...]
    secrets: tuple[Mapping[str, Any], ...]
    """Where Tenants keep hashes of their keys."""


def objects_of(documents: Iterable[object]) -> FileObjects:
    """Sort ``documents``, of which a ``List`` may hold several; raises `InvalidObjects`.

    An unknown kind is refused: one that is misspelt would be an object that is missing. So is a file without any
    document: most writers leave one for a moment.
    """
    found: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in _KINDS}
    numbered = [(number, each) for number, each in enumerate(documents, start=1) if each is not None]
    if not numbered:
        raise InvalidObjects("there is no document in it; a List without items says that there is nothing")
    for number, document in numbered:
        for where, each in _each(document, f"document {number}"):
            found[_kind(each, where)].append(_named(each, where))
    return FileObjects(*(tuple(found[kind]) for kind in _KINDS))


def _each(document: object, where: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if not isinstance(document, Mapping):
        raise InvalidObjects(f"{where}: it is no object, but {type(document).__name__}")
    if document.get("kind") != "List":
        return [(where, document)]
    items = document.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise InvalidObjects(f"{where}: items: it is not a list of objects")
    return [(f"{where}, items[{index}]", item) for index, item in enumerate(items)]


def _kind(document: Mapping[str, Any], where: str) -> str:
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidObjects(f"{where}: kind: {reprlib.repr(kind)} is not one of {', '.join(_KINDS)}")
    return kind


def _named(document: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InvalidObjects(f"{where}: metadata.name: missing; give the object a name")
    namespace = metadata.get("namespace", DEFAULT_NAMESPACE)
    labels = metadata.get("labels") or {}
    are_texts = isinstance(labels, Mapping) and all(isinstance(each, str) for each in labels.values())
    if not isinstance(namespace, str) or not are_texts:
        raise InvalidObjects(f"{where}: metadata: namespace is no text, or labels are not all texts")
    return {**document, "metadata": {**metadata, "namespace": namespace, "labels": labels}}
