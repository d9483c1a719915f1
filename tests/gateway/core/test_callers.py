"""Who may call which service, and with whom cached prefixes are shared."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_contract.routing import CacheSharing
from sapwood_gateway.core.callers import Admitted, Denied, cache_tenant, caller_of, hides_cached_tokens
from sapwood_gateway.core.choose import Ambiguous, AnyModel, ModelMissing, UnknownModel
from sapwood_gateway.core.routes import Routes, Service, ServiceKey
from sapwood_gateway.core.tenants import ANONYMOUS, Tenant, Tenants, key_digest


def service(name: str, *models: str, namespace: str = "team", key: bool = True, **fields: Any) -> Service:
    return Service(ServiceKey(namespace, name), models, authentication="ApiKey" if key else "None", **fields)


def tenant(name: str, *, namespace: str = "team", **fields: Any) -> Tenant:
    return Tenant(namespace=namespace, name=name, key_digests=frozenset({key_digest(f"sk-{name}")}), **fields)


CHAT = service("chat", "llama", "sql", former_models=("old",))
CODE = service("code", "coder")
FAR = service("far", "llama", "qwen", namespace="other")
FREE = service("free", "smol", namespace="public", key=False)

ALPHA = tenant("alpha")
NARROW = tenant("narrow", models=frozenset({"coder"}))
ADAPTED = tenant("adapted", models=frozenset(), adapters=frozenset({"sql"}))
GONE = tenant("gone", is_suspended=True)
OTHER = tenant("other", namespace="other")
TENANTS = Tenants([ALPHA, NARROW, ADAPTED, GONE, OTHER])

ANYWHERE = "gateway"
LOCKED, MIXED = (CHAT, CODE, FAR), (CHAT, CODE, FAR, FREE)


def routes(*services: Service) -> Routes:
    return Routes({each.key: each for each in services})


def outcome(services: tuple[Service, ...], key: str | None, model: str | AnyModel, host: str = ANYWHERE) -> object:
    return caller_of(routes(*services), host, TENANTS, key).choose(model)


@pytest.mark.parametrize(
    ("key", "model", "found"),
    [
        ("sk-alpha", "llama", Admitted(CHAT, "llama", ALPHA)),
        ("sk-alpha", "sql", Admitted(CHAT, "sql", ALPHA)),
        ("sk-alpha", "old", Admitted(CHAT, "old", ALPHA)),
        ("sk-alpha", "coder", Admitted(CODE, "coder", ALPHA)),
        ("sk-alpha", "smol", Admitted(FREE, "smol", ANONYMOUS)),
        ("sk-other", "llama", Admitted(FAR, "llama", OTHER)),
        ("sk-narrow", "coder", Admitted(CODE, "coder", NARROW)),
        ("sk-adapted", "sql", Admitted(CHAT, "sql", ADAPTED)),
        (None, "smol", Admitted(FREE, "smol", ANONYMOUS)),
        ("sk-gone", "smol", Admitted(FREE, "smol", ANONYMOUS)),
        ("EMPTY", "smol", Admitted(FREE, "smol", ANONYMOUS)),
    ],
)
def test_a_key_opens_the_services_of_its_tenants_namespace_and_those_that_want_none(
    key: str | None, model: str, found: Admitted
) -> None:
    assert outcome(MIXED, key, model) == found


@pytest.mark.parametrize(
    ("key", "model", "served"),
    [
        ("sk-alpha", "qwen", ("coder", "llama", "old", "smol", "sql")),
        ("sk-alpha", "nothing", ("coder", "llama", "old", "smol", "sql")),
        ("sk-narrow", "llama", ("coder", "smol", "sql")),
        ("sk-narrow", "old", ("coder", "smol", "sql")),
        ("sk-adapted", "llama", ("smol", "sql")),
    ],
)
def test_what_a_tenant_may_not_call_is_as_unknown_to_it_as_what_does_not_exist(
    key: str, model: str, served: tuple[str, ...]
) -> None:
    assert outcome(MIXED, key, model) == UnknownModel(served)


@pytest.mark.parametrize(
    ("key", "reason"), [(None, "no_key"), ("sk-nobody", "unknown_key"), ("", "unknown_key"), ("sk-gone", "suspended")]
)
@pytest.mark.parametrize("services", [LOCKED, MIXED])
@pytest.mark.parametrize("model", ["llama", "coder", "nothing"])
def test_without_a_known_key_a_model_that_exists_and_one_that_does_not_are_refused_alike(
    key: str | None, reason: Any, services: tuple[Service, ...], model: str
) -> None:
    assert outcome(services, key, model) == Denied(reason)


@pytest.mark.parametrize("key", [None, "sk-nobody", "sk-gone"])
def test_what_the_body_says_cannot_help_where_every_service_wants_a_key(key: str | None) -> None:
    assert caller_of(routes(*LOCKED), ANYWHERE, TENANTS, key).is_hopeless
    assert not caller_of(routes(*MIXED), ANYWHERE, TENANTS, key).is_hopeless
    assert caller_of(routes(*MIXED), "chat.team", TENANTS, key).is_hopeless


def test_a_key_is_known_to_its_own_namespaces_services_alone() -> None:
    assert caller_of(routes(*MIXED), "far.other", TENANTS, "sk-alpha").is_hopeless
    assert outcome(MIXED, "sk-other", AnyModel(), "chat.team") == Denied("unknown_key")


def test_a_misspelt_key_does_not_send_a_prompt_to_another_teams_open_service_of_the_same_model() -> None:
    copy = service("copy", "llama", namespace="public", key=False)
    assert outcome((CHAT, copy), "sk-alhpa", "llama") == Denied("unknown_key")
    assert outcome((CHAT, copy), "sk-alpha", "llama") == Ambiguous((copy.key, CHAT.key))
    assert outcome((CHAT, copy), None, "llama", "copy.public") == Admitted(copy, "llama", ANONYMOUS)


def test_services_that_a_tenant_does_not_see_make_no_model_of_its_own_ambiguous() -> None:
    assert outcome((CHAT, FAR), "sk-alpha", "llama") == Admitted(CHAT, "llama", ALPHA)


def test_open_services_of_one_model_are_ambiguous_as_ever() -> None:
    copies = service("a", "m", key=False), service("b", "m", key=False)
    assert outcome((*copies, CHAT), None, "m") == Ambiguous((copies[0].key, copies[1].key))
    assert outcome((*copies, CHAT), None, AnyModel()) == ModelMissing()


def test_nothing_is_denied_where_no_service_wants_a_key() -> None:
    assert outcome((FREE,), "whatever", "nothing") == UnknownModel(("smol",))


@pytest.mark.parametrize(
    ("sharing", "group", "says_namespace", "shared_with"),
    [
        ("Tenant", None, False, "tenant:team/alpha"),
        ("Tenant", "both", True, "tenant:team/alpha"),
        ("Group", "both", False, "group:team/both"),
        ("Group", "both", True, "tenant:team/alpha"),
        ("Group", None, False, "tenant:team/alpha"),
        ("Public", None, False, "public"),
        ("Public", "both", True, "tenant:team/alpha"),
        ("None", "both", False, "request:4f2a"),
        ("None", None, True, "request:4f2a"),
    ],
)
def test_cached_prefixes_are_shared_as_the_service_says(
    sharing: CacheSharing, group: str | None, says_namespace: bool, shared_with: str
) -> None:
    asked = service("chat", "llama", cache_sharing=sharing)
    caller = Tenant(namespace="team", name="alpha", group=group)
    assert cache_tenant(asked, caller, says_namespace=says_namespace, nonce="4f2a") == shared_with
    assert hides_cached_tokens(asked) is (sharing == "Public")


@pytest.mark.parametrize("sharing", ["None", "Tenant", "Group", "Public"])
def test_without_authentication_everybody_is_one_tenant(sharing: CacheSharing) -> None:
    asked = service("chat", "llama", key=False, cache_sharing=sharing)
    assert cache_tenant(asked, ANONYMOUS, says_namespace=False, nonce="4f2a") is None
    assert not hides_cached_tokens(asked)
