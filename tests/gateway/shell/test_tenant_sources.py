"""Tenants from a file that changes, beside those of the cluster; and secrets from files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapwood_contract.trust import CREDENTIAL_HEADER, engine_credential
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey
from sapwood_gateway.core.tenant_secrets import NO_SECRET, Hashes, KnownSecrets, SecretName, Unreadable
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


def look(file: TenantFile) -> None:
    """Look as often as it takes until a file that stays as it is counts."""
    file.look()
    file.look()


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
    look(file)
    assert names(directory) == ["team/acme"]
    found = directory.tenants.find("team", "sk-acme")
    assert isinstance(found, Tenant)
    assert found.is_suspended


def test_a_file_that_is_being_written_does_not_count_before_it_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, document("acme", suspended=True))
    directory, file = opened(path)
    for text in ("", json.dumps(document("acme")), json.dumps(document("acme", share=4))):
        path.write_text(text)
        file.look()
        assert [tenant.is_suspended for tenant in directory.tenants.all] == [True]
    file.look()
    assert [tenant.share for tenant in directory.tenants.all] == [4]


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [1", "it is not YAML: line"),
        ("\t- x", "it is not YAML: line 1"),
        ('"\x00"', "it is not YAML"),
        ("", "there is no document in it; suspend tenants"),
        ("# nothing\n---\n", "there is no document in it"),
        (ALIASES, "its aliases stand for more than"),
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
        look(file)
    assert names(directory) == ["team/acme"]
    assert "acme" not in str(refusal.value)
    file.look()  # the same version is not complained of twice
    path.unlink()
    with pytest.raises(UnusableTenants, match="cannot be read"):
        file.look()
    write(path, document("gamma"))
    look(file)
    assert names(directory) == ["team/gamma"]


def test_the_documents_of_other_kinds_that_examples_have_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, {"kind": "InferenceService", "spec": {}}, document("acme"), None)
    directory, _ = opened(path)
    assert names(directory) == ["team/acme"]


def test_a_tenant_of_the_file_takes_the_place_of_the_object_of_its_name() -> None:
    directory = TenantDirectory()
    in_secret: dict[str, Any] = {"apiKeys": [{"name": "k", "sha256SecretRef": {"name": "s"}}]}
    directory.take_cluster([document("acme", **in_secret), document("beta")], {})
    assert directory.tenants.find("team", "sk-beta") != directory.tenants.find("team", "sk-acme")
    directory.take_file([document("acme")])
    assert names(directory) == ["team/acme", "team/beta"]
    assert isinstance(directory.tenants.find("team", "sk-acme"), Tenant)


def test_an_object_of_the_cluster_that_cannot_be_read_is_logged_once_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = TenantDirectory()
    for _ in range(2):
        directory.take_cluster([document("acme", share=0), document("beta")], {})
    assert names(directory) == ["team/beta"]
    assert len(caplog.records) == 1
    assert "acme" not in caplog.text


# --- keys in Secrets

IN_SECRET: dict[str, Any] = {"apiKeys": [{"name": "k", "sha256SecretRef": {"name": "tenant-keys", "key": "acme"}}]}
HASH = key_digest("sk-acme").hex()


def secret(content: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tenant-keys", **metadata},
        "stringData": content,
    }


def test_a_secret_in_the_file_of_tenants_holds_their_hashes_and_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, document("acme", namespace=None, **IN_SECRET), secret({"acme": HASH}))
    directory, file = opened(path)
    assert isinstance(directory.tenants.find("static", "sk-acme"), Tenant)
    write(path, document("acme", namespace=None, **IN_SECRET), secret({"acme": key_digest("sk-new").hex()}))
    look(file)
    assert isinstance(directory.tenants.find("static", "sk-new"), Tenant)
    assert not isinstance(directory.tenants.find("static", "sk-acme"), Tenant)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([], "its namespace has no Secret of that name"),
        ([secret({"acme": HASH}, namespace="elsewhere")], "its namespace has no Secret of that name"),
        ([secret({"other": HASH}, namespace="team")], "the Secret has no such key"),
        ([secret({"acme": "sk-acme"}, namespace="team")], "is not 64 hexadecimal digits"),
    ],
)
def test_a_file_whose_tenants_name_what_its_secrets_do_not_hold_is_not_taken(
    others: list[dict[str, Any]], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, document("acme", **IN_SECRET), *others)
    with pytest.raises(UnusableTenants, match=r"Tenant document 1: apiKeys\[0\].sha256SecretRef: ") as refusal:
        opened(path)
    assert reason in str(refusal.value)
    assert "acme" not in str(refusal.value)


def test_a_key_whose_secret_cannot_be_read_is_logged_once_per_change_without_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = TenantDirectory()
    documents = [document("acme", **IN_SECRET), document("beta")]
    name = SecretName("team", "tenant-keys")
    steps: list[tuple[KnownSecrets, int, int]] = [
        ({}, 1, 0),
        ({name: Unreadable(NO_SECRET)}, 1, 1),
        ({name: Unreadable(NO_SECRET)}, 1, 1),
        ({name: Hashes({"acme": HASH})}, 2, 1),
        ({name: Hashes({}, frozenset({"acme"}))}, 1, 2),
    ]
    for secrets, num_known, num_told in steps:
        directory.take_cluster(documents, secrets)
        assert sum(len(tenant.key_digests) for tenant in directory.tenants.all) == num_known
        assert len(caplog.records) == num_told
    assert not any(word in caplog.text for word in ("acme", "tenant-keys", HASH))


def test_a_tenant_of_the_file_gets_no_hash_from_a_secret_of_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    write(path, document("acme"))
    directory, file = opened(path)
    of_cluster = {SecretName("team", "tenant-keys"): Hashes({"acme": HASH})}
    directory.take_cluster([document("beta", **IN_SECRET)], of_cluster)
    write(path, document("acme", **IN_SECRET))
    with pytest.raises(UnusableTenants, match="its namespace has no Secret of that name"):
        look(file)


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
