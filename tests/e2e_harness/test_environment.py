"""A container's environment variables."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.node.environment import ConfigError, expand, field_of, references_of, variables
from cluster.node.objects import Objects

POD: dict[str, Any] = {
    "metadata": {"name": "chat-0", "namespace": "default", "labels": {"app": "chat"}, "annotations": {"a/b": "c"}},
    "spec": {"nodeName": "node-1"},
    "status": {"podIP": "10.77.1.10"},
}
OBJECTS = Objects({("configMap", "settings"): {"LEVEL": b"debug"}, ("secret", "hub"): {"token": b"s3cret"}})


def resolve(container: dict[str, Any]) -> dict[str, str]:
    return variables(POD, container, OBJECTS, {"HOME": "/"})


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$(A)-$(B)", "1-2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$A ${A}", "$A ${A}"),
        ("$$$(A)", "$1"),
    ],
)
def test_references_are_replaced_as_the_kubelet_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


def test_a_value_sees_the_variables_before_it() -> None:
    env = [{"name": "A", "value": "$(B)"}, {"name": "B", "value": "2"}, {"name": "C", "value": "$(B)$(HOME)"}]
    assert resolve({"env": env}) == {"HOME": "/", "A": "$(B)", "B": "2", "C": "2/"}


def test_values_come_from_the_pod_and_from_objects() -> None:
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "absent", "optional": True}}},
        {"name": "GPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.nvidia.com/gpu"}}},
    ]
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "LOG_"}],
        "env": env,
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    expected = {"LOG_LEVEL": "debug", "POD": "chat-0", "IP": "10.77.1.10", "TOKEN": "s3cret", "GPUS": "1"}
    assert resolve(container) == {"HOME": "/"} | expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secret "gone" not found'),
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, 'configmap "gone" not found'),
        ({"secretKeyRef": {"name": "hub", "key": "k"}}, "couldn't find key k in Secret default/hub"),
    ],
)
def test_what_is_missing_is_named_as_the_kubelet_names_it(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve({"env": [{"name": "X", "valueFrom": source}]})
    assert str(raised.value) == message


def test_all_references_are_found() -> None:
    container = {
        "envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "b"}}],
        "env": [
            {"name": "X", "value": "1"},
            {"name": "Y", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "Z", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }
    assert references_of(container) == {("secret", "a"), ("configMap", "b"), ("configMap", "c")}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.labels['app']", "chat"),
        ("metadata.annotations['a/b']", "c"),
        ("metadata.labels['absent']", ""),
        ("metadata.labels", 'app="chat"'),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", ""),
    ],
)
def test_the_downward_api_gives_a_field_as_text(path: str, value: str) -> None:
    assert field_of(POD, path) == value
