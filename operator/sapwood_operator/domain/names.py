"""Names and labels of what belongs to an InferenceService.

A name of 40 characters leaves room for every suffix, ours and those of Deployments and ReplicaSets, within the 63 that
Kubernetes allows. So child names are never cut or hashed: they are the same at each reconcile. Nor do two services meet
in one: a service's address has its own name, so no service has a name that ends as another one's headless Service does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sapwood_contract.routing import COMPONENT_LABEL, SERVICE_LABEL
from sapwood_operator.errors import InvalidSpec

API_VERSION = "serving.sapwood.dev/v1alpha1"
KIND = "InferenceService"
FIELD_MANAGER = "sapwood-operator"

MAX_NAME_CHARACTERS = 40
ENGINE_CONTAINER = "engine"
NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
PART_OF_LABEL = "app.kubernetes.io/part-of"
APPLIED_ANNOTATION = "serving.sapwood.dev/applied"
"""On every child: hash of the object that was last applied."""

_ENGINE = "-engine"
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def check_name(name: str) -> str:
    """Return ``name``; raises `InvalidSpec` for one that child names cannot be made of."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidSpec("metadata.name", name, f"it has {len(name)} characters; take at most {MAX_NAME_CHARACTERS}")
    if not _DNS_1035.fullmatch(name):
        raise InvalidSpec(
            "metadata.name",
            name,
            "begin with a lower case letter; then lower case letters, digits and '-', no '-' last",
        )
    if name.endswith(_ENGINE):
        other = name.removesuffix(_ENGINE)
        raise InvalidSpec(
            "metadata.name", name, f"a service called {other!r} makes a Service of that name; choose another ending"
        )
    return name


def engine(name: str) -> str:
    """Deployment, headless Service, ServiceAccount and whatever else is about the pods."""
    return name + _ENGINE


def routing(name: str) -> str:
    """The ConfigMap that the gateway reads."""
    return f"{name}-routing"


def selector(name: str) -> dict[str, str]:
    """Labels that the service's engine pods have and no other pod; a Deployment's selector can never change."""
    return {NAME_LABEL: "sapwood", COMPONENT_LABEL: "engine", INSTANCE_LABEL: name}


def labels(name: str) -> dict[str, str]:
    """Labels of every child, and of the pods."""
    return selector(name) | {MANAGED_BY_LABEL: FIELD_MANAGER, PART_OF_LABEL: "sapwood", SERVICE_LABEL: name}


def selector_text(selected: Mapping[str, str]) -> str:
    """Return a label selector as ``/scale`` shows it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selected.items()))
