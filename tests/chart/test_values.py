"""values.schema.json says what every value means, bounds it, and lets nothing unknown through."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from support_chart import CHART, refusal, render, schema

Schema = Mapping[str, Any]


def nodes(found: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every schema inside ``found``, itself first."""
    yield path, found
    for group in ("properties", "$defs"):
        for name, member in found.get(group, {}).items():
            yield from nodes(member, f"{path}/{group}/{name}")
    for part in ("items", "additionalProperties", "propertyNames"):
        if isinstance(found.get(part), dict):
            yield from nodes(found[part], f"{path}/{part}")
    for number, branch in enumerate(found.get("anyOf", ())):
        yield from nodes(branch, f"{path}/anyOf/{number}")


NODES = dict(nodes(schema()))


def of_type(name: str) -> dict[str, Schema]:
    return {path: node for path, node in NODES.items() if name in node.get("type", ())}


def description(node: Schema) -> str:
    target = schema()["$defs"][node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else {}
    return str(node.get("description") or target.get("description", ""))


def test_every_object_is_closed_or_a_bounded_map() -> None:
    def is_closed(node: Schema) -> bool:
        return node["additionalProperties"] is False or {"maxProperties", "propertyNames"} <= set(node)

    assert not [path for path, node in of_type("object").items() if not is_closed(node)]


def test_every_string_list_and_number_is_bounded() -> None:
    bounds = {"string": {"maxLength"}, "array": {"maxItems"}, "integer": {"minimum", "maximum"}}
    assert not [path for name, needed in bounds.items() for path, node in of_type(name).items() if needed - set(node)]


def test_every_value_is_described_in_a_sentence() -> None:
    members = {path: node for path, node in NODES.items() if re.search(r"/properties/[^/]+$", path)}
    assert not [path for path, node in members.items() if not description(node).endswith(".")]


def test_every_value_has_a_default_and_every_default_a_schema() -> None:
    def same_keys(values: Mapping[str, Any], node: Schema, path: str = "") -> None:
        target = schema()["$defs"][node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else node
        if path and "$ref" in node:  # of Kubernetes: everything in it is optional
            return
        assert set(values) == set(target["properties"]), path
        for name, value in values.items():
            if "properties" in target["properties"][name]:
                same_keys(value, target["properties"][name], f"{path}/{name}")

    same_keys(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), schema())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gatway": {}}, "additional properties 'gatway' not allowed"),
    ({"gateway": {"replica": 3}}, "additional properties 'replica' not allowed"),
    ({"gateway": {"affinity": {"nodeAfinity": {}}}}, "additional properties 'nodeAfinity' not allowed"),
    ({"gateway": {"tolerations": [{"keys": "a"}]}}, "additional properties 'keys' not allowed"),
    ({"gateway": {"replicas": -1}}, "/gateway/replicas"),
    ({"operator": {"replicas": "2"}}, "/operator/replicas"),
    ({"operator": {"resources": {"limits": {"memory": "1 GB"}}}}, "/operator/resources/limits/memory"),
    ({"images": {"pullPolicy": "Sometimes"}}, "'Always', 'IfNotPresent', 'Never'"),
    ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
    ({"gateway": {"tenants": {"keySecrets": ["*"]}}}, "/gateway/tenants/keySecrets/0"),
    ({"gateway": {"tenants": {"keySecrets": [""]}}}, "/gateway/tenants/keySecrets/0"),
    ({"metrics": {"peers": [{}]}}, "/metrics/peers/0"),
    ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
    ({"metrics": {"labels": {"release": "a b"}}}, "/metrics/labels/release"),
    ({"metrics": {"rules": {"runbookUrl": "https://example.com/#alerts"}}}, "/metrics/rules/runbookUrl"),
    ({"operator": {"signals": {"source": "Graphite"}}}, "/operator/signals/source"),
    (
        {"operator": {"signals": {"source": "Prometheus", "prometheusUrl": "http://user:pass@prometheus:9090"}}},
        "/operator/signals/prometheusUrl",
    ),
    ({"gateway": {"tracing": {"endpoint": "collector:4317"}}}, "/gateway/tracing/endpoint"),
    ({"gateway": {"tracing": {"samplingRatio": 2}}}, "/gateway/tracing/samplingRatio"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda given: str(given)[:60])
def test_a_value_that_is_unknown_or_out_of_bounds_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    assert message in refusal(values)


def test_a_secret_of_the_registry_may_be_called_like_a_number() -> None:
    """It is allowed as a name, and YAML must not read it as anything else."""
    (test,) = [manifest for manifest in render({"images": {"pullSecrets": ["123"]}}) if manifest["kind"] == "Pod"]
    assert test["spec"]["imagePullSecrets"] == [{"name": "123"}]
