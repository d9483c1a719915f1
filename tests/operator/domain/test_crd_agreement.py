"""The operator reads what the schema in ``crds/`` lets through, with the same defaults, and writes what it allows."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from support_crds import EXAMPLES, field, fields, problems, rules, schema, services
from support_operator import ALL_APIS, NOW, SETTINGS, a_service, seen

from sapwood_contract.launch import HINTS, flag
from sapwood_contract.routing import POLICIES, Authentication, CacheSharing
from sapwood_operator.domain import launch
from sapwood_operator.domain.names import KIND, MAX_NAME_CHARACTERS
from sapwood_operator.domain.plan import StatusChange, plan
from sapwood_operator.domain.spec import EVICTIONS, SCHEDULERS, ServiceSpec, read
from sapwood_operator.domain.unsupported import NOT_BUILT, unsupported_fields


def with_defaults(node: Mapping[str, Any], value: Any) -> Any:
    """Return ``value`` as the API server completes it."""
    if isinstance(value, list):
        return [with_defaults(node["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    completed = dict(value)
    for name, child in node.get("properties", {}).items():
        if name not in completed and "default" in child:
            completed[name] = copy.deepcopy(child["default"])
        if name in completed:
            completed[name] = with_defaults(child, completed[name])
    return completed


def completed(**spec: Any) -> dict[str, Any]:
    service = a_service(**spec)
    service["spec"] = with_defaults(schema(KIND)["properties"]["spec"], service["spec"])
    return service


def without_engine(spec: ServiceSpec) -> dict[str, Any]:
    """Everything but the engine's fields, whose absence means the engine's own default."""
    return {name: getattr(spec, name) for name in ServiceSpec.__slots__ if name != "engine"}


def test_the_schemas_defaults_are_those_of_operator_and_engine() -> None:
    bare, filled = read(a_service()), read(completed())
    assert completed() != a_service()
    assert without_engine(filled) == without_engine(bare)
    assert launch.launch_options(filled, SETTINGS) == launch.launch_options(bare, SETTINGS)


def test_a_default_of_the_schema_asks_for_nothing_that_is_not_built() -> None:
    assert unsupported_fields(completed()) == ()


def test_every_field_that_the_operator_calls_not_built_is_one_of_the_schema() -> None:
    for path, _ in NOT_BUILT:
        assert field(KIND, "spec." + path.partition("[")[0])


def test_every_field_that_the_schema_calls_not_built_is_one_that_the_operator_names() -> None:
    named = {f"spec.{path}" for path, _ in NOT_BUILT}
    told = {each.path for each in fields(KIND) if "not built yet" in each.node.get("description", "").lower()}
    promised = {path for path in told if path.startswith("spec.")}
    assert promised
    assert not {path for path in promised if not any(path == name or path.startswith(f"{name}.") for name in named)}


def test_the_schema_refuses_the_extra_arguments_that_the_operator_refuses() -> None:
    written = "".join(rule["rule"] for path, rule in rules(KIND) if path == "spec.engine.extraArgs[]")
    refused = re.search(r"\^--\((.*)\)=", re.sub(r"'\s*\+\s*'", "", written))
    assert refused
    named = {f"--{name}" for name in refused[1].split("|")} & {flag(name) for name in HINTS}
    assert named == {flag(name) for name in launch.RENDERED_OPTIONS}


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("spec.engine.scheduler.policy", set(SCHEDULERS)),
        ("spec.engine.kvCache.radix.evictionPolicy", set(EVICTIONS)),
        ("spec.observability.podMonitor", {"Auto", "Enabled", "Disabled"}),
        ("spec.routing.policy", set(POLICIES)),
        ("spec.tenancy.authentication", set(get_args(Authentication))),
        ("spec.tenancy.cacheSharing", set(get_args(CacheSharing))),
        ("spec.engine.device", {"Auto", "CPU", "CUDA"}),
    ],
)
def test_both_know_the_same_choices(path: str, known: set[str]) -> None:
    assert set(field(KIND, path).node["enum"]) == known


def test_both_have_the_same_longest_name() -> None:
    assert any(f"size() <= {MAX_NAME_CHARACTERS}" in rule["rule"] for path, rule in rules(KIND) if path == "")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_becomes_pods_and_asks_for_nothing_that_is_not_built(path: Path) -> None:
    for document in services(path):
        if document["kind"] != KIND:
            continue
        service = completed(**document["spec"])
        service["metadata"]["name"] = document["metadata"]["name"]
        step = plan(seen(service, apis=ALL_APIS), SETTINGS, NOW)
        assert "Deployment" in {child["kind"] for child in step.applies}
        assert unsupported_fields(service) == ()


@pytest.mark.parametrize(
    "service",
    [
        a_service(),
        a_service(replicas=3, exposure={"ingress": {"host": "chat.example.com"}}),
        a_service(tenancy={"authentication": "ApiKey"}),
        a_service(engine={"extraArgs": ["--nonsense=1"]}),
    ],
    ids=["new", "degraded", "without an address", "refused"],
)
def test_every_status_is_one_that_the_schema_allows(service: dict[str, Any]) -> None:
    step = plan(seen(service), SETTINGS, NOW)
    assert isinstance(step.status, StatusChange)
    assert problems({**completed(), "status": step.status.status}) == []
