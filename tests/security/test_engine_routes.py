"""Every route of the engine's two ports, and every kind of caller (J03).

The routes are those that the applications have: one that nobody has put into a class fails here, whatever it answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route
from support_api import MODEL, chat_body, error_of, http, text_body
from support_fake_client import FakeClient

from sapwood_contract.trust import CREDENTIAL_HEADER, TENANT_HEADER, TRUSTED_HEADERS
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app

Port = Literal["api", "admin"]
Place = tuple[Port, str, str]
RouteClass = Literal["open", "user", "gateway", "admin"]

CLASSES: Mapping[Place, RouteClass] = {
    ("api", "POST", "/v1/chat/completions"): "user",
    ("api", "POST", "/v1/completions"): "user",
    ("api", "GET", "/v1/models"): "user",
    ("api", "GET", "/v1/models/{model:path}"): "user",
    ("api", "POST", "/tokenize"): "user",
    ("api", "POST", "/detokenize"): "user",
    ("api", "GET", "/openapi.json"): "user",
    ("api", "GET", "/livez"): "open",
    ("api", "GET", "/readyz"): "open",
    ("api", "GET", "/health"): "open",
    ("api", "GET", "/metrics"): "open",
    ("api", "GET", "/ui"): "open",
    ("api", "GET", "/ui/"): "open",
    ("api", "GET", "/ui/{name}"): "open",
    ("api", "GET", "/ui/about"): "open",
    ("api", "GET", "/ui/data/load"): "admin",
    ("api", "GET", "/ui/data/cache"): "admin",
    ("api", "GET", "/ui/data/requests"): "admin",
    ("admin", "GET", "/livez"): "open",
    ("admin", "GET", "/readyz"): "open",
    ("admin", "GET", "/health"): "open",
    ("admin", "GET", "/metrics"): "open",
    ("admin", "GET", "/admin/load"): "gateway",
    ("admin", "GET", "/admin/blocks"): "gateway",
    ("admin", "GET", "/admin/tokenizer"): "gateway",
    ("admin", "GET", "/admin/prefixes"): "gateway",
    ("admin", "GET", "/admin/prefixes/hot"): "gateway",
    ("admin", "GET", "/admin/warm"): "gateway",
    ("admin", "POST", "/admin/warm"): "gateway",
    ("admin", "GET", "/admin/cache"): "admin",
    ("admin", "GET", "/admin/requests"): "admin",
    ("admin", "POST", "/admin/flush"): "admin",
    ("admin", "POST", "/admin/drain"): "admin",
    ("admin", "POST", "/admin/abort"): "admin",
    ("admin", "GET", "/openapi.json"): "admin",
}
ADDRESS = {"Host": "127.0.0.1"}
"""Of a request to the console where there is no key: another name may be anybody's."""
BODIES: Mapping[str, Any] = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": text_body(),
    "/tokenize": {"model": MODEL, "prompt": "hi"},
    "/detokenize": {"model": MODEL, "tokens": [104]},
    "/admin/abort": {"request_id": "x"},
    "/admin/warm": {"model_revision": "revision", "prefixes": []},
}

USER, OTHERS, ADMIN, CREDENTIAL = (
    "key-of-a-user",
    "key-of-another-tenant",
    "key-of-an-admin",
    "credential-of-the-gateway",
)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


CALLERS: Mapping[str, tuple[Mapping[str, str], frozenset[RouteClass]]] = {
    "no key": ({}, frozenset({"open"})),
    "user key": (bearer(USER), frozenset({"open", "user"})),
    "other tenant's key": (bearer(OTHERS), frozenset({"open"})),
    "wrong key": (bearer("wrong"), frozenset({"open"})),
    "admin key": (bearer(ADMIN), frozenset({"open", "gateway", "admin"})),
    "gateway credential": ({CREDENTIAL_HEADER: CREDENTIAL}, frozenset({"open", "user", "gateway"})),
    "gateway credential as a key": (bearer(CREDENTIAL), frozenset({"open"})),
    "another service's credential": ({CREDENTIAL_HEADER: "of another service"}, frozenset({"open"})),
}
"""What each shows, and the classes that it may enter."""


def apps(client: FakeClient) -> dict[Port, FastAPI]:
    """Both applications of an engine that asks for everything that can be asked for."""
    credentials = frozenset({CREDENTIAL})
    return {
        "api": build_app(
            client,
            api_keys=frozenset({USER}),
            admin_keys=frozenset({ADMIN}),
            credentials=credentials,
            has_console=True,
        ),
        "admin": build_admin_app(client, admin_keys=frozenset({ADMIN}), credentials=credentials),
    }


def routes() -> list[Place]:
    return [
        (port, method, route.path)
        for port, app in apps(FakeClient()).items()
        for route in _below(app.routes)
        for method in sorted(route.methods or ())
        if method != "HEAD"  # the edge makes it a GET
    ]


def _below(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """Yield what is reached in the end; a mount or a socket would need a class of its own."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is not None:
            yield from _below(router.routes)
        else:
            assert isinstance(route, Route), route
            yield route


async def call(client: FakeClient, route: Place, headers: Mapping[str, str]) -> Any:
    port, method, path = route
    async with http(apps(client)[port]) as api:
        url = path.replace("{model:path}", MODEL).replace("{name}", "app.js")
        body = {"json": BODIES.get(path, {})} if method == "POST" else {}
        return await api.request(method, url, headers=dict(headers), **body)


def was_asked(client: FakeClient) -> bool:
    return bool(client.asked or client.admin_calls or client.drained or client.aborted)


def test_every_route_has_a_class_and_every_class_a_route() -> None:
    assert sorted(routes()) == sorted(CLASSES)
    for port, app in apps(FakeClient()).items():
        documented = {(port, method.upper(), path) for path, of in app.openapi()["paths"].items() for method in of}
        named = {(of, method, path.replace(":path}", "}")) for of, method, path in CLASSES if of == port}
        of_console = {place for place in named if place[2].startswith("/ui")}  # a page, and no API of anybody's
        assert named - documented - of_console == {(port, "GET", "/openapi.json")}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("route", routes(), ids=lambda route: " ".join(route))
async def test_a_route_is_open_to_its_own_callers_and_a_refusal_comes_before_the_engine_is_asked(
    route: Place, caller: str
) -> None:
    client = FakeClient()
    headers, entered = CALLERS[caller]
    answer = await call(client, route, headers)
    if CLASSES[route] in entered:
        assert answer.status_code == 200
    else:
        error = error_of(answer, 401)
        assert error["code"] == "invalid_api_key"
        assert not was_asked(client)
        assert not any(secret in answer.text for secret in (USER, ADMIN, CREDENTIAL, OTHERS))


@pytest.mark.parametrize("route", routes(), ids=lambda route: " ".join(route))
async def test_a_forged_header_is_refused_on_every_route_whoever_sends_it(route: Place) -> None:
    client = FakeClient()
    for (caller, (headers, _)), header in itertools.product(CALLERS.items(), TRUSTED_HEADERS):
        if caller != "gateway credential":
            answer = await call(client, route, {**headers, header: "tenant:team/victim"})
            assert error_of(answer, 403)["code"] == "not_the_gateway"
            assert "victim" not in answer.text
    assert not was_asked(client)


@pytest.mark.parametrize("port", ["api", "admin"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/new", "/admin/load", "/admin//flush", "/v1/models", "/metrics/", "/LIVEZ", "/"])
async def test_a_path_that_is_in_no_class_and_any_method_of_one_that_is_need_a_key(
    port: Port, method: str, path: str
) -> None:
    async with http(apps(FakeClient())[port]) as api:
        assert (await api.request(method, path)).status_code == 401


@pytest.mark.parametrize("route", [route for route, of in CLASSES.items() if of == "admin"], ids=" ".join)
@pytest.mark.parametrize(
    "headers", [{}, {CREDENTIAL_HEADER: CREDENTIAL}, bearer(ADMIN)], ids=["none", "gateway", "admin"]
)
async def test_an_engine_with_a_credential_and_no_admin_keys_has_its_admin_api_closed_and_says_how_it_is_opened(
    route: Place, headers: Mapping[str, str]
) -> None:
    client = FakeClient()
    credentials = frozenset({CREDENTIAL})
    closed = {
        "api": build_app(client, credentials=credentials, has_console=True),
        "admin": build_admin_app(client, credentials=credentials),
    }
    async with http(closed[route[0]]) as admin:
        error = error_of(await admin.request(route[1], route[2], headers=dict(headers)), 403)
    assert error["code"] == "admin_closed"
    assert "--admin-key-file" in error["message"]
    assert not was_asked(client)


async def test_an_engine_that_is_configured_with_nothing_is_open_and_knows_no_gateway() -> None:
    client = FakeClient()
    forged = {TENANT_HEADER: "tenant:team/victim", CREDENTIAL_HEADER: "anything"}
    open_apps = {"api": build_app(client, has_console=True), "admin": build_admin_app(client)}
    for port, method, path in CLASSES:
        async with http(open_apps[port]) as api:
            body = {"json": BODIES.get(path, {})} if method == "POST" else {}
            url = path.replace("{model:path}", MODEL).replace("{name}", "app.js")
            assert (await api.request(method, url, headers={**forged, **ADDRESS}, **body)).status_code == 200
    assert {generation.namespace.tenant for generation in client.asked} == {None}
