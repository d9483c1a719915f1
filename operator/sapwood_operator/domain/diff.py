"""Whether an object needs a write: its live state against what is desired.

An object carries the hash of what was last applied. Where the hash differs the spec or the operator changed, also where
only a field went away, which comparing could not see. Where it agrees, every desired field is still looked for in the
live object, because somebody may have edited it. Fields that are live and not desired belong to others: defaults of the
API server, and what other field managers added.

A pod template of a user may hold values that the API server stores as others (``dnsPolicy: ""``). No write would ever
change that; so where the live object is as the API server itself answered the last write, it needs none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sapwood_operator.domain.names import APPLIED_ANNOTATION
from sapwood_operator.domain.pod_template import MERGE_KEYS
from sapwood_operator.domain.quantities import quantity

_HASH_CHARACTERS = 16
_QUANTITY_MAPS = ("limits", "requests")
_QUANTITY_FIELDS = ("sizeLimit", "storage", "divisor")
_PORT_KEYS = ("containerPort", "port")
"""Ports of containers and of Services."""

_ABSENT_IS_NOT_FALSE = ("automountServiceAccountToken", "allowPrivilegeEscalation")
"""Switches without a default of the API server: who removes the field switches it on."""


def with_hash(desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``desired`` with the annotation that holds its hash."""
    text = json.dumps(desired, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]
    metadata = dict(desired["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: digest}
    return {**desired, "metadata": metadata}


def differs(desired: Mapping[str, Any], live: Mapping[str, Any], answer: Mapping[str, Any] | None = None) -> bool:
    """Whether a field of ``desired`` (with its hash) is absent from ``live`` or has another value there.

    ``answer``: what the API server made of the last write of this object; None where that is not known.
    """
    if _matches(desired, live, "", ""):
        return False
    as_answered = answer is not None and applied_hash(desired) == applied_hash(answer)
    return not (as_answered and _desired_part(desired, answer, "") == _desired_part(desired, live, ""))


def applied_hash(document: Mapping[str, Any]) -> Any:
    """Return the hash in a live or a desired object; None where there is none."""
    return (document["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION)


def _desired_part(desired: Any, live: Any, name: str) -> Any:
    """Return what stands in ``live`` where ``desired`` has a value."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        return {key: _desired_part(value, live.get(key), key) for key, value in desired.items()}
    key = _merge_key(desired, name) if isinstance(desired, list) and isinstance(live, list) else None
    if key is None:
        return live
    found = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return [_desired_part(item, found.get(item[key]), "") for item in desired]


def _matches(desired: Any, live: Any, name: str, parent: str) -> bool:
    if live is None:
        # The API server does not store what is empty, zero or false, unless absence means something else.
        return not desired and name not in _ABSENT_IS_NOT_FALSE
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(
            _matches(value, live.get(key), key, name) for key, value in desired.items()
        )
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return isinstance(live, Sequence) and not isinstance(live, str) and _lists_match(desired, live, name)
    if parent in _QUANTITY_MAPS or name in _QUANTITY_FIELDS:
        return _same_quantity(desired, live)
    return bool(desired == live)


def _lists_match(desired: Sequence[Any], live: Sequence[Any], name: str) -> bool:
    key = _merge_key(desired, name)
    if key is None:
        return len(desired) == len(live) and all(
            _matches(mine, theirs, "", name) for mine, theirs in zip(desired, live, strict=True)
        )
    found = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return all(_matches(item, found.get(item[key]), "", name) for item in desired)


def _merge_key(desired: Sequence[Any], name: str) -> str | None:
    """The field that names an item, where all items have it and no two the same; else the order counts."""
    candidates = _PORT_KEYS if name == "ports" else (MERGE_KEYS.get(name),)
    for key in candidates:
        if key is None or not all(isinstance(item, Mapping) and key in item for item in desired):
            continue
        if len({item[key] for item in desired}) == len(desired):
            return key
    return None


def _same_quantity(desired: Any, live: Any) -> bool:
    try:
        return quantity(desired) == quantity(live)
    except ValueError:
        return bool(desired == live)
