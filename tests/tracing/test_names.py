"""The names are those of the semantic conventions that are pinned."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import version
from types import ModuleType

import opentelemetry.semconv._incubating.attributes as conventions
from opentelemetry.semconv.schemas import Schemas

from sapwood_tracing import names

OURS = ("sapwood.",)


def known_names() -> set[str]:
    modules: list[ModuleType] = [
        importlib.import_module(f"{conventions.__name__}.{each.name}")
        for each in pkgutil.iter_modules(conventions.__path__)
    ]
    return {
        value for module in modules for name, value in vars(module).items() if name.isupper() and isinstance(value, str)
    }


def test_every_attribute_is_in_the_conventions_or_ours() -> None:
    attributes = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and "." in value and name not in ("SCHEMA_URL", "ROUTE", "MATCH")
    }
    assert len(attributes) > 20
    known = known_names()
    assert {each for each in attributes if not each.startswith(OURS)} <= known
    assert not {each for each in attributes if each.startswith(OURS)} & known


def test_the_operations_are_the_conventions_own() -> None:
    operations = importlib.import_module(f"{conventions.__name__}.gen_ai_attributes").GenAiOperationNameValues
    assert set(names.OPERATIONS.values()) <= {each.value for each in operations}


def test_the_schema_is_that_of_the_package_that_is_pinned() -> None:
    assert version("opentelemetry-semantic-conventions") == "0.66b2"
    assert max(Schemas, key=lambda each: tuple(map(int, each.value.rpartition("/")[2].split(".")))).value == (
        names.SCHEMA_URL
    )
