"""Draws JSON values from a JSON Schema, for the part of the language that the chart's schema uses.

hypothesis-jsonschema 0.23.1 would do it, but its objects need a method that Hypothesis has since removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

_MOST_ELEMENTS = 3
"""Of a list or a map: enough to see two of something and an end."""
_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20)


def values_of(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """Return a strategy of values that ``schema`` allows; a ``$ref`` in it leads into ``root``, by default itself."""
    root = schema if root is None else root
    if "$ref" in schema:
        # Draft 7: what stands beside a reference does not count.
        return values_of(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        return st.one_of([values_of(branch, root) for branch in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object":
            return _objects(schema, root)
        case "array":
            return _arrays(schema, root)
        case list() as types:
            return st.one_of([values_of({**schema, "type": one}, root) for one in types])
        case scalar:
            return _scalars(scalar, schema)


def _scalars(type_: str, schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    match type_:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            return st.floats(schema["minimum"], schema["maximum"])
        case "string":
            text = st.from_regex(schema["pattern"], fullmatch=True) if "pattern" in schema else _TEXT
            # In Python, `$` matches before a last line feed too; in JSON Schema it does not.
            fitting = text.map(lambda found: found.removesuffix("\n"))
            return fitting.filter(lambda found: schema.get("minLength", 0) <= len(found) <= schema["maxLength"])
    raise NotImplementedError(f"type {type_!r}")


def _arrays(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[list[Any]]:
    most = min(schema["maxItems"], _MOST_ELEMENTS)
    unique_by = str if schema.get("uniqueItems") else None
    items = values_of(schema["items"], root)
    return st.lists(items, min_size=schema.get("minItems", 0), max_size=most, unique_by=unique_by)


def _objects(schema: Mapping[str, Any], root: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if schema["additionalProperties"] is not False:
        names = values_of(schema["propertyNames"], root)
        return st.dictionaries(names, values_of(schema["additionalProperties"], root), max_size=_MOST_ELEMENTS)
    members = {name: values_of(member, root) for name, member in schema["properties"].items()}
    required = {name: members.pop(name) for name in schema.get("required", ())}
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(schema["properties"]))
    return st.fixed_dictionaries(required, optional=members).filter(lambda found: least <= len(found) <= most)
