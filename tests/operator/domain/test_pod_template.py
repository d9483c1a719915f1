"""``spec.podTemplate`` over the operator's pod, by the rules of a strategic merge patch."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_operator.domain.pod_template import overlay
from sapwood_operator.errors import InvalidSpec

BASE: dict[str, Any] = {
    "metadata": {"labels": {"app.kubernetes.io/instance": "chat"}},
    "spec": {
        "serviceAccountName": "chat-engine",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
        "containers": [
            {
                "name": "engine",
                "image": "engine:1",
                "args": ["serve", "--host=0.0.0.0"],
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {}}}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            }
        ],
        "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    },
}


def engine_with(**fields: Any) -> dict[str, Any]:
    """The pod with a patch of the engine's container; returns that container."""
    merged = overlay(BASE, {"spec": {"containers": [{"name": "engine", **fields}]}})
    (container,) = merged["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_an_empty_template_changes_nothing() -> None:
    assert overlay(BASE, {}) == BASE


def test_what_is_laid_over_is_left_as_it_was() -> None:
    patch = {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}}
    overlay(BASE, patch)
    assert BASE["spec"]["containers"][0]["env"][0] == {"name": "HOME", "value": "/tmp"}
    assert len(BASE["spec"]["containers"][0]["env"]) == 2


def test_a_field_is_replaced_and_its_neighbours_stay() -> None:
    merged = overlay(BASE, {"spec": {"securityContext": {"runAsUser": 1}, "runtimeClassName": "nvidia"}})
    assert merged["spec"]["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1}
    assert merged["spec"]["runtimeClassName"] == "nvidia"
    assert merged["spec"]["serviceAccountName"] == "chat-engine"


def test_null_removes_a_field() -> None:
    assert "securityContext" not in overlay(BASE, {"spec": {"securityContext": None}})["spec"]


def test_a_container_is_merged_by_its_name() -> None:
    assert engine_with(tty=True)["image"] == "engine:1"


def test_a_container_of_another_name_comes_beside_the_engine() -> None:
    merged = overlay(BASE, {"spec": {"containers": [{"name": "sidecar", "image": "s:1"}]}})
    assert [c["name"] for c in merged["spec"]["containers"]] == ["engine", "sidecar"]


def test_variables_are_merged_by_name_and_one_has_one_source() -> None:
    env = engine_with(env=[{"name": "HF_TOKEN", "value": "x"}, {"name": "NEW", "value": "y"}])["env"]
    assert env == [{"name": "HOME", "value": "/tmp"}, {"name": "HF_TOKEN", "value": "x"}, {"name": "NEW", "value": "y"}]


def test_mounts_are_merged_by_path_and_ports_by_number() -> None:
    container = engine_with(
        volumeMounts=[{"mountPath": "/cache", "subPath": "a"}, {"name": "data", "mountPath": "/data"}],
        ports=[{"containerPort": 8000, "hostPort": 80}],
    )
    assert container["volumeMounts"] == [
        {"name": "cache", "mountPath": "/cache", "subPath": "a"},
        {"name": "data", "mountPath": "/data"},
    ]
    assert container["ports"] == [{"name": "http", "containerPort": 8000, "hostPort": 80}]


def test_a_volume_has_one_source() -> None:
    merged = overlay(BASE, {"spec": {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]}})
    assert merged["spec"]["volumes"] == [
        {"name": "cache", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "tmp", "emptyDir": {}},
    ]


def test_lists_without_a_merge_key_are_replaced() -> None:
    assert engine_with(args=["serve"])["args"] == ["serve"]
    assert overlay(BASE, {"spec": {"tolerations": [{"key": "spot"}]}})["spec"]["tolerations"] == [{"key": "spot"}]


def test_patch_delete_removes_an_item() -> None:
    merged = overlay(BASE, {"spec": {"volumes": [{"name": "tmp", "$patch": "delete"}]}})
    assert merged["spec"]["volumes"] == [{"name": "cache", "emptyDir": {}}]


def test_patch_replace_replaces_an_object() -> None:
    merged = overlay(BASE, {"spec": {"securityContext": {"$patch": "replace", "runAsUser": 7}}})
    assert merged["spec"]["securityContext"] == {"runAsUser": 7}


def test_patch_replace_replaces_a_list() -> None:
    assert engine_with(env=[{"name": "ONLY", "value": "1"}, {"$patch": "replace"}])["env"] == [
        {"name": "ONLY", "value": "1"}
    ]


def test_labels_and_annotations_are_added() -> None:
    merged = overlay(BASE, {"metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}}})
    assert merged["metadata"] == {
        "labels": {"app.kubernetes.io/instance": "chat", "team": "a"},
        "annotations": {"x": "y"},
    }


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"status": {}}, "spec.podTemplate.status: .* has metadata and spec"),
        ({"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}, "has to stay 'chat'"),
        ({"metadata": {"labels": None}}, "has to stay 'chat'"),
        ({"metadata": {"$patch": "replace"}}, "has to stay 'chat'"),
        ({"spec": {"containers": [{"name": "engine", "$patch": "delete"}]}}, "keep the container engine"),
        ({"spec": {"containers": [{"image": "x"}]}}, r"spec.podTemplate.spec.containers\[0\]: .* has the field name"),
        ({"spec": {"containers": ["engine"]}}, r"spec.podTemplate.spec.containers\[0\]: 'engine'"),
        ({"spec": {"containers": {"name": "engine"}}}, "spec.podTemplate.spec.containers: .* no object"),
        ({"spec": {"containers": "engine"}}, "spec.podTemplate.spec.containers: .* give a list"),
        ({"spec": {"securityContext": []}}, "spec.podTemplate.spec.securityContext: .* no list"),
        ({"spec": {"securityContext": True}}, "spec.podTemplate.spec.securityContext: True .* give an object"),
        ({"spec": {"$retainKeys": []}}, r"spec.podTemplate.spec.\$retainKeys: .* only \$patch"),
        ({"spec": {"$patch": "delete"}}, "take merge or replace here"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:40],
)
def test_what_is_no_patch_of_a_pod_is_refused_by_its_path(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        overlay(BASE, patch)
