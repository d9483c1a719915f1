"""APIs that a cluster may lack, as their projects publish them: installed while a test runs, and gone after it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import yaml

from cluster.definitions import GATEWAY_API, PROMETHEUS_OPERATOR, Definitions
from operator_setup import DEFINITIONS, install_definition
from world import World, eventually

MONITORING = "/apis/monitoring.coreos.com/v1"
GATEWAY = "/apis/gateway.networking.k8s.io"
POD_MONITORS = (PROMETHEUS_OPERATOR, "monitoring.coreos.com_podmonitors.yaml")
PROMETHEUS_RULES = (PROMETHEUS_OPERATOR, "monitoring.coreos.com_prometheusrules.yaml")
HTTP_ROUTES = (GATEWAY_API, "gateway.networking.k8s.io_httproutes.yaml")
REFERENCE_GRANTS = (GATEWAY_API, "gateway.networking.k8s.io_referencegrants.yaml")
Api = tuple[Definitions, str]
"""Where a CRD is published."""


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: ``=`` alone is a string, which YAML 1.1 had a type of its own for."""


def _text(_loader: yaml.CSafeLoader, node: yaml.ScalarNode) -> str:
    return str(node.value)


_Loader.add_constructor("tag:yaml.org,2002:value", _text)


@cache
def _manifest(api: Api) -> dict[str, Any]:
    definitions, name = api
    text = definitions.paths(os.environ)[name].read_text(encoding="utf-8")
    manifest: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return manifest


def remove(world: World, apis: Sequence[Api]) -> None:
    """Delete CRDs with all their objects, and return once they are gone."""
    paths = [f"{DEFINITIONS}/{_manifest(api)['metadata']['name']}" for api in apis]
    for path in paths:
        world.delete(path)
    eventually(lambda: not any(map(world.get, paths)), f"{paths} gone", within_seconds=60)


@contextmanager
def installed(world: World, *apis: Api) -> Iterator[None]:
    """Install CRDs for as long as the context lasts; they may be removed within it."""
    try:
        for api in apis:
            install_definition(world, _manifest(api))
        yield
    finally:
        remove(world, apis)
