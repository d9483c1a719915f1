"""A container's environment variables, from its specification and the objects that it refers to. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

_REFERENCE = re.compile(r"\$\$|\$\(([^)]+)\)")
_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """A container refers to something that is not there; the message is the kubelet's."""


class Sources(Protocol):
    """The ConfigMaps and Secrets of the pod's namespace."""

    def read(self, kind: str, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return the data of a ``configMap`` or ``secret``; empty if it is missing and ``optional``, else
        `ConfigError`."""
        ...


def variables(
    pod: Mapping[str, Any], container: Mapping[str, Any], sources: Sources, defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment: ``defaults``, then ``envFrom``, then ``env`` in its order, where each value may use
    ``$(NAME)`` of those before it.

    ``pod`` has the addresses in its status. Raises `ConfigError`.
    """
    found = dict(defaults)
    for source in container.get("envFrom", []):
        kind, reference = (
            ("secret", source["secretRef"]) if "secretRef" in source else ("configMap", source["configMapRef"])
        )
        data = sources.read(kind, reference["name"], optional=reference.get("optional", False))
        found |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
    for variable in container.get("env", []):
        if "valueFrom" not in variable:
            found[variable["name"]] = expand(variable.get("value", ""), found)
        else:
            found |= _from(pod, container, variable["name"], variable["valueFrom"], sources)
    return found


def references_of(container: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return (kind, name) of each ConfigMap (``configMap``) and Secret (``secret``) that the environment needs."""
    sources = [*container.get("envFrom", []), *(variable.get("valueFrom", {}) for variable in container.get("env", []))]
    kinds = {
        "secretRef": "secret",
        "configMapRef": "configMap",
        "secretKeyRef": "secret",
        "configMapKeyRef": "configMap",
    }
    return {(kinds[key], source[key]["name"]) for source in sources for key in source if key in kinds}


def _from(
    pod: Mapping[str, Any], container: Mapping[str, Any], name: str, source: Mapping[str, Any], sources: Sources
) -> dict[str, str]:
    if "fieldRef" in source:
        return {name: field_of(pod, source["fieldRef"]["fieldPath"])}
    if "resourceFieldRef" in source:
        return {name: resource_of(container, source["resourceFieldRef"]["resource"])}
    kind, reference = (
        ("secret", source["secretKeyRef"]) if "secretKeyRef" in source else ("configMap", source["configMapKeyRef"])
    )
    optional = reference.get("optional", False)
    data = sources.read(kind, reference["name"], optional=optional)
    if reference["key"] in data:
        return {name: data[reference["key"]].decode()}
    if optional:
        return {}
    shown = {"secret": "Secret", "configMap": "ConfigMap"}[kind]
    where = f"{shown} {pod['metadata']['namespace']}/{reference['name']}"
    raise ConfigError(f"couldn't find key {reference['key']} in {where}")


def expand(text: str, known: Mapping[str, str]) -> str:
    """Return ``text`` with ``$(NAME)`` replaced; ``$$`` is a dollar, and an unknown name stays as it is."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def field_of(pod: Mapping[str, Any], path: str) -> str:
    """Return a field of the pod as the downward API gives it; empty where the pod has no such field."""
    entry = _MAP_FIELD.fullmatch(path)
    if entry:
        return str(pod["metadata"].get(entry[1], {}).get(entry[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = pod["metadata"].get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))
    found: Any = pod
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, Mapping) else ""
    return str(found)


def resource_of(container: Mapping[str, Any], path: str) -> str:
    """Return ``limits.cpu`` and the like as written; a kubelet would fill in the node's size where it is absent."""
    kind, _, resource = path.partition(".")
    return str(container.get("resources", {}).get(kind, {}).get(resource, ""))
