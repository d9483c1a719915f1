"""The definitions in ``crds/`` and the manifests in ``examples/``, and a strict check of one by the other.

The check is `jsonschema` over the schema as written, with fields that it does not have refused, as the API server does.
CEL rules need a real API server: ``e2e/test_crds.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

Node = Mapping[str, Any]

GROUP = "serving.sapwood.dev"
API_VERSION = f"{GROUP}/v1alpha1"
EXAMPLES = sorted(Path("examples").glob("*.yaml"))


@dataclass(frozen=True, slots=True)
class Field:
    """One place of a schema; items of lists and values of maps are places too."""

    kind: str
    path: str
    node: Node
    required: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.kind}.{self.path}"


@cache
def definitions() -> Mapping[str, Node]:
    """Return each CustomResourceDefinition by the kind that it defines."""
    loaded = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(Path("crds").glob("*.yaml")))
    return {definition["spec"]["names"]["kind"]: definition for definition in loaded}


def version(kind: str) -> Node:
    (only,) = definitions()[kind]["spec"]["versions"]
    assert isinstance(only, dict)
    return only


def schema(kind: str) -> Node:
    node = version(kind)["schema"]["openAPIV3Schema"]
    assert isinstance(node, dict)
    return node


def fields(kind: str) -> Iterator[Field]:
    """Yield every place of spec and status, parents first; list items as ``[]``, map values as ``{}``."""
    root = schema(kind)
    ours = {name: node for name, node in root["properties"].items() if name != "metadata"}
    yield from _below(kind, "", {**root, "properties": ours})


def field(kind: str, path: str) -> Field:
    (found,) = (each for each in fields(kind) if each.path == path)
    return found


def _below(kind: str, path: str, node: Node) -> Iterator[Field]:
    required = node.get("required", ())
    inner = [(name, child, name in required) for name, child in node.get("properties", {}).items()]
    inner += [(mark, node[key], True) for key, mark in _ANONYMOUS.items() if key in node]
    for name, child, is_required in inner:
        place = name if not path else f"{path}{name}" if name in _ANONYMOUS.values() else f"{path}.{name}"
        yield Field(kind, place, child, is_required)
        yield from _below(kind, place, child)


_ANONYMOUS = {"items": "[]", "additionalProperties": "{}"}


def rules(kind: str) -> Iterator[tuple[str, Node]]:
    """Yield every CEL rule with the path of the place that it is written at."""
    places = [("", schema(kind)), *((each.path, each.node) for each in fields(kind))]
    for path, node in places:
        for rule in node.get("x-kubernetes-validations", ()):
            yield path, rule


def documents(path: Path) -> list[dict[str, Any]]:
    """Return every object of a file of manifests."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document is not None]


def services(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file that are ours."""
    return [document for document in documents(path) if document["apiVersion"] == API_VERSION]


def problems(document: Mapping[str, Any]) -> list[str]:
    """Return what the schema finds wrong with an object of ours; CEL rules are not looked at."""
    root = dict(_strict(schema(document["kind"])))
    root["properties"] = {**root["properties"], "apiVersion": True, "kind": True, "metadata": True}
    found = Draft202012Validator(root).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def node_problems(node: Node, value: object) -> list[str]:
    """Return what one place of a schema finds wrong with ``value``."""
    return [error.message for error in Draft202012Validator(_strict(node)).iter_errors(value)]


def _strict(node: Node) -> Node:
    """Refuse what the node does not name, as an API server that validates strictly does."""
    changed = dict(node)
    if "properties" in node:
        changed["properties"] = {name: _strict(child) for name, child in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            changed["additionalProperties"] = False
    for key in _ANONYMOUS:
        if key in node:
            changed[key] = _strict(node[key])
    return changed
