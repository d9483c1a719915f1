"""The console's routes of an engine."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from support_api import error_of, http
from support_fake_client import END_ID, FakeClient

from sapwood_console.files import read_files
from sapwood_contract.launch import ConsoleName
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_engine.api.cache_text import MAX_TEXT_NODES, MAX_TEXT_TOKENS
from sapwood_engine.cli import is_console_on

ADDRESS = {"Host": "127.0.0.1:8000"}
ADMIN = {"Authorization": "Bearer admin-key"}
ADMIN_KEYS = frozenset({"admin-key"})
DATA = ("/ui/data/load", "/ui/data/cache", "/ui/data/requests")


class Planted(FakeClient):
    """Its tree holds a prompt."""

    async def admin(self, action: Any, **arguments: Any) -> dict[str, Any]:
        self.admin_calls.append((action, arguments))
        ids = [*b"secret plan", END_ID, -1]
        node = {"serial": 1, **({"token_ids": ids} if arguments.get("token_ids") else {})}
        return {"num_nodes": 1, "namespaces": [{"nodes": [node]}]}


async def test_the_page_is_served_with_its_files_and_not_sent_again_to_who_has_it() -> None:
    async with http(build_app(FakeClient(), has_console=True)) as api:
        for path, file in read_files().items():
            answer = await api.get(path)
            assert (answer.status_code, answer.content) == (200, file.body)
            assert answer.headers.items() >= {name.lower(): value for name, value in file.headers.items()}.items()
            again = await api.get(path, headers={"If-None-Match": file.etag})
            assert (again.status_code, again.content) == (304, b"")
        error_of(await api.get("/ui/app.py"), 404)
        assert (await api.post("/ui")).status_code == 405


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [("auto", "127.0.0.1", True), ("auto", "0.0.0.0", False), ("on", "0.0.0.0", True), ("off", "127.0.0.1", False)],
)
def test_by_itself_the_console_is_where_this_machine_alone_reaches_it(
    name: ConsoleName, host: str, expected: bool
) -> None:
    with socket.create_server((host, 0)) as listening:
        assert is_console_on(name, listening) == expected


async def test_without_the_console_there_is_nothing_at_its_paths() -> None:
    async with http(build_app(FakeClient())) as api:
        for path in ("/ui", "/ui/", "/ui/app.js", "/ui/about", *DATA):
            error_of(await api.get(path, headers=ADDRESS), 404)


@pytest.mark.parametrize(
    ("settings", "data", "asks_api_key", "shows_text"),
    [
        ({}, "open", False, False),
        ({"admin_keys": ADMIN_KEYS}, "key", False, True),
        ({"api_keys": frozenset({"a"})}, "closed", True, False),
        ({"credentials": frozenset({"c"})}, "closed", True, False),
        ({"api_keys": frozenset({"a"}), "admin_keys": ADMIN_KEYS}, "key", True, True),
    ],
)
async def test_the_page_is_told_which_keys_it_needs_and_data_are_open_only_where_there_are_none(
    settings: dict[str, Any], data: str, asks_api_key: bool, shows_text: bool
) -> None:
    async with http(build_app(FakeClient(), has_console=True, **settings)) as api:
        about = (await api.get("/ui/about")).json()
        assert about == {"program": "engine", "data": data, "asks_api_key": asks_api_key, "shows_text": shows_text}
        for path in DATA:
            answer = await api.get(path, headers=ADDRESS)
            assert answer.status_code == {"open": 200, "key": 401, "closed": 403}[data]
            if data == "closed":
                assert error_of(answer, 403)["code"] == "admin_closed"


async def test_data_are_what_the_admin_api_answers_and_no_cache_keeps_them() -> None:
    client = FakeClient()
    async with http(build_app(client, has_console=True)) as api, http(build_admin_app(client)) as admin:
        for path, asked in zip(DATA, ("/admin/load", "/admin/cache", "/admin/requests"), strict=True):
            answer = await api.get(path, headers=ADDRESS)
            assert answer.json() == (await admin.get(asked)).json()
            assert answer.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in answer.headers


async def test_a_tree_has_a_bound_and_may_have_no_node_at_all() -> None:
    client = FakeClient()
    async with http(build_app(client, has_console=True)) as api:
        await api.get("/ui/data/cache?max_nodes=0", headers=ADDRESS)
        assert client.admin_calls == [("cache", {"max_nodes": 0})]
        for bad in ("-1", "2001", "many"):
            answer = await api.get(f"/ui/data/cache?max_nodes={bad}", headers=ADDRESS)
            assert error_of(answer)["param"] == "max_nodes"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {**ADDRESS, "Sec-Fetch-Site": "cross-site"},
        {**ADDRESS, "Origin": "http://127.0.0.1:9"},
    ],
    ids=["a name that may be anybody's", "another site", "another origin"],
)
async def test_other_pages_get_no_data(headers: dict[str, str]) -> None:
    client = FakeClient()
    async with http(build_app(client, has_console=True)) as api:
        for path in DATA:
            assert error_of(await api.get(path, headers=headers), 403)["code"] == "not_our_page"
        assert (await api.get("/ui", headers=headers)).status_code == 200
    assert client.admin_calls == []


async def test_any_name_will_do_where_a_key_is_shown() -> None:
    async with http(build_app(FakeClient(), has_console=True, admin_keys=ADMIN_KEYS)) as api:
        for path in DATA:
            assert (await api.get(path, headers={"Host": "llm.example", **ADMIN})).status_code == 200


@pytest.mark.parametrize("path", ["/ui/data/cache", "/admin/cache"])
async def test_text_is_shown_to_holders_of_an_admin_key_in_a_bounded_part(path: str) -> None:
    client = Planted()
    apps = {
        "/ui/data/cache": build_app(client, has_console=True, admin_keys=ADMIN_KEYS),
        "/admin/cache": build_admin_app(client, admin_keys=ADMIN_KEYS),
    }
    async with http(apps[path]) as api:
        answer = await api.get(f"{path}?text=1&max_nodes=2000", headers=ADMIN)
        (node,) = answer.json()["namespaces"][0]["nodes"]
        assert node == {"serial": 1, "text": "secret plan<|end|>"}
        assert client.admin_calls == [("cache", {"max_nodes": MAX_TEXT_NODES, "token_ids": MAX_TEXT_TOKENS})]
        assert "secret" not in (await api.get(path, headers=ADMIN)).text
        error_of(await api.get(f"{path}?text=1"), 401)


@pytest.mark.parametrize("path", ["/ui/data/cache", "/admin/cache"])
async def test_text_is_shown_to_nobody_where_no_admin_key_tells_who_asks(path: str) -> None:
    client = Planted()
    apps = {"/ui/data/cache": build_app(client, has_console=True), "/admin/cache": build_admin_app(client)}
    async with http(apps[path]) as api:
        error = error_of(await api.get(f"{path}?text=1", headers={**ADDRESS, **ADMIN}), 403)
        assert (error["code"], "--admin-key-file" in error["message"]) == ("text_closed", True)
    assert client.admin_calls == []
