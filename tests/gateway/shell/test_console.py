"""The console of a gateway: who is shown what of which engine, and what an engine is shown of the caller."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support_gateway import CHAT, MODEL, gateway, nobody, routes, status, upstream
from yarl import URL

from sapwood_console.files import read_files
from sapwood_console.paths import ENGINE_AUTHORIZATION_HEADER
from sapwood_contract.launch import ConsoleName
from sapwood_contract.trust import CREDENTIAL_HEADER
from sapwood_gateway.core.routes import Replica, Routes, Service
from sapwood_gateway.shell.credentials import UnusableSecret, read_admin_keys
from sapwood_gateway.shell.options import parse
from sapwood_gateway.shell.serve import is_console_on

DATA = ("/ui/data/load", "/ui/data/cache", "/ui/data/requests")
KEYS = frozenset({"gateway-key"})
OURS = {"Authorization": "Bearer gateway-key"}
THEIRS = {ENGINE_AUTHORIZATION_HEADER: "Bearer engine-key"}
SECRET = b"0123456789abcdef0123456789abcdef"


def with_keys(*replicas: Replica) -> Routes:
    return Routes({CHAT: Service(CHAT, (MODEL,), authentication="ApiKey")}, {CHAT: replicas})


async def paths(request: web.Request) -> web.StreamResponse:
    return web.json_response({"path": request.path_qs})


def of(path: str, replica: str = "pod-0", **query: str) -> URL:
    return URL(path).with_query({"replica": replica, **query})


async def test_the_page_is_served_and_not_sent_again_to_who_has_it() -> None:
    async with gateway(routes(), has_console=True) as running:
        for path, file in read_files().items():
            async with running.client.get(path) as answer:
                assert (answer.status, await answer.read()) == (200, file.body)
                assert {name: answer.headers[name] for name in file.headers} == file.headers
            async with running.client.get(path, headers={"If-None-Match": file.etag}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
        async with running.client.get("/ui/app.py") as answer:
            assert answer.status == 404


async def test_without_the_console_there_is_nothing_at_its_paths() -> None:
    async with gateway(routes()) as running:
        for path in ("/ui", "/ui/", "/ui/app.js", "/ui/about", "/ui/data/replicas", *DATA):
            async with running.client.get(path) as answer:
                assert answer.status == 404


@pytest.mark.parametrize(
    ("routed", "admin_keys", "data", "asks_api_key"),
    [
        (routes(), frozenset(), "open", False),
        (routes(), KEYS, "key", False),
        (with_keys(), frozenset(), "closed", True),
        (with_keys(), KEYS, "key", True),
    ],
)
async def test_data_are_closed_where_a_service_asks_for_keys_and_nobody_is_named_who_may_see_them(
    routed: Routes, admin_keys: frozenset[str], data: str, asks_api_key: bool
) -> None:
    async with gateway(routed, has_console=True, admin_keys=admin_keys) as running:
        async with running.client.get("/ui/about") as answer:
            about = await answer.json()
        assert about == {"program": "gateway", "data": data, "asks_api_key": asks_api_key, "shows_text": True}
        for path in ("/ui/data/replicas", *DATA):
            async with running.client.get(path) as answer:
                told = await answer.json()
            if data == "open":
                assert answer.status == (200 if path == "/ui/data/replicas" else 404)
            else:
                assert (answer.status, told["error"]["code"]) == {
                    "key": (401, "invalid_api_key"),
                    "closed": (403, "admin_closed"),
                }[data]


async def test_replicas_are_listed_with_what_is_known_of_each() -> None:
    async with upstream(paths) as server:
        routed = routes(server.replica("pod-0"), Replica("pod-1", "second", "http://a.test", "http://a.test", False))
        async with gateway(routed, has_console=True) as running, running.client.get("/ui/data/replicas") as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            first, second = (await answer.json())["replicas"]
    assert first == {
        "id": "pod-0",
        "name": "pod-0",
        "service": "team/chat",
        "model": "",
        "fitness": "fit",
        "num_requests": 0,
        "num_own": 0,
        "num_waiting_tokens": 0,
        "num_blocks": None,
    }
    assert (second["name"], second["fitness"]) == ("second", "not_ready")


async def test_an_engine_is_asked_its_admin_api_and_what_it_answers_comes_back() -> None:
    async with (
        upstream(paths) as server,
        gateway(routes(server.replica("pod-0")), has_console=True) as running,
    ):
        for query, asked in (
            (of("/ui/data/load"), "/admin/load"),
            (of("/ui/data/requests"), "/admin/requests"),
            (of("/ui/data/cache"), "/admin/cache"),
            (of("/ui/data/cache", max_nodes="7", text="1", other="2"), "/admin/cache?max_nodes=7&text=1"),
            (of("/ui/data/cache", max_nodes="10000"), "/admin/cache?max_nodes=2000"),
        ):
            async with running.client.get(query) as answer:
                assert (answer.status, await answer.json()) == (200, {"path": asked})
                assert answer.headers["Content-Type"] == "application/json"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("replica", ["", "pod-9", "http://127.0.0.1:1"])
async def test_only_a_replica_that_is_known_is_asked(replica: str) -> None:
    async with upstream(paths) as server, gateway(routes(server.replica("pod-0")), has_console=True) as running:
        async with running.client.get(of("/ui/data/cache", replica)) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (404, "replica")
        assert server.requests == []


async def test_a_replica_that_does_not_answer_is_no_fault_of_the_gateway() -> None:
    replica = nobody()
    async with (
        gateway(routes(replica), has_console=True) as running,
        running.client.get(of("/ui/data/load", replica.id)) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["code"]) == (502, "replica_unreachable")


async def seen_by_the_engine(headers: dict[str, str], **settings: Any) -> dict[str, str]:
    """Ask for the tree with ``headers``; return what of them the engine got."""
    async with upstream(paths) as server:
        routed = settings.pop("routed", routes)(server.replica("pod-0"))
        async with (
            gateway(routed, has_console=True, **settings) as running,
            running.client.get(of("/ui/data/cache"), headers=headers) as answer,
        ):
            assert answer.status == 200
        named = ("Authorization", CREDENTIAL_HEADER, ENGINE_AUTHORIZATION_HEADER, "Cookie")
        return {name: server.requests[0].headers[name] for name in named if name in server.requests[0].headers}


async def test_the_gateways_own_admin_key_goes_to_no_engine() -> None:
    assert await seen_by_the_engine(OURS, admin_keys=KEYS) == {}
    assert await seen_by_the_engine({**OURS, **THEIRS, "Cookie": "a=b"}, admin_keys=KEYS) == {
        "Authorization": "Bearer engine-key"
    }


async def test_where_the_gateway_wants_no_key_what_the_caller_shows_is_for_the_engine() -> None:
    assert await seen_by_the_engine({"Authorization": "Bearer engine-key"}) == {"Authorization": "Bearer engine-key"}


async def test_an_engine_that_asks_for_the_gateways_credential_gets_it() -> None:
    seen = await seen_by_the_engine(OURS, admin_keys=KEYS, routed=with_keys, secret=SECRET)
    assert set(seen) == {CREDENTIAL_HEADER}


async def test_an_engine_that_wants_a_key_of_its_own_is_told_apart_from_a_gateway_that_does() -> None:
    async with (
        upstream(status(401)) as server,
        gateway(routes(server.replica("pod-0")), has_console=True, admin_keys=KEYS) as running,
        running.client.get(of("/ui/data/cache"), headers=OURS) as answer,
    ):
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (403, "engine_key_needed")
        assert ENGINE_AUTHORIZATION_HEADER in error["message"]


async def test_another_refusal_of_an_engine_comes_back_as_it_is() -> None:
    said = {"error": {"message": "text: nobody may", "code": "text_closed"}}
    async with (
        upstream(status(403, json.dumps(said).encode())) as server,
        gateway(routes(server.replica("pod-0")), has_console=True) as running,
        running.client.get(of("/ui/data/cache", text="1")) as answer,
    ):
        assert (answer.status, await answer.json()) == (403, said)


@pytest.mark.parametrize(
    "headers",
    [{"Host": "rebound.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://127.0.0.1:9"}],
    ids=["a name that may be anybody's", "another site", "another origin"],
)
async def test_other_pages_get_no_data(headers: dict[str, str]) -> None:
    async with upstream(paths) as server, gateway(routes(server.replica("pod-0")), has_console=True) as running:
        for path in ("/ui/data/replicas", *DATA):
            async with running.client.get(of(path), headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (403, "not_our_page")
        assert server.requests == []


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [("auto", "127.0.0.1", True), ("auto", "0.0.0.0", False), ("on", "0.0.0.0", True), ("off", "127.0.0.1", False)],
)
def test_by_itself_the_console_is_where_this_machine_alone_reaches_it(
    name: ConsoleName, host: str, expected: bool
) -> None:
    with socket.create_server((host, 0)) as listening:
        assert is_console_on(name, listening) == expected
    assert parse([f"--console={name}"]).console == name


def test_admin_keys_are_the_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first\n\n  second  \n")
    assert read_admin_keys(parse([f"--admin-key-file={file}"]).admin_key_file) == {"first", "second"}
    assert read_admin_keys(parse([]).admin_key_file) == frozenset()


@pytest.mark.parametrize("content", ["", " \n", "schlüssel", "a\x07b"], ids=["empty", "blank", "not ASCII", "a bell"])
def test_a_file_without_a_key_that_can_be_sent_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(UnusableSecret, match="--admin-key-file") as refusal:
        read_admin_keys(file)
    assert not content.strip() or content not in str(refusal.value)
    with pytest.raises(UnusableSecret, match="cannot be read"):
        read_admin_keys(tmp_path / "none")
