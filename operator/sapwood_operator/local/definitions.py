"""The CustomResourceDefinitions of this version: what documents are validated with, without an API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sapwood_operator.domain.names import API_VERSION
from sapwood_operator.errors import OperatorError

Schema = Mapping[str, Any]
_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "crds", _PACKAGE.parents[1] / "crds")
"""Inside of an installed package; beside it in the repository, which an editable installation reads."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one written in C where PyYAML has it: with the other one a start takes a second longer."""


class NoDefinitions(OperatorError):
    """The files of ``crds/`` are not where the package should have them."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind of ours."""

    kind: str
    schema: Schema


def read_definitions() -> dict[str, Definition]:
    """Return the definitions by kind; raises `NoDefinitions`."""
    for place in _PLACES:
        if paths := sorted(place.glob("*.yaml")):
            found = [_definition(yaml.load(path.read_bytes(), Loader=_LOADER)) for path in paths]
            return {each.kind: each for each in found}
    raise NoDefinitions(f"there are no definitions in {_PLACES[0]}; install the package anew")


def _definition(document: Mapping[str, Any]) -> Definition:
    spec = document["spec"]
    (version,) = (each for each in spec["versions"] if f"{spec['group']}/{each['name']}" == API_VERSION)
    return Definition(spec["names"]["kind"], version["schema"]["openAPIV3Schema"])
