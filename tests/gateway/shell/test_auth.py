"""What the gateway asks of callers, and what it tells engines of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support_gateway import CHAT, KNOWS_GATEWAY, Gateway, Upstream, behind, echo, gateway, status, upstream

from sapwood_contract.routing import CacheSharing
from sapwood_contract.trust import (
    CACHED_TOKENS_HEADER,
    CREDENTIAL_HEADER,
    PRIORITY_CEILING_HEADER,
    TENANT_HEADER,
    TRUSTED_HEADERS,
    engine_credential,
)
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey
from sapwood_gateway.core.tenants import Tenant, Tenants, key_digest

SECRET = b"0123456789abcdef0123456789abcdef"
PATH = "/v1/chat/completions"
MODEL = "llama"
FREE = ServiceKey("public", "free")


def tenant(name: str, **fields: Any) -> Tenant:
    return Tenant(namespace="team", name=name, key_digests=frozenset({key_digest(f"sk-{name}")}), **fields)


TENANTS = Tenants(
    [
        tenant("acme", priority_ceiling=7, group="both"),
        tenant("globex", group="both"),
        tenant("narrow", models=frozenset({"other"})),
        tenant("gone", is_suspended=True),
    ]
)


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


def locked(*replicas: Replica, sharing: CacheSharing = "Tenant") -> Routes:
    return Routes({CHAT: Service(CHAT, (MODEL,), authentication="ApiKey", cache_sharing=sharing)}, {CHAT: replicas})


def mixed(closed: Replica, free: Replica) -> Routes:
    open_ = Service(FREE, ("smol",))
    return Routes({**locked().services, FREE: open_}, {CHAT: (closed,), FREE: (free,)})


@asynccontextmanager
async def secured(
    *, sharing: CacheSharing = "Tenant", secret: bytes | None = SECRET
) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(echo))
        over = locked(server.replica(), sharing=sharing)
        yield await stack.enter_async_context(gateway(over, tenants=TENANTS, secret=secret)), server


@asynccontextmanager
async def half_open() -> AsyncIterator[tuple[Gateway, Upstream]]:
    """A service that wants keys, and one that wants none, with one engine for both."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(echo))
        over = mixed(server.replica("a"), server.replica("b"))
        yield await stack.enter_async_context(gateway(over, tenants=TENANTS, secret=SECRET)), server


async def ask(running: Gateway, headers: dict[str, str], **body: Any) -> tuple[int, Any]:
    async with running.client.post(PATH, json={"model": MODEL, **body}, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("headers", "code", "error"),
    [
        ({}, 401, "invalid_api_key"),
        ({"Authorization": "Bearer"}, 401, "invalid_api_key"),
        ({"Authorization": "Basic sk-acme"}, 401, "invalid_api_key"),
        ({"Authorization": "sk-acme"}, 401, "invalid_api_key"),
        (key("nobody"), 401, "invalid_api_key"),
        (key("gone"), 403, "tenant_suspended"),
        (key("narrow"), 404, "model_not_found"),
    ],
)
async def test_whoever_may_not_call_a_service_is_refused_and_no_engine_hears_of_it(
    headers: dict[str, str], code: int, error: str
) -> None:
    async with secured() as (running, server):
        answer_status, answer = await ask(running, headers)
        assert (answer_status, answer["error"]["code"]) == (code, error)
        assert "sk-" not in str(answer)
        assert server.requests == []
        rejected = running.series("sapwood_gateway_rejected_total")
        assert rejected['{reason="auth"}'] == (0 if code == 404 else 1)


async def test_whoever_no_body_could_let_in_is_refused_before_it_is_read() -> None:
    async with secured() as (running, _):
        async with running.client.post(PATH, data=b"not even JSON", headers=key("nobody")) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
        async with running.client.post(PATH, data=b"not even JSON", headers=key("acme")) as response:
            assert response.status == 400


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/v1/models/nothing"])
@pytest.mark.parametrize(("name", "code"), [("nobody", 401), ("gone", 403)])
async def test_models_are_told_to_nobody_without_a_key(path: str, name: str, code: int) -> None:
    async with secured() as (running, _), running.client.get(path, headers=key(name)) as response:
        assert response.status == code
        assert MODEL not in await response.text()


@pytest.mark.parametrize(
    ("headers", "models"), [({}, ["smol"]), (key("acme"), [MODEL, "smol"]), (key("narrow"), ["smol"])]
)
async def test_the_list_of_models_shows_what_the_caller_may_call(headers: dict[str, str], models: list[str]) -> None:
    async with half_open() as (running, _):
        async with running.client.get("/v1/models", headers=headers) as response:
            assert [card["id"] for card in (await response.json())["data"]] == models
        for model in (MODEL, "smol", "nothing"):
            async with running.client.get(f"/v1/models/{model}", headers=headers) as response:
                expected = 200 if model in models else 401 if not headers else 404
                assert response.status == expected


async def test_a_model_that_a_tenant_may_not_call_is_refused_in_the_words_for_one_that_does_not_exist() -> None:
    async with gateway(locked(), tenants=TENANTS, secret=SECRET) as running:
        _, hidden = await ask(running, key("narrow"))
        _, missing = await ask(running, key("narrow"), model="lamma")
        assert str(hidden).replace("llama", "lamma") == str(missing)
        async with running.client.get(f"/v1/models/{MODEL}", headers=key("narrow")) as response:
            assert await response.json() == hidden


async def test_an_engine_of_a_service_with_keys_gets_the_credential_and_what_is_trusted_and_no_key() -> None:
    async with secured() as (running, server):
        assert (await ask(running, key("acme")))[0] == 200
        got = server.requests[0].headers
        assert got[CREDENTIAL_HEADER] == engine_credential(SECRET, "team", "chat")
        assert (got[TENANT_HEADER], got[PRIORITY_CEILING_HEADER]) == ("tenant:team/acme", "7")
        assert CACHED_TOKENS_HEADER not in got
        assert "Authorization" not in got
        assert "sk-acme" not in str(got)


async def test_an_engine_of_a_service_with_keys_gets_nothing_before_it_has_said_that_it_knows_the_gateway() -> None:
    async with secured() as (running, server):
        running.fleet.update(locked(server.replica("new")))
        code, answer = await ask(running, key("acme"))
        assert (code, answer["error"]["code"]) == (503, "no_replica_ready")
        assert "1 not heard from" in answer["error"]["message"]
        assert server.requests == []
        running.fleet.reported("new", KNOWS_GATEWAY)
        assert (await ask(running, key("acme")))[0] == 200


FORGED = {
    CREDENTIAL_HEADER: "forged",
    TENANT_HEADER: "tenant:team/globex",
    PRIORITY_CEILING_HEADER: "1000",
    CACHED_TOKENS_HEADER: "show",
}


@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
async def test_what_only_the_gateway_may_say_is_never_a_clients(spelling: Any) -> None:
    forged = {spelling(name): value for name, value in FORGED.items()}
    async with half_open() as (running, server):
        assert (await ask(running, {**key("acme"), **forged}))[0] == 200
        assert (await ask(running, {**key("acme"), **forged}, model="smol"))[0] == 200
        closed, free = (request.headers for request in server.requests)
        assert [closed.getall(name) for name in (CREDENTIAL_HEADER, TENANT_HEADER, PRIORITY_CEILING_HEADER)] == [
            [engine_credential(SECRET, "team", "chat")],
            ["tenant:team/acme"],
            ["7"],
        ]
        assert CACHED_TOKENS_HEADER not in closed
        assert not any(name in free for name in (CREDENTIAL_HEADER, *TRUSTED_HEADERS))
        assert free["Authorization"] == "Bearer sk-acme"  # an open service's engine may ask for keys of its own


async def test_naming_a_trusted_header_in_connection_does_not_take_it_away() -> None:
    async with secured() as (running, server):
        await ask(running, {**key("acme"), "Connection": f"{TENANT_HEADER}, {CREDENTIAL_HEADER}"})
        assert server.requests[0].headers[TENANT_HEADER] == "tenant:team/acme"


@pytest.mark.parametrize(
    ("sharing", "body", "shared_with"),
    [
        ("Tenant", {}, "tenant:team/acme"),
        ("Group", {}, "group:team/both"),
        ("Group", {"cache_salt": "s"}, "tenant:team/acme"),
        ("Group", {"extra_key": "s"}, "tenant:team/acme"),
        ("Group", {"extra_key": None}, "group:team/both"),
        ("Public", {}, "public"),
        ("Public", {"cache_salt": ""}, "tenant:team/acme"),
    ],
)
async def test_an_engine_is_told_with_whom_the_cache_is_shared(
    sharing: CacheSharing, body: dict[str, Any], shared_with: str
) -> None:
    async with secured(sharing=sharing) as (running, server):
        await ask(running, key("acme"), **body)
        got = server.requests[0].headers
        assert got[TENANT_HEADER] == shared_with
        assert got.get(CACHED_TOKENS_HEADER) == ("hide" if sharing == "Public" else None)
        assert json.loads(server.bodies[0]) == {"model": MODEL, **body}


async def test_of_fields_that_a_body_gives_twice_the_one_that_the_engine_takes_decides() -> None:
    async with secured(sharing="Public") as (running, server):
        for body in (b'"cache_salt":"a","cache_salt":null', b'"cache_salt":null,"cache_salt":"a"'):
            whole = b'{"model":"llama",' + body + b"}"
            async with running.client.post(PATH, data=whole, headers=key("acme")) as response:
                assert response.status == 200
        assert [request.headers[TENANT_HEADER] for request in server.requests] == ["public", "tenant:team/acme"]


async def test_with_no_sharing_every_request_is_alone_and_another_attempt_of_it_is_the_same() -> None:
    async with upstream(status(503)) as busy, upstream(echo) as well:
        both = locked(busy.replica("a"), well.replica("b"), sharing="None")
        async with gateway(both, tenants=TENANTS, secret=SECRET) as running:
            for _ in range(3):
                assert (await ask(running, key("acme")))[0] == 200
        told = [request.headers[TENANT_HEADER] for request in well.requests]
        assert len(set(told)) == 3
        assert all(len(each) == len("request:") + 32 for each in told)
        assert {request.headers[TENANT_HEADER] for request in busy.requests} <= set(told)


async def test_without_the_secret_a_service_with_keys_is_not_routed_and_says_why_to_its_tenants_alone() -> None:
    async with secured(secret=None) as (running, server):
        code, answer = await ask(running, key("acme"))
        assert (code, answer["error"]["code"]) == (503, "no_credential")
        assert "--secret-file" in answer["error"]["message"]
        assert (await ask(running, key("nobody")))[0] == 401
        assert server.requests == []


async def test_a_service_without_authentication_is_as_it_was() -> None:
    async with behind(echo) as (running, [server]):
        assert (await ask(running, key("whatever"), model="fake/model-1"))[0] == 200
        assert server.requests[0].headers["Authorization"] == "Bearer sk-whatever"
