"""The examples are right, and together show every field that does something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_crds import EXAMPLES, documents, fields, problems, services

SERVICES = [(path, service) for path in EXAMPLES for service in services(path)]


def test_there_are_seven_from_small_to_complete() -> None:
    sizes = {path.stem: path.read_text(encoding="utf-8").count("\n") for path in EXAMPLES}
    assert len(sizes) == 7
    assert min(sizes, key=lambda name: sizes[name]) == "chat"
    assert max(sizes, key=lambda name: sizes[name]) == "complete"


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_an_example_begins_by_saying_what_it_is_for(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize(("path", "service"), SERVICES)
def test_an_example_conforms_to_the_schema(path: Path, service: dict[str, Any]) -> None:
    assert not problems(service)


@pytest.mark.parametrize(
    ("change", "field"), [({"replica": 1}, "replica"), ({"replicas": "1"}, "replicas"), ({"replicas": -1}, "replicas")]
)
def test_the_check_of_the_examples_finds_mistakes(change: dict[str, Any], field: str) -> None:
    ((_, chat),) = [(path, service) for path, service in SERVICES if path.stem == "chat"]
    (problem,) = problems({**chat, "spec": {**chat["spec"], **change}})
    assert field in problem


def test_no_two_objects_of_the_examples_have_the_same_name() -> None:
    """So that all of them can be applied to one namespace."""
    names = [(one["kind"], one["metadata"]["name"]) for path in EXAMPLES for one in documents(path)]
    assert len(names) == len(set(names))


def paths_of(value: Any, path: str = "") -> set[str]:
    """Return the path of everything in a manifest, written as `support_crds.fields` writes it."""
    found = {path}
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= paths_of(inner, f"{path}.{key}" if path else key) | paths_of(inner, f"{path}{{}}")
    if isinstance(value, list):
        found |= {each for inner in value for each in paths_of(inner, f"{path}[]")}
    return found


def test_the_examples_together_have_every_field_that_does_something() -> None:
    shown = {path for _, service in SERVICES for path in paths_of(service)}
    # A rule that is written apart has the same fields as one in a service.
    policies = [service["spec"] for _, service in SERVICES if service["kind"] == "AutoscalingPolicy"]
    shown |= {f"spec.autoscaling.{path}" for policy in policies for path in paths_of(policy)}
    later: list[str] = []
    missing = []
    for each in fields("InferenceService"):
        if each.path.startswith(tuple(later)) or not each.path.startswith("spec"):
            continue
        if "Not built yet" in each.node["description"]:
            later.append(each.path)
        elif each.path not in shown:
            missing.append(each.path)
    assert not missing
