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
        ("code", "coder", Chosen(CODE, "coder")),
        ("chat", "tiny", Chosen(OTHER_CHAT, "tiny")),
        ("chat", "llama", BOTH),
        ("chat", "coder", UnknownModel(("llama", "llama-sql", "tiny"))),
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
        ("code", Chosen(CODE, "coder")),
        ("chat.default", ModelMissing()),  # a base model and an adapter
        ("chat", ModelMissing()),
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
    assert choose(routes, "code", AnyModel()) == Chosen(renamed, "coder-2")
    assert models_of((renamed,)) == ("coder", "coder-2")
    heir = service("default", "heir", "coder")
    assert choose(Routes({renamed.key: renamed, heir.key: heir}), "gateway", "coder") == Chosen(heir, "coder")
