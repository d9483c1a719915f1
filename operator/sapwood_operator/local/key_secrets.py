"""What the gateway is told of Secrets: the hashes that Tenants name in them, and nothing else that they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sapwood_operator.local.command import secret_content
from sapwood_operator.local.world import JsonObject

_SHA256 = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeySecrets:
    """Secrets for the gateway, and which keys it will not know, in sentences that quote nothing of ``apiKeys``."""

    objects: tuple[JsonObject, ...] = ()
    problems: tuple[str, ...] = ()


def key_secrets(tenants: Iterable[JsonObject], secrets: Iterable[JsonObject]) -> KeySecrets:
    """Return what ``tenants`` name of ``secrets``, which are all that there are."""
    contents = {(each["metadata"]["namespace"], each["metadata"]["name"]): secret_content(each) for each in secrets}
    found: dict[tuple[str, str], dict[str, str]] = {}
    problems: list[str] = []
    for tenant in tenants:
        for index, key in enumerate(tenant["spec"].get("apiKeys") or ()):
            reference = key.get("sha256SecretRef")
            if reference is None:
                continue
            place, meant = (tenant["metadata"]["namespace"], reference["name"]), reference.get("key", "sha256")
            value = contents.get(place, {}).get(meant, b"").strip()
            if _SHA256.fullmatch(value):
                found.setdefault(place, {})[meant] = value.decode()
            else:
                problem = _problem(contents.get(place), meant)
                problems.append(f"Tenant {tenant['metadata']['name']}: apiKeys[{index}].sha256SecretRef: {problem}")
    return KeySecrets(tuple(_secret(*place, hashes) for place, hashes in sorted(found.items())), tuple(problems))


def _problem(content: Mapping[str, bytes] | None, meant: str) -> str:
    if content is None:
        return "its namespace has no Secret of that name; add it to the files"
    if meant not in content:
        return "the Secret has no such key; add it"
    return "what the Secret holds there is not 64 hexadecimal digits in lower case"


def _secret(namespace: str, name: str, hashes: Mapping[str, str]) -> JsonObject:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(hashes)}
