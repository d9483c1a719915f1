"""What of Secrets gets into the file by which the gateway knows Tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_local import Setting

from sapwood_gateway.core.file_objects import objects_of
from sapwood_gateway.core.tenant_documents import tenants_of
from sapwood_gateway.core.tenant_secrets import secrets_among, with_hashes
from sapwood_gateway.core.tenants import key_digest
from sapwood_operator.local.key_secrets import key_secrets

HASH = key_digest("sk-acme").hex()


def tenant(key: str, secret: str = "tenant-keys", namespace: str = "default") -> dict[str, Any]:
    keys = [{"name": "k", "sha256SecretRef": {"name": secret, "key": key}}]
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": f"tenant-{key}", "namespace": namespace},
        "spec": {"apiKeys": keys},
    }


def secret(name: str = "tenant-keys", **content: str) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "stringData": content}


def test_the_gateway_is_told_the_hashes_that_tenants_name_and_nothing_else_of_a_secret(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    secrets = (secret(acme=HASH + "\n", other="MARKER"), secret("token", token="MARKER"))
    setting.give(tenants=(tenant("acme"),), secrets=secrets)
    assert "MARKER" not in (tmp_path / "discovery.json").read_text()
    told = objects_of([*setting.discovered("Tenant"), *setting.discovered("Secret")])
    filled = with_hashes(told.tenants, secrets_among(told.secrets, told.tenants))
    assert tenants_of(filled.documents).tenants.all[0].key_digests == {key_digest("sk-acme")}


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (tenant("acme", secret="none"), "its namespace has no Secret of that name; add it to the files"),
        (tenant("acme", namespace="team"), "its namespace has no Secret of that name; add it to the files"),
        (tenant("none"), "the Secret has no such key; add it"),
        (tenant("plain"), "what the Secret holds there is not 64 hexadecimal digits in lower case"),
    ],
)
def test_a_key_that_the_gateway_will_not_know_is_told_without_what_a_secret_holds(
    named: dict[str, Any], problem: str
) -> None:
    found = key_secrets([named], [secret(acme=HASH, plain="MARKER")])
    assert found.objects == ()
    assert found.problems == (f"Tenant {named['metadata']['name']}: apiKeys[0].sha256SecretRef: {problem}",)
