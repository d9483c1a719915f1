"""Every route of the gateway's two ports, and every kind of caller (J03).

The routes are those that the applications have: one that nobody has put into a class fails here, whatever it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import aiohttp
import pytest
from aiohttp import web
from support_gateway import CHAT, Gateway, Upstream, admin_app, echo, gateway, serving, upstream

from sapwood_contract.trust import CREDENTIAL_HEADER, TENANT_HEADER, TRUSTED_HEADERS, engine_credential
from sapwood_gateway.core.routes import Replica, Routes, Service
from sapwood_gateway.core.tenants import Tenant, Tenants, key_digest
from sapwood_gateway.shell.app import Traffic, build_app
from sapwood_gateway.shell.auth import Auth
from sapwood_gateway.shell.console import Console

SECRET = b"0123456789abcdef0123456789abcdef"
MODEL = "llama"
ADMIN = "key-of-the-consoles-admin"
REPLICA = "pod-0"
ASK_AN_ENGINE = ("/ui/data/load", "/ui/data/cache", "/ui/data/requests")
ASK_THE_OPERATOR = ("/ui/data/scaling", "/ui/data/what-if")
RouteClass = Literal["open", "tenant", "admin"]
Route = tuple[Literal["api", "admin"], str, str]

CLASSES: Mapping[Route, RouteClass] = {
    ("api", "POST", "/v1/chat/completions"): "tenant",
    ("api", "POST", "/v1/completions"): "tenant",
    ("api", "POST", "/tokenize"): "tenant",
    ("api", "POST", "/detokenize"): "tenant",
    ("api", "GET", "/v1/models"): "tenant",
    ("api", "GET", "/v1/models/{model}"): "tenant",
    ("api", "GET", "/ui"): "open",
    ("api", "GET", "/ui/"): "open",
    ("api", "GET", "/ui/{name}"): "open",
    ("api", "GET", "/ui/about"): "open",
    ("api", "GET", "/ui/data/replicas"): "admin",
    ("api", "GET", "/ui/data/load"): "admin",
    ("api", "GET", "/ui/data/cache"): "admin",
    ("api", "GET", "/ui/data/requests"): "admin",
    ("api", "GET", "/ui/data/scaling"): "admin",
    ("api", "GET", "/ui/data/what-if"): "admin",
    ("admin", "GET", "/livez"): "open",
    ("admin", "GET", "/readyz"): "open",
    ("admin", "GET", "/metrics"): "open",
    ("admin", "GET", "/admin/demand"): "open",
    ("admin", "GET", "/admin/trace"): "admin",
}


def tenant(namespace: str, name: str, **fields: Any) -> Tenant:
    return Tenant(namespace=namespace, name=name, key_digests=frozenset({key_digest(f"sk-{name}")}), **fields)


TENANTS = Tenants(
    [
        tenant("team", "acme"),
        tenant("team", "narrow", models=frozenset()),
        tenant("team", "gone", is_suspended=True),
        tenant("other", "globex"),
    ]
)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


CALLERS: Mapping[str, tuple[Mapping[str, str], int]] = {
    "no key": ({}, 401),
    "user key": (bearer("sk-acme"), 200),
    "other tenant's key": (bearer("sk-globex"), 401),
    "key of a tenant that may call nothing": (bearer("sk-narrow"), 404),
    "suspended tenant's key": (bearer("sk-gone"), 403),
    "wrong key": (bearer("wrong"), 401),
    "hash of the key": (bearer(key_digest("sk-acme").hex()), 401),
    "console's admin key": (bearer(ADMIN), 401),
    "engines' admin key": (bearer("key-of-an-admin"), 401),
    "gateway credential": ({CREDENTIAL_HEADER: engine_credential(SECRET, "team", "chat")}, 401),
    "gateway credential as a key": (bearer(engine_credential(SECRET, "team", "chat")), 401),
    **{f"forged {header}": ({header: "tenant:team/acme"}, 401) for header in TRUSTED_HEADERS},
}
"""What each shows, and what it gets of a route for tenants."""


def routed(*replicas: Replica) -> Routes:
    return Routes({CHAT: Service(CHAT, (MODEL,), "PrefixAffinity", authentication="ApiKey")}, {CHAT: replicas})


def routes_of(app: web.Application, port: Literal["api", "admin"]) -> list[Route]:
    return [
        (port, route.method, "" if route.resource is None else route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD"  # the same handler as GET
    ]


@asynccontextmanager
async def both_ports() -> AsyncIterator[tuple[Gateway, str, Upstream]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(echo))
        running = await stack.enter_async_context(
            gateway(
                routed(server.replica(REPLICA)),
                tenants=TENANTS,
                secret=SECRET,
                has_console=True,
                admin_keys=frozenset({ADMIN}),
                operator_url=f"{server.url}/admin",
            )
        )
        admin = admin_app(running, admin_keys=frozenset({ADMIN}))
        yield running, await stack.enter_async_context(serving(admin)), server


async def call(running: Gateway, admin_url: str, route: Route, headers: Mapping[str, str]) -> tuple[int, str]:
    port, method, path = route
    base = running.url if port == "api" else admin_url
    body = {"model": MODEL} if method == "POST" else None
    url = base + path.replace("{model}", MODEL).replace("{name}", "app.js")
    data = {"replica": REPLICA, "service": str(CHAT)}
    query = data if path.startswith("/ui/data/") else {"namespace": CHAT.namespace, "service": CHAT.name}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, url, params=query, headers=headers, json=body) as answer,
    ):
        return answer.status, await answer.text()


async def test_every_route_has_a_class_and_every_class_a_route() -> None:
    async with both_ports() as (running, _, _server):
        console = Console(running.fleet, running.client, shown=lambda _: {})
        api = build_app(running.fleet, running.proxy, traffic=Traffic(), auth=Auth(), console=console)
        admin = admin_app(running)
        assert sorted(routes_of(api, "api") + routes_of(admin, "admin")) == sorted(CLASSES)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("route", CLASSES, ids=lambda route: " ".join(route))
async def test_a_route_is_open_to_its_own_callers_and_a_refusal_comes_before_any_engine_is_asked(
    route: Route, caller: str
) -> None:
    headers, expected = CALLERS[caller]
    if CLASSES[route] == "admin":
        expected = 200 if caller == "console's admin key" else 401
    async with both_ports() as (running, admin_url, server):
        code, text = await call(running, admin_url, route, headers)
        if CLASSES[route] == "open":
            assert code == 200
        elif route[2] == "/v1/models" and expected == 404:
            assert (code, MODEL in text) == (200, False)  # a list of nothing
        else:
            assert code == expected
        reached = code == 200 and (route[1] == "POST" or route[2] in (*ASK_AN_ENGINE, *ASK_THE_OPERATOR))
        assert len(server.requests) == (1 if reached else 0)
        assert not any(secret in text for secret in ("sk-", ADMIN, engine_credential(SECRET, "team", "chat")))


@pytest.mark.parametrize("header", TRUSTED_HEADERS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_a_forged_header_beside_a_good_key_changes_nothing(path: str, header: str) -> None:
    async with both_ports() as (running, admin_url, server):
        code, _ = await call(running, admin_url, ("api", "POST", path), {**bearer("sk-acme"), header: "999"})
        assert code == 200
        assert server.requests[0].headers[TENANT_HEADER] == "tenant:team/acme"
        assert "999" not in server.requests[0].headers.values()


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    "path", ["/metrics", "/admin/load", "/admin/cache", "/admin/flush", "/admin/drain", "/admin/abort", "/openapi.json"]
)
async def test_an_engines_other_paths_are_nobodys_through_the_gateway(path: str, caller: str) -> None:
    async with both_ports() as (running, admin_url, server):
        for method in ("GET", "POST"):
            code, _ = await call(running, admin_url, ("api", method, path), CALLERS[caller][0])
            assert code == 404
        assert server.requests == []
