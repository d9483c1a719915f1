"""``spec.podTemplate`` laid over the pod that the operator makes, as a strategic merge patch.

Objects are merged field by field, null removes a field. Lists that Kubernetes gives a merge key are merged item by item
(containers by name, mounts by path…), ``$patch: delete`` removes an item; other lists, tolerations and args among them,
are replaced. ``$patch: replace`` replaces an object or a list. A volume or variable that names a source replaces the
one of its name whole, for it has one source.

Source: the ``patchMergeKey`` and ``patchStrategy`` tags of the core/v1 types of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sapwood_operator.domain import names
from sapwood_operator.errors import InvalidSpec

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""Lists of a pod template, or of metadata, that are merged item by item, and by which field. No two have one name."""

_ONE_SOURCE = ("volumes", "env")
_DIRECTIVE = "$patch"
_PATH = "spec.podTemplate"


def overlay(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``template`` (a PodTemplateSpec) with ``patch`` over it.

    Raises `InvalidSpec` for what is no such patch, for one without the engine's container, and for one that changes a
    label by which the pods are found. What Kubernetes itself does not accept, its API server refuses later.
    """
    for name in patch:
        if name not in ("metadata", "spec"):
            raise InvalidSpec(f"{_PATH}.{name}", patch[name], "a pod template has metadata and spec")
    merged = _merge_objects(template, patch, _PATH)
    labels = merged.get("metadata", {}).get("labels") or {}
    for label, value in template["metadata"]["labels"].items():
        if labels.get(label) != value:
            raise InvalidSpec(f"{_PATH}.metadata.labels", labels.get(label), f"{label} has to stay {value!r}")
    containers = merged.get("spec", {}).get("containers") or ()
    if not any(container.get("name") == names.ENGINE_CONTAINER for container in containers):
        raise InvalidSpec(f"{_PATH}.spec.containers", [c.get("name") for c in containers], "keep the container engine")
    return merged


def _merge_objects(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    directive = patch.get(_DIRECTIVE, "merge")
    if directive not in ("merge", "replace"):
        raise InvalidSpec(f"{path}.{_DIRECTIVE}", directive, "take merge or replace here; null removes a field")
    merged = {} if directive == "replace" else dict(base)
    for name, value in patch.items():
        if name == _DIRECTIVE:
            continue
        if name.startswith("$"):
            raise InvalidSpec(f"{path}.{name}", value, f"of the directives only {_DIRECTIVE} is understood")
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value, name, f"{path}.{name}")
    return merged


def _merge(base: Any, patch: Any, name: str, path: str) -> Any:
    if isinstance(patch, Mapping):
        if base is not None and not isinstance(base, Mapping):
            raise InvalidSpec(path, patch, f"it is no object but a {type(base).__name__}")
        return _merge_objects(base or {}, patch, path)
    if isinstance(patch, Sequence) and not isinstance(patch, str):
        if base is not None and (isinstance(base, str) or not isinstance(base, Sequence)):
            raise InvalidSpec(path, patch, f"it is no list but a {type(base).__name__}")
        return _merge_lists(base or (), patch, name, path)
    if isinstance(base, Mapping | list | tuple):
        raise InvalidSpec(path, patch, "give an object" if isinstance(base, Mapping) else "give a list")
    return patch


def _merge_lists(base: Sequence[Any], patch: Sequence[Any], name: str, path: str) -> list[Any]:
    items = [item for item in patch if not (isinstance(item, Mapping) and dict(item) == {_DIRECTIVE: "replace"})]
    key = MERGE_KEYS.get(name)
    if key is None:
        return [_merge(None, item, "", f"{path}[{index}]") for index, item in enumerate(items)]
    merged = {} if len(items) < len(patch) else {item[key]: item for item in base}
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        if not isinstance(item, Mapping) or not isinstance(item.get(key), str | int):
            raise InvalidSpec(where, item, f"an item of {name} has the field {key}")
        if item.get(_DIRECTIVE) == "delete":
            merged.pop(item[key], None)
            continue
        former = merged.get(item[key], {})
        if name in _ONE_SOURCE and len(item) > 1:
            former = {}
        merged[item[key]] = _merge_objects(former, item, where)
    return list(merged.values())
