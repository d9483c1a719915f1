"""What every answer has, whoever made it: a request id and OpenAI's error shape. And who may come in."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from support_api import CHAT, MODEL, chat_body, error_of, http, served
from support_fake_client import FakeClient, Say

from sapwood_engine.api.access import Keys, api_class
from sapwood_engine.api.app import build_app
from sapwood_engine.api.edge import Edge
from sapwood_engine.errors import Overloaded, WorkerDied

OPEN = ["/livez", "/readyz", "/health", "/metrics"]


def with_a_broken_route(app: FastAPI) -> FastAPI:
    @app.get("/broken")
    async def broken() -> None:
        raise ZeroDivisionError("secret detail")

    return app


ANSWERS: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/v1/models", {}, 200),
    ("GET", "/nowhere", {}, 404),
    ("GET", "/v1/models/", {}, 404),
    ("GET", "/v1/models/other", {}, 404),
    ("GET", CHAT, {}, 405),
    ("DELETE", "/livez", {}, 405),
    ("POST", CHAT, {"json": {}}, 400),
    ("POST", CHAT, {"json": chat_body()}, 200),
    ("POST", CHAT, {"json": chat_body(stream=True)}, 200),
    ("GET", "/broken", {}, 500),
    ("GET", "/metrics", {}, 200),
]


@pytest.mark.parametrize(("method", "path", "request_", "status"), ANSWERS)
async def test_every_answer_carries_a_fresh_request_id(
    method: str, path: str, request_: dict[str, Any], status: int
) -> None:
    async with http(with_a_broken_route(build_app(FakeClient()))) as api:
        first = await api.request(method, path, **request_)
        second = await api.request(method, path, **request_)
    assert first.status_code == status
    assert len(first.headers.get_list("x-request-id")) == 1
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    if status >= 400:
        assert "secret detail" not in str(error_of(first, status))


@pytest.mark.parametrize(
    ("offered", "kept"),
    [
        ("abc-123_X.y:z", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("a#0", False),
        ("a b", False),
        ("é", False),
    ],
)
async def test_a_sane_request_id_is_echoed_and_reaches_the_engine(offered: str, kept: bool) -> None:
    client = FakeClient()
    async with http(build_app(client)) as api:
        answer = await api.post(CHAT, json=chat_body(), headers={b"x-request-id": offered.encode()})
    assert (answer.headers["x-request-id"] == offered) is kept
    assert client.asked[0].request_id == answer.headers["x-request-id"]


async def test_a_method_not_allowed_says_which_is() -> None:
    async with http(build_app(FakeClient())) as api:
        assert (await api.get(CHAT)).headers["allow"] == "POST"


@pytest.mark.parametrize("path", [*OPEN, "/v1/models", f"/v1/models/{MODEL}", "/nowhere", CHAT])
async def test_head_answers_as_get_does_without_the_body(path: str) -> None:
    async with http(build_app(FakeClient())) as api:
        got, head = await api.get(path), await api.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


async def test_head_over_a_socket_leaves_the_connection_in_order() -> None:
    async with served(build_app(FakeClient())) as url, httpx.AsyncClient(base_url=url) as api:
        for _ in range(3):
            assert (await api.head("/metrics")).status_code == 200
            assert (await api.get("/readyz")).json() == {"state": "ready"}


async def test_a_stream_cannot_be_cached_or_buffered_on_its_way() -> None:
    async with http(build_app(FakeClient())) as api:
        answer = await api.post(CHAT, json=chat_body(stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"


KEYS = frozenset({"key-one", "key-two"})


@pytest.mark.parametrize("key", ["key-one", "key-two"])
async def test_any_of_the_keys_lets_a_request_in(key: str) -> None:
    async with http(build_app(FakeClient(), api_keys=KEYS)) as api:
        for scheme in ("Bearer", "bearer"):
            answer = await api.post(CHAT, json=chat_body(), headers={"authorization": f"{scheme} {key}"})
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer key-three"},
        {"authorization": "Bearer key-one-and-more"},
        {"authorization": "Basic key-one"},
        {"authorization": "key-one"},
        {b"authorization": b"Bearer \xff\xfe"},
    ],
)
async def test_without_a_key_nothing_is_read_and_the_key_is_not_repeated(headers: Any) -> None:
    client = FakeClient()
    async with http(build_app(client, api_keys=KEYS)) as api:
        for path in (CHAT, "/v1/completions", "/tokenize", "/v1/models", "/nowhere"):
            answer = await api.post(path, content=b"{", headers=headers)
            error = error_of(answer, 401)
            assert error["code"] == "invalid_api_key"
            assert "key-" not in error["message"]
            assert "x-request-id" in answer.headers
    assert not client.asked


@pytest.mark.parametrize("path", OPEN)
async def test_probes_and_metrics_need_no_key(path: str) -> None:
    async with http(build_app(FakeClient(), api_keys=KEYS)) as api:
        assert (await api.get(path)).status_code == 200


async def test_an_app_that_fails_before_it_answers_is_a_500_that_tells_nothing() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret detail")

    edge = Edge(failing, class_of=api_class, keys=Keys())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://x") as api:
        answer = await api.get("/")
    assert "secret detail" not in str(error_of(answer, 500))
    assert answer.headers["x-request-id"]


async def test_retry_after_tells_when_to_come_back() -> None:
    full = Overloaded(num_queued=3, limit=3, retry_after_seconds=11)
    async with http(build_app(FakeClient(script=lambda _: [full]))) as api:
        answer = await api.post(CHAT, json=chat_body())
    error = error_of(answer, 429)
    assert (error["type"], error["code"], answer.headers["retry-after"]) == (
        "rate_limit_error",
        "queue_full",
        "11",
    )


async def test_every_call_counts_once_as_its_client_saw_it_end_and_probes_do_not() -> None:
    fault = RuntimeError("of ours")
    scripts: list[Any] = [[Say("a", finish="stop")], [Say("a"), WorkerDied(1)], [Say("a"), fault], [WorkerDied(1)]]
    client = FakeClient(script=lambda _: scripts.pop(0))
    app = with_a_broken_route(build_app(client, api_keys=frozenset({"key"})))
    headers = {"authorization": "Bearer key"}
    async with http(app) as api:
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            await api.get(path)
        await api.get("/v1/models")
        for stream in (False, True, True, False):
            await api.post(CHAT, json=chat_body(stream=stream), headers=headers)
        await api.post(CHAT, json=chat_body(temperature=9), headers=headers)
        await api.get("/made/up", headers=headers)
        await api.get(CHAT, headers=headers)
        await api.get("/broken", headers=headers)
    assert client.ended == [401, 200, 500, 500, 500, 400, 404, 405, 500]
