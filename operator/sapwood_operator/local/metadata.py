"""What every object must say of itself: kind, name and namespace, as an API server asks of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sapwood_operator.local.problems import Problem, below, unusable

_MAX_NAME_CHARACTERS, _MAX_NAMESPACE_CHARACTERS = 253, 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_TEXTS = ("labels", "annotations")
_KNOWN = {
    *("name", "namespace", *_TEXTS, "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"),
    *("ownerReferences", "finalizers", "generateName", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"),
}


def metadata_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with ``apiVersion``, ``kind`` and ``metadata``."""
    return list(_problems(document))


def _problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    for field in ("apiVersion", "kind"):
        value = document.get(field)
        if not isinstance(value, str) or not value:
            yield unusable(field, value, "name it, as in every manifest") if value else Problem(field, "missing")
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        yield Problem("metadata.name", "missing; every object has a name")
        return
    yield from _name_problems(metadata)
    for field in _TEXTS:
        texts = metadata.get(field) or {}
        if not isinstance(texts, Mapping) or not all(isinstance(each, str) for each in texts.values()):
            yield Problem(
                f"metadata.{field}", "give texts by their names; quote what YAML would read as something else"
            )
    for field in sorted(metadata.keys() - _KNOWN):
        close = difflib.get_close_matches(field, _KNOWN, n=1)
        yield Problem(below("metadata", field), f"there is no such field{f'; is {close[0]} meant?' if close else ''}")


def _name_problems(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not name:
        yield Problem("metadata.name", "missing; every object has a name")
    elif not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARACTERS:
        fix = f"take lower case letters, digits, '-' and '.', at most {_MAX_NAME_CHARACTERS} characters"
        yield unusable("metadata.name", name, fix)
    is_usable = isinstance(namespace, str) and _NAMESPACE.fullmatch(namespace)
    if not is_usable or len(namespace) > _MAX_NAMESPACE_CHARACTERS:
        fix = f"take lower case letters, digits and '-', at most {_MAX_NAMESPACE_CHARACTERS} characters"
        yield unusable("metadata.namespace", namespace, fix)
