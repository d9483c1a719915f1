"""Which service a request is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sapwood_gateway.core.choose import (
    Ambiguous,
    AnyModel,
    Choice,
    Chosen,
    ModelMissing,
    UnknownModel,
    choose,
    models_of,
    services_of_host,
)
from sapwood_gateway.core.routes import Routes, Service, ServiceKey


def service(namespace: str, name: str, *models: str, hosts: tuple[str, ...] = ()) -> Service:
    return Service(ServiceKey(namespace, name), models, hosts=hosts)


CHAT = service("default", "chat", "llama", "llama-sql", hosts=("chat.example.com",))
CODE = service("default", "code", "coder")
OTHER_CHAT = service("lab", "chat", "llama", "tiny")
ROUTES = Routes({each.key: each for each in (CHAT, CODE, OTHER_CHAT)})

BOTH = Ambiguous((ServiceKey("default", "chat"), ServiceKey("lab", "chat")))
EVERY_MODEL = ("coder", "llama", "llama-sql", "tiny")


@pytest.mark.parametrize(
    ("host", "model", "chosen"),
    [
        ("chat.default.svc.cluster.local", "llama", Chosen(CHAT, "llama")),
        ("chat.default.svc", "llama-sql", Chosen(CHAT, "llama-sql")),
        ("chat.default", "llama", Chosen(CHAT, "llama")),
        ("Chat.Default.SVC.cluster.local.:80", "llama", Chosen(CHAT, "llama")),
        ("chat.lab.svc.corp.example", "llama", Chosen(OTHER_CHAT, "llama")),
        ("chat.example.com", "llama", Chosen(CHAT, "llama")),
        ("chat.default", "coder", UnknownModel(("llama", "llama-sql"))),
        ("chat.default.svc", "tiny", UnknownModel(("llama", "llama-sql"))),
        ("chat", "tiny", Chosen(OTHER_CHAT, "tiny")),
        ("chat", "llama", BOTH),
        ("chat", "coder", Chosen(CODE, "coder")),
        ("10.0.0.7:8080", "coder", Chosen(CODE, "coder")),
        ("[::1]:8080", "coder", Chosen(CODE, "coder")),
        ("", "coder", Chosen(CODE, "coder")),
        ("sapwood-gateway.sapwood-system", "tiny", Chosen(OTHER_CHAT, "tiny")),
        ("chat.elsewhere", "tiny", Chosen(OTHER_CHAT, "tiny")),
        ("gateway", "llama", BOTH),
        ("gateway", "gpt-4", UnknownModel(EVERY_MODEL)),
        ("gateway", "", UnknownModel(EVERY_MODEL)),
    ],
)
def test_a_host_that_names_a_service_narrows_the_choice_and_the_model_settles_it(
    host: str, model: str, chosen: Choice
) -> None:
    assert choose(ROUTES, host, model) == chosen


@pytest.mark.parametrize(
    ("host", "chosen"),
    [
        ("code.default", Chosen(CODE, "coder")),
        ("chat.default", ModelMissing()),  # a base model and an adapter
        ("code", ModelMissing()),
        ("gateway", ModelMissing()),
    ],
)
def test_a_request_without_a_model_means_the_one_that_there_is(host: str, chosen: Choice) -> None:
    assert choose(ROUTES, host, AnyModel()) == chosen


def test_without_services_no_model_is_known() -> None:
    assert choose(Routes(), "chat", "llama") == UnknownModel(())


def test_the_models_of_several_services_are_a_union() -> None:
    assert models_of(services_of_host(ROUTES, "gateway")) == EVERY_MODEL
    assert models_of(services_of_host(ROUTES, "chat.lab")) == ("llama", "tiny")


def test_a_name_that_a_service_gives_up_is_its_own_until_another_service_takes_it() -> None:
    renamed = replace(CODE, models=("coder-2",), former_models=("coder",))
    routes = Routes({renamed.key: renamed})
    assert choose(routes, "gateway", "coder") == Chosen(renamed, "coder")
    assert choose(routes, "code.default", AnyModel()) == Chosen(renamed, "coder-2")
    assert models_of((renamed,)) == ("coder", "coder-2")
    heir = service("default", "heir", "coder")
    assert choose(Routes({renamed.key: renamed, heir.key: heir}), "gateway", "coder") == Chosen(heir, "coder")


# --- names from outside the cluster

A = service("team-a", "a", "llama", hosts=("*.example.com", "chat.b.example.com", "example.com"))
B = service("team-b", "b", "llama", "tiny", hosts=("*.b.example.com",))
GATEWAY = ServiceKey("sapwood", "sapwood-gateway")


def keys(host: str, *services: Service) -> list[str]:
    """Return the services, as NAME.NAMESPACE, that a request to ``host`` may mean."""
    routes = Routes({each.key: each for each in services}, gateway=GATEWAY)
    return [f"{each.key.name}.{each.key.namespace}" for each in services_of_host(routes, host)]


def claiming(*hosts: str) -> Service:
    return service("team-a", "a", "llama", hosts=hosts)


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("x.example.com", ["a.team-a"]),
        ("X.y.Example.com:443", ["a.team-a"]),
        ("example.com", ["a.team-a"]),  # by its own claim
        ("notexample.com", ["a.team-a", "b.team-b"]),
        ("b.example.com", ["a.team-a"]),
    ],
)
def test_a_wildcard_is_any_name_below_and_not_the_name_itself(host: str, meant: list[str]) -> None:
    assert keys(host, A, B) == meant


def test_within_a_namespace_the_exact_name_wins_over_the_longer_wildcard_and_that_over_the_shorter() -> None:
    exact, longer, shorter = (
        service("team", name, "m", hosts=(host,))
        for name, host in [("exact", "a.b.example.com"), ("longer", "*.b.example.com"), ("shorter", "*.example.com")]
    )
    assert keys("a.b.example.com", shorter, longer, exact) == ["exact.team"]
    assert keys("x.b.example.com", shorter, longer, exact) == ["longer.team"]
    assert keys("x.example.com", shorter, longer, exact) == ["shorter.team"]


def test_no_namespace_takes_a_host_from_another_not_even_by_a_closer_claim() -> None:
    assert keys("chat.b.example.com", A, B) == ["a.team-a", "b.team-b"]
    both = Routes({each.key: each for each in (A, B)})
    assert choose(both, "chat.b.example.com", "llama") == Ambiguous((A.key, B.key))
    assert choose(both, "chat.b.example.com", "tiny") == Chosen(B, "tiny")


@pytest.mark.parametrize("host", ["b.team-b", "b.team-b.svc", "b.team-b.svc.cluster.local"])
@pytest.mark.parametrize("claim", ["{}", "*.team-b", "*.team-b.svc", "*.svc", "*.cluster.local", "*.local", "*"])
def test_a_services_address_inside_the_cluster_is_its_own_whoever_claims_it(host: str, claim: str) -> None:
    assert keys(host, claiming(claim.format(host)), B) == ["b.team-b"]


@pytest.mark.parametrize(
    "host",
    [
        *("sapwood-gateway", "sapwood-gateway.sapwood", "sapwood-gateway.sapwood.svc.cluster.local"),
        *("localhost", "localhost:8080", "10.0.0.7", "10.0.0.7:8080", "127.1", "[::1]:8080", "::1", ""),
        *("other.team-b", "other.nowhere.svc"),
    ],
)
def test_the_gateways_own_names_and_addresses_mean_every_service_whoever_claims_them(host: str) -> None:
    name = host.removesuffix(":8080")
    named = [service("sapwood", "sapwood-gateway", "m"), service("team-c", "localhost", "m")]
    everyone = [claiming(name, "*.sapwood", "*.local", "*.7", "*"), B, *named]
    assert keys(host, *everyone) == keys("unclaimed.example.org", *everyone)
    assert len(keys(host, *everyone)) == 4
