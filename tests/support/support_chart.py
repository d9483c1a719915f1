"""Renders the chart as Helm 4 does, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, HelmError

CHART = Path("charts/sapwood")
QUOTA_STORE = "redis://:password@store.example:6379/0"
Manifest = Mapping[str, Any]


@cache
def chart() -> Chart:
    return Chart.load(CHART)


@cache
def schema() -> dict[str, Any]:
    """Return values.schema.json."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return found


def files(
    values: Mapping[str, Any] | None = None, *, release: str = "sapwood", namespace: str = "prod"
) -> dict[str, str]:
    """Return template path -> text; `HelmError` where Helm refuses the values."""
    return chart().render(dict(values or {}), name=release, namespace=namespace)


def render(
    values: Mapping[str, Any] | None = None, *, release: str = "sapwood", namespace: str = "prod"
) -> tuple[Manifest, ...]:
    """Return every object that an installation makes, hooks included."""
    return tuple(_objects(files(values, release=release, namespace=namespace)))


def _objects(rendered: Mapping[str, str]) -> Iterator[Manifest]:
    for path, text in sorted(rendered.items()):
        if not path.endswith("NOTES.txt"):
            yield from filter(None, yaml.load_all(text, Loader=yaml.CSafeLoader))


def notes(values: Mapping[str, Any] | None = None) -> str:
    """Return what a user reads after the installation."""
    return files(values)["sapwood/templates/NOTES.txt"]


def refusal(values: Mapping[str, Any] | None = None, *, release: str = "sapwood") -> str:
    """Return the message with which Helm refuses to render."""
    try:
        files(values, release=release)
    except HelmError as error:
        return str(error)
    raise AssertionError(f"rendered with {values}")


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    """Return the objects of a kind by name, or by NAMESPACE/NAME where one is named in several namespaces."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    by_name = {manifest["metadata"]["name"]: manifest for manifest in found}
    if len(by_name) == len(found):
        return by_name
    return {f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}": manifest for manifest in found}


def pods(manifests: tuple[Manifest, ...]) -> dict[str, Mapping[str, Any]]:
    """Return the specs of all pods by the name of what makes them."""
    deployments = of_kind(manifests, "Deployment").items()
    return {name: deployment["spec"]["template"]["spec"] for name, deployment in deployments} | {
        name: pod["spec"] for name, pod in of_kind(manifests, "Pod").items()
    }


def arguments(manifests: tuple[Manifest, ...], program: str, *, release: str = "sapwood") -> list[str]:
    """Return what the ``program`` (operator, gateway) is started with, without its name, the address of a store for
    quotas put in as a node does.
    """
    name, *found = pods(manifests)[f"{release}-{program}"]["containers"][0]["args"]
    assert name == program
    return [str(argument).replace("$(QUOTA_STORE)", QUOTA_STORE) for argument in found]
