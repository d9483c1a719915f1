"""What a caller has to show, and what of a request the gateway alone may say."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.datastructures import Headers
from support_api import CHAT, TEXT, chat_body, http, text_body
from support_fake_client import FakeClient

from sapwood_contract.trust import (
    CACHED_TOKENS_HEADER,
    CREDENTIAL_HEADER,
    PRIORITY_CEILING_HEADER,
    TENANT_HEADER,
    TRUSTED_HEADERS,
)
from sapwood_engine.api.access import AdminClosed, Keys, RouteClass, Trusted, admin_class, api_class
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_engine.errors import AuthenticationFailed, RequestError

CREDENTIAL = "credential-of-chat"
AS_GATEWAY = {CREDENTIAL_HEADER: CREDENTIAL}
AS_USER = {"Authorization": "Bearer user"}
AS_ADMIN = {"Authorization": "Bearer admin"}
WRONG = {"Authorization": "Bearer wrong", CREDENTIAL_HEADER: "wrong"}
CLASSES: tuple[RouteClass, ...] = ("open", "user", "gateway", "admin")
WITH_ALL = Keys(users=["user"], admins=["admin"], credentials=[CREDENTIAL])
WITH_CREDENTIAL = Keys(credentials=[CREDENTIAL])
WITH_USERS = Keys(users=["user"])
WITH_ADMINS = Keys(admins=["admin"])


def entered(keys: Keys, headers: Mapping[str, str]) -> set[RouteClass]:
    classes: set[RouteClass] = set()
    for route in CLASSES:
        with contextlib.suppress(AuthenticationFailed, AdminClosed):
            keys.read(route, Headers(dict(headers)))
            classes.add(route)
    return classes


@pytest.mark.parametrize(
    ("keys", "headers", "classes"),
    [
        (WITH_ALL, {}, {"open"}),
        (WITH_ALL, WRONG, {"open"}),
        (WITH_ALL, AS_USER, {"open", "user"}),
        (WITH_ALL, AS_ADMIN, {"open", "gateway", "admin"}),
        (WITH_ALL, AS_GATEWAY, {"open", "user", "gateway"}),
        (WITH_ALL, {**AS_GATEWAY, **AS_ADMIN}, {"open", "user", "gateway", "admin"}),
        (WITH_ALL, {CREDENTIAL_HEADER: ""}, {"open"}),
        (WITH_ALL, {"Authorization": f"Bearer {CREDENTIAL}"}, {"open"}),
        (WITH_ALL, {CREDENTIAL_HEADER: "admin"}, {"open"}),
        (WITH_CREDENTIAL, {}, {"open"}),
        (WITH_CREDENTIAL, AS_GATEWAY, {"open", "user", "gateway"}),
        (WITH_CREDENTIAL, AS_ADMIN, {"open"}),
        (WITH_USERS, {}, {"open", "gateway"}),
        (WITH_USERS, AS_USER, {"open", "user", "gateway"}),
        (WITH_ADMINS, {}, {"open", "user"}),
        (Keys(), WRONG, {"open", "user", "gateway", "admin"}),
    ],
)
def test_each_class_of_route_is_open_to_those_whom_it_is_for(
    keys: Keys, headers: Mapping[str, str], classes: set[RouteClass]
) -> None:
    assert entered(keys, headers) == classes


def test_a_path_that_nobody_has_put_into_a_class_wants_a_key() -> None:
    assert (api_class("/new"), admin_class("/new")) == ("user", "admin")
    assert (api_class("/admin/load"), admin_class("/v1/models")) == ("user", "admin")


@pytest.mark.parametrize("header", TRUSTED_HEADERS)
@pytest.mark.parametrize("caller", [{}, AS_USER, AS_ADMIN, WRONG])
@pytest.mark.parametrize("route", CLASSES)
def test_a_header_of_the_gateways_from_somebody_else_is_refused_by_name(
    route: RouteClass, caller: dict[str, str], header: str
) -> None:
    with pytest.raises(RequestError, match=header) as refusal:
        WITH_ALL.read(route, Headers({**caller, header.lower(): "tenant:team/alpha"}))
    assert (refusal.value.status, refusal.value.code) == (403, "not_the_gateway")
    assert "alpha" not in str(refusal.value)


def test_where_no_credential_is_configured_nobody_is_the_gateway() -> None:
    said = {**AS_USER, **AS_GATEWAY, TENANT_HEADER: "tenant:team/alpha", PRIORITY_CEILING_HEADER: "-5"}
    assert WITH_USERS.read("user", Headers(said)) == Trusted()


def test_what_the_gateway_says_is_taken() -> None:
    said = {TENANT_HEADER: "group:team/both", PRIORITY_CEILING_HEADER: "7", CACHED_TOKENS_HEADER: "hide"}
    assert WITH_ALL.read("user", Headers({**AS_GATEWAY, **said})) == Trusted("group:team/both", 7, True)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (TENANT_HEADER, ""),
        (TENANT_HEADER, "x" * 1_025),
        (TENANT_HEADER, "schlüssel"),
        (PRIORITY_CEILING_HEADER, "high"),
        (PRIORITY_CEILING_HEADER, ""),
        (CACHED_TOKENS_HEADER, "show"),
    ],
)
def test_what_the_gateway_says_wrongly_is_refused_for_it_may_not_be_passed_over(header: str, value: str) -> None:
    with pytest.raises(RequestError, match=header):
        WITH_ALL.read("user", Headers({**AS_GATEWAY, header: value}))


@pytest.mark.parametrize(("asked", "ceiling", "given"), [(9, "3", 3), (2, "3", 2), (None, "3", 0), (9, None, 9)])
async def test_a_priority_above_the_ceiling_is_lowered_to_it(
    asked: int | None, ceiling: str | None, given: int
) -> None:
    client = FakeClient()
    headers = AS_GATEWAY | ({} if ceiling is None else {PRIORITY_CEILING_HEADER: ceiling})
    async with http(build_app(client, credentials=frozenset({CREDENTIAL}))) as api:
        assert (await api.post(CHAT, json=chat_body(priority=asked), headers=headers)).status_code == 200
    assert client.asked[0].priority == given


async def test_the_tenant_is_a_part_of_the_namespace_beside_what_the_body_says() -> None:
    client = FakeClient()
    body = chat_body(cache_salt="tenant:team/beta", extra_key="tenant:team/gamma")
    async with http(build_app(client, credentials=frozenset({CREDENTIAL}))) as api:
        await api.post(CHAT, json=body, headers={**AS_GATEWAY, TENANT_HEADER: "tenant:team/alpha"})
    namespace = client.asked[0].namespace
    assert (namespace.tenant, namespace.tenant_salt, namespace.extra_key) == (
        "tenant:team/alpha",
        "tenant:team/beta",
        "tenant:team/gamma",
    )


@pytest.mark.parametrize("headers", [{}, AS_GATEWAY, AS_GATEWAY | {TENANT_HEADER: "tenant:team/acme"}])
async def test_a_tenants_stream_tells_its_usage_to_the_gateway_in_a_comment_where_its_client_asks_for_none(
    headers: dict[str, str],
) -> None:
    credentials = frozenset({CREDENTIAL} if headers else set())
    async with http(build_app(FakeClient(), credentials=credentials)) as api:
        answer = await api.post(CHAT, json=chat_body() | {"stream": True}, headers=headers)
    *_, last, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert last.startswith(': {"prompt_tokens":') is (TENANT_HEADER in headers)
    assert answer.text.count("completion_tokens") == (TENANT_HEADER in headers)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hide", [False, True])
async def test_cached_tokens_are_in_no_answer_that_is_to_hide_them(path: str, stream: bool, hide: bool) -> None:
    body: dict[str, Any] = chat_body() if path == CHAT else text_body()
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    headers = AS_GATEWAY | ({CACHED_TOKENS_HEADER: "hide"} if hide else {})
    async with http(build_app(FakeClient(num_cached_tokens=2), credentials=frozenset({CREDENTIAL}))) as api:
        answer = await api.post(path, json=body, headers=headers)
    assert answer.status_code == 200
    assert '"prompt_tokens":' in answer.text
    assert ('"cached_tokens":2' in answer.text) is not hide
    assert "cached" not in str(answer.headers)
    assert not hide or '"prompt_tokens_details":null' in answer.text


@pytest.mark.parametrize("credentials", [frozenset[str](), frozenset({CREDENTIAL})])
async def test_an_engine_tells_whether_it_knows_the_gateway(credentials: frozenset[str]) -> None:
    async with http(build_admin_app(FakeClient(), credentials=credentials)) as admin:
        said = (await admin.get("/admin/load", headers=AS_GATEWAY)).json()
    assert said["knows_gateway"] is bool(credentials)
