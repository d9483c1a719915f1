"""What every child has in common: names, labels, and the owner reference by which it is deleted with its service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sapwood_operator.domain import names
from sapwood_operator.domain.spec import ServiceSpec


def child(
    api_version: str,
    kind: str,
    name: str,
    service: ServiceSpec,
    /,
    *,
    labels: Iterable[tuple[str, str]] = (),
    **body: Any,
) -> dict[str, Any]:
    """Return an object of ``service``; ``body``: its fields beside ``metadata``, ``labels``: further ones than ours."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": service.namespace,
            "labels": {**dict(labels), **names.labels(service.name)},
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.KIND,
                    "name": service.name,
                    "uid": service.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **body,
    }
