"""Fetches the ConfigMaps and Secrets that a pod refers to, as the node's own identity may."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.node.api import ApiError, NodeApi
from cluster.node.environment import ConfigError

_PLURALS = {"secret": "secrets", "configMap": "configmaps"}


@dataclass(frozen=True, slots=True)
class Objects:
    """What was there when it was fetched: (kind, name) -> data."""

    data: Mapping[tuple[str, str], Mapping[str, bytes]]

    def read(self, kind: str, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return one object's data; empty if it is missing and ``optional``, else `ConfigError`."""
        if (kind, name) in self.data:
            return self.data[kind, name]
        if optional:
            return {}
        raise ConfigError(f'{kind.lower()} "{name}" not found')


async def fetch(api: NodeApi, namespace: str, references: Iterable[tuple[str, str]]) -> Objects:
    """Read each object; what does not exist is absent from the result.

    Raises `ConfigError` where the node may not read one (yet: the authoriser learns of a pod after the node does) and
    `ApiError` for anything else.
    """
    found = {}
    for kind, name in references:
        try:
            answer = await api.get(f"/api/v1/namespaces/{namespace}/{_PLURALS[kind]}/{name}")
        except ApiError as error:
            if error.status == 403:
                raise ConfigError(error.message) from error
            if error.status != 404:
                raise
            continue
        found[kind, name] = _data_of(kind, answer)
    return Objects(found)


def _data_of(kind: str, answer: Mapping[str, Any]) -> dict[str, bytes]:
    data = answer.get("data") or {}
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (answer.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in data.items()} | binary


async def token(api: NodeApi, pod: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    """Return a new token of the pod's service account, bound to the pod."""
    metadata = pod["metadata"]
    account = pod["spec"].get("serviceAccountName", "default")
    spec: dict[str, Any] = {
        "expirationSeconds": source.get("expirationSeconds", 3600),
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
    }
    if source.get("audience"):
        spec["audiences"] = [source["audience"]]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
    return str((await api.create(path, body))["status"]["token"]).encode()
