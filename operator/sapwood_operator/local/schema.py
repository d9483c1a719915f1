"""The OpenAPI schema of a definition: defaults, and what does not conform, as the API server does it, strictly.

Where the API server would drop a field that it does not know, with a warning at most, it is refused here: somebody
meant something by it.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, TypeChecker, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]  # it ships no types

from sapwood_operator.local.definitions import Schema
from sapwood_operator.local.problems import Problem, below, is_secret, unusable

_KEEPS_ALL = "x-kubernetes-preserve-unknown-fields"


# --- defaults


def with_defaults(schema: Schema, value: Any) -> Any:
    """Return ``value`` with the schema's defaults; a null counts as absent."""
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        found = {name: inner for name, inner in value.items() if inner is not None or name not in properties}
        for name, node in properties.items():
            if name not in found and "default" in node:
                found[name] = copy.deepcopy(node["default"])
        return {name: with_defaults(_node_of(schema, name), inner) for name, inner in found.items()}
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    return value


def _node_of(schema: Schema, name: str) -> Schema:
    node = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
    return node if isinstance(node, Mapping) else {}


# --- conformance


def schema_problems(schema: Schema, value: Any, path: str = "") -> list[Problem]:
    """Return what in ``value`` does not conform to ``schema``, each once."""
    found = [each for error in _Validator(_strict(schema)).iter_errors(value) for each in _told(error, path)]
    return list(dict.fromkeys([*found, *_doubles(schema, value, path)]))


def _strict(node: Schema) -> Schema:
    """Return the schema with unknown fields refused."""
    changed = dict(node)
    if "properties" in node:
        changed["properties"] = {name: _strict(child) for name, child in node["properties"].items()}
        if not node.get(_KEEPS_ALL):
            changed["additionalProperties"] = False
    if isinstance(node.get("additionalProperties"), Mapping):
        changed["additionalProperties"] = _strict(node["additionalProperties"])
    if "items" in node:
        changed["items"] = _strict(node["items"])
    return changed


def _pattern(_validator: Any, pattern: str, value: Any, _schema: Schema) -> Iterator[ValidationError]:
    # In Python `$` matches before a last line feed too, in Go it does not.
    exact = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
    if isinstance(value, str) and not re.search(exact, value):
        yield ValidationError(f"it does not match {pattern}")


def _is_whole(_checker: TypeChecker, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Validator = extend(
    Draft202012Validator,
    {"pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole),
)


def _told(error: ValidationError, path: str) -> Iterator[Problem]:
    for step in error.absolute_path:
        path = below(path, step)
    value, node = error.instance, error.schema
    match error.validator:
        case "required":
            for name in error.validator_value:
                if name not in value:
                    yield Problem(below(path, name), f"missing{_meaning(node.get('properties', {}).get(name, {}))}")
        case "additionalProperties":
            for name in sorted(value.keys() - node["properties"].keys()):
                place, meant = (path, "") if is_secret(path) else (below(path, name), name)
                yield Problem(place, _unknown(meant, node["properties"]))
        case "type":
            yield unusable(path, value, f"give {_TYPES[error.validator_value]}{_meaning(node)}")
        case "anyOf":
            yield unusable(path, value, f"give a whole number or a text{_meaning(node)}")
        case "enum":
            yield unusable(path, value, f"take one of {', '.join(map(str, error.validator_value))}")
        case "minimum":
            yield unusable(path, value, f"take {error.validator_value} or more")
        case "maximum":
            yield unusable(path, value, f"take {error.validator_value} or less")
        case "pattern":
            yield unusable(path, value, error.message + _meaning(node))
        case _ if is_secret(path):
            yield Problem(path, f"it does not keep to {error.validator} {error.validator_value}{_meaning(node)}")
        case _:
            yield Problem(path, error.message)


_TYPES = {
    "object": "fields, each with its value",
    "array": "a list",
    "string": "a text; quote it where YAML would read something else",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"there is no such field; {f'is {close[0]} meant?' if close else f'there are {_list(known)}'}"


def _list(known: Mapping[str, Any]) -> str:
    return ", ".join(sorted(known)) or "none here"


def _meaning(node: Schema) -> str:
    """Return the first sentence of what the field is for."""
    first = re.match(r".*?[.](?=\s|$)", str(node.get("description", "")), re.DOTALL)
    return f". It is for: {' '.join(first[0].split())}" if first else ""


def _doubles(schema: Schema, value: Any, path: str) -> Iterator[Problem]:
    """Yield items that a list may have once, and has twice."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _doubles(_node_of(schema, name), inner, below(path, str(name)))
    if not isinstance(value, list):
        return
    seen: list[Any] = []
    for index, item in enumerate(value):
        yield from _doubles(schema.get("items", {}), item, below(path, index))
        match schema.get("x-kubernetes-list-type"), item:
            case "set", _:
                identity = item
            case "map", Mapping():
                identity = [item.get(key) for key in schema["x-kubernetes-list-map-keys"]]
            case _:
                continue
        if identity in seen:
            yield unusable(below(path, index), identity, f"{identity!r} is there already: give it once")
        seen.append(identity)
