"""Tenants from a file that changes, beside those of the cluster; and secrets from files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapwood_contract.trust import CREDENTIAL_HEADER, engine_credential
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey
from sapwood_gateway.core.tenants import Tenant, key_digest
from sapwood_gateway.shell.credentials import Credentials, Secrets, UnusableSecret, read_secrets
from sapwood_gateway.shell.tenant_sources import TenantDirectory, TenantFile, UnusableTenants

SECRET = b"0123456789abcdef0123456789abcdef"


def document(name: str, *, namespace: str | None = "team", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name} | ({} if namespace is None else {"namespace": namespace}),
        "spec": {"apiKeys": [{"name": "first", "sha256": key_digest(f"sk-{name}").hex()}], **spec},
    }


def write(path: Path, *documents: object) -> None:
    """As whoever replaces a file does: never seen half way."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n---\n".join(json.dumps(each) for each in documents))
    fresh.rename(path)


def names(directory: TenantDirectory) -> list[str]:
    return [tenant.id for tenant in directory.tenants.all]


def opened(path: Path) -> tuple[TenantDirectory, TenantFile]:
    directory = TenantDirectory()
    file = TenantFile(path, directory, default_namespace="static")
    file.look()
    return directory, file


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, document("acme"), document("beta", namespace=None))
    directory, file = opened(path)
    assert names(directory) == ["static/beta", "team/acme"]
    write(path, document("acme", suspended=True))
    file.look()
    assert names(directory) == ["team/acme"]
    found = directory.tenants.find("team", "sk-acme")
    assert isinstance(found, Tenant)
    assert found.is_suspended


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [1", "it is not YAML: line"),
        ("\t- x", "it is not YAML: line 1"),
        ('"\x00"', "it is not YAML"),
        ("- 5", "Tenant document 1 is passed over"),
        (json.dumps(document("acme", share=0)), "share: 0 is not a whole number"),
        (json.dumps({**document("acme"), "kind": "Tennant"}), "kind: 'Tennant'"),
        ("---\n".join(json.dumps(document("acme")) + "\n" for _ in range(2)), "they have one name"),
    ],
)
def test_a_version_with_a_problem_anywhere_is_not_taken_and_named_by_what_is_wrong(
    content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, document("acme"))
    directory, file = opened(path)
    path.write_text(content)
    with pytest.raises(UnusableTenants, match="(?s)" + words.replace("[", r"\[")) as refusal:
        file.look()
    assert names(directory) == ["team/acme"]
    assert "acme" not in str(refusal.value)
    file.look()  # the same version is not complained of twice
    path.unlink()
    with pytest.raises(UnusableTenants, match="cannot be read"):
        file.look()
    write(path, document("gamma"))
    file.look()
    assert names(directory) == ["team/gamma"]


def test_the_documents_of_other_kinds_that_examples_have_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, {"kind": "InferenceService", "spec": {}}, document("acme"), None)
    directory, _ = opened(path)
    assert names(directory) == ["team/acme"]


def test_a_tenant_of_the_file_takes_the_place_of_the_object_of_its_name() -> None:
    directory = TenantDirectory()
    in_secret: dict[str, Any] = {"apiKeys": [{"name": "k", "sha256SecretRef": {"name": "s"}}]}
    directory.take_cluster([document("acme", **in_secret), document("beta")])
    assert directory.tenants.find("team", "sk-beta") != directory.tenants.find("team", "sk-acme")
    directory.take_file([document("acme")])
    assert names(directory) == ["team/acme", "team/beta"]
    assert isinstance(directory.tenants.find("team", "sk-acme"), Tenant)


def test_an_object_of_the_cluster_that_cannot_be_read_is_logged_once_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = TenantDirectory()
    for _ in range(2):
        directory.take_cluster([document("acme", share=0), document("beta")])
    assert names(directory) == ["team/beta"]
    assert len(caplog.records) == 1
    assert "acme" not in caplog.text


# --- secrets


@pytest.mark.parametrize("option", ["--secret-file", "--engine-credential-file"])
@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_file_that_holds_no_secret_is_refused_by_its_option(
    option: str, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    files = (path, None) if option == "--secret-file" else (None, path)
    with pytest.raises(UnusableSecret, match=f"{option}: '.*secret'"):
        read_secrets(*files)


def test_a_secret_that_is_too_short_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hunter2\n")
    with pytest.raises(UnusableSecret) as refusal:
        read_secrets(path, None)
    assert "hunter2" not in str(refusal.value)


def test_secrets_show_in_no_text_of_themselves(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    secrets = read_secrets(path, path)
    assert secrets.installation == SECRET
    assert secrets.listed_engines == SECRET.decode()
    assert SECRET.decode() not in repr(secrets)


def service(name: str, authentication: Any) -> tuple[Service, Replica]:
    key = ServiceKey("team", name)
    url = f"http://127.0.0.{len(name)}"
    return Service(key, (name,), authentication=authentication), Replica(name, name, f"{url}:8000", f"{url}:8001")


def test_each_engine_of_a_service_that_wants_keys_is_shown_its_services_credential_and_no_other_is() -> None:
    (locked, at), (free, free_at) = service("locked", "ApiKey"), service("free", "None")
    routes = Routes({locked.key: locked, free.key: free}, {locked.key: (at,), free.key: (free_at,)})
    credentials = Credentials(Secrets(installation=SECRET), lambda: routes)
    own = engine_credential(SECRET, "team", "locked")
    assert (credentials.of(locked), credentials.of(free)) == (own, None)
    assert credentials.shown_to(at.id) == {CREDENTIAL_HEADER: own}
    assert credentials.shown_to(free_at.id) == {}
    assert credentials.shown_to("nobody") == {}
    nothing = Credentials(Secrets(), lambda: routes)
    assert (nothing.of(locked), nothing.shown_to(at.id)) == (None, {})


def test_who_names_the_address_of_another_services_engine_changes_nothing_of_what_that_engine_is_shown() -> None:
    (chat, at), (evil, _) = service("chat", "ApiKey"), service("evil", "ApiKey")
    same_address = replace(at, id="evil")
    routes = Routes({chat.key: chat, evil.key: evil}, {chat.key: (at,), evil.key: (same_address,)})
    credentials = Credentials(Secrets(installation=SECRET), lambda: routes)
    assert credentials.shown_to(at.id) == {CREDENTIAL_HEADER: engine_credential(SECRET, "team", "chat")}
    assert credentials.shown_to("evil") == {CREDENTIAL_HEADER: engine_credential(SECRET, "team", "evil")}


def test_what_is_shown_follows_the_routes() -> None:
    chat, at = service("chat", "ApiKey")
    of_now = [Routes()]
    credentials = Credentials(Secrets(installation=SECRET), lambda: of_now[-1])
    assert credentials.shown_to(at.id) == {}
    of_now.append(Routes({chat.key: chat}, {chat.key: (at,)}))
    assert credentials.shown_to(at.id) != {}


def test_listed_engines_are_shown_theirs_before_they_have_said_what_they_serve() -> None:
    credentials = Credentials(Secrets(listed_engines="c"), Routes)
    assert credentials.shown_to("http://127.0.0.1:8000") == {CREDENTIAL_HEADER: "c"}
