"""Models, tokens, probes, metrics, and the admin API."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Any

import pytest
from support_api import CHAT, MODEL, TEXT, chat_body, error_of, http, text_body
from support_fake_client import VOCAB_SIZE, ByteTokenizer, FakeClient

from sapwood_contract.http import (
    ADMIN_REQUESTS,
    ADMIN_TOKENIZER,
    MAX_CACHE_NODES,
    MAX_RECENT_REQUESTS,
    MAX_TOKENIZER_BYTES,
    EngineState,
    LoadSnapshot,
    RequestView,
)
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app


async def test_the_served_model_is_listed_and_shown() -> None:
    card = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "sapwood",
        "max_model_len": 1024,
    }
    async with http(build_app(FakeClient())) as api:
        assert (await api.get("/v1/models")).json() == {"object": "list", "data": [card]}
        assert (await api.get(f"/v1/models/{MODEL}")).json() == card
        error = error_of(await api.get("/v1/models/other"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_tokenize_and_detokenize_are_inverse() -> None:
    async with http(build_app(FakeClient())) as api:
        tokens = (await api.post("/tokenize", json={"prompt": "é\x00 x"})).json()
        assert tokens == {"tokens": list("é\x00 x".encode()), "count": 5, "max_model_len": 1024}
        text = await api.post("/detokenize", json={"tokens": tokens["tokens"], "model": MODEL})
        assert text.json() == {"prompt": "é\x00 x"}


async def test_messages_are_tokenized_as_a_chat_would_see_them() -> None:
    client = FakeClient()
    async with http(build_app(client)) as api:
        body = chat_body()
        tokens = (await api.post("/tokenize", json={"messages": body["messages"]})).json()["tokens"]
        await api.post(CHAT, json=body)
    assert tuple(tokens) == client.asked[0].prompt_ids


async def test_a_long_text_is_tokenized_like_a_short_one() -> None:
    text = "xyz" * 20_000
    async with http(build_app(FakeClient())) as api:
        assert (await api.post("/tokenize", json={"prompt": text})).json()["tokens"] == list(text.encode())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens.0"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens.1"),
        ("/detokenize", {"tokens": "ab"}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    async with http(build_app(FakeClient())) as api:
        assert error_of(await api.post(path, json=body))["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "x" * 1_000_001}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 1_000_001}]}, "messages"),
        ("/detokenize", {"tokens": [1] * 1_000_001}, "tokens"),
    ],
)
async def test_more_than_is_taken_at_once_is_refused_with_the_limit(
    path: str, body: dict[str, Any], param: str
) -> None:
    async with http(build_app(FakeClient())) as api:
        error = error_of(await api.post(path, json=body))
    assert error["param"] == param
    assert "1000000" in error["message"]


STATES: list[tuple[EngineState, int]] = [
    ("loading", 503),
    ("warming", 503),
    ("ready", 200),
    ("draining", 503),
]


@pytest.mark.parametrize(("state", "status"), STATES)
async def test_readiness_follows_the_state_and_liveness_does_not(state: EngineState, status: int) -> None:
    async with http(build_app(FakeClient(state=state))) as api:
        for path, expected in (("/readyz", status), ("/health", status), ("/livez", 200)):
            answer = await api.get(path)
            assert (answer.status_code, answer.json()) == (expected, {"state": state})


async def test_metrics_are_prometheus_text() -> None:
    async with http(build_app(FakeClient())) as api:
        answer = await api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.text.startswith("# HELP sapwood_requests_total")


async def test_while_the_weights_load_requests_are_told_to_come_back() -> None:
    loading = FakeClient(state="loading", capacity=None)
    async with http(build_app(loading)) as api:
        for path, body in ((CHAT, chat_body()), (TEXT, text_body()), ("/detokenize", {"tokens": [1]})):
            answer = await api.post(path, json=body)
            error_of(answer, 503)
            assert int(answer.headers["retry-after"]) > 0
        assert (await api.get("/v1/models")).json()["data"][0]["max_model_len"] is None


async def test_the_load_is_the_published_snapshot() -> None:
    load = LoadSnapshot(num_running=3, kv_free_tokens=100)
    async with http(build_admin_app(FakeClient(load=load))) as admin:
        answer = (await admin.get("/admin/load")).json()
    assert (answer["model"], answer["state"]) == (MODEL, "ready")
    assert LoadSnapshot(**answer["load"]) == load
    assert replace(load, num_running=4) != load


async def test_the_cache_is_shown_up_to_a_bounded_number_of_nodes() -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        await admin.get("/admin/cache")
        await admin.get("/admin/cache?max_nodes=7")
        await admin.get("/admin/cache?max_nodes=0")
        for bad in ("-1", str(MAX_CACHE_NODES + 1), "x", "NaN", ""):
            assert error_of(await admin.get(f"/admin/cache?max_nodes={bad}"))["param"] == "max_nodes"
    assert client.admin_calls == [("cache", {"max_nodes": number}) for number in (1_000, 7, 0)]


async def test_calls_of_late_are_listed_up_to_a_bounded_number_of_ended_ones() -> None:
    ended = RequestView("call-1", "ended", "length", 9.0, 2.0, 20, 16, 8, {"queue": 0.5, "prefill": 0.5, "decode": 1.0})
    many = tuple(replace(ended, request_id=f"call-{number}") for number in range(MAX_RECENT_REQUESTS))
    async with http(build_admin_app(FakeClient(recent=many))) as admin:
        assert (await admin.get(ADMIN_REQUESTS)).json()["requests"][1] == asdict(ended)
        for query, num_ended in (("", MAX_RECENT_REQUESTS), ("?limit=7", 7), ("?limit=0", 0)):
            assert len((await admin.get(ADMIN_REQUESTS + query)).json()["requests"]) == num_ended
        for bad in ("-1", str(MAX_RECENT_REQUESTS + 1), "x", ""):
            assert error_of(await admin.get(f"{ADMIN_REQUESTS}?limit={bad}"))["param"] == "limit"


async def test_calls_of_late_are_listed_while_the_weights_load() -> None:
    async with http(build_admin_app(FakeClient(state="loading", capacity=None))) as admin:
        assert (await admin.get(ADMIN_REQUESTS)).json() == {"requests": []}


async def test_the_tokenizer_is_handed_out_under_the_models_revision() -> None:
    async with http(build_admin_app(FakeClient(model_revision="abc"))) as admin:
        answer = await admin.get(ADMIN_TOKENIZER)
        assert (answer.status_code, answer.content) == (200, b"a bundle of abc")
        assert answer.headers["content-type"] == "application/vnd.msgpack"
        assert answer.headers["etag"] == '"abc"'
        known = await admin.get(ADMIN_TOKENIZER, headers={"if-none-match": '"abc"'})
        assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", '"abc"')
        assert (await admin.get(ADMIN_TOKENIZER, headers={"if-none-match": '"of before"'})).status_code == 200


async def test_a_tokenizer_larger_than_a_reader_takes_is_not_handed_out() -> None:
    class Vast(ByteTokenizer):
        def bundle(self, model_revision: str) -> bytes:
            return bytes(MAX_TOKENIZER_BYTES + 1)

    async with http(build_admin_app(FakeClient(tokenizer=Vast()))) as admin:
        assert error_of(await admin.get(ADMIN_TOKENIZER), 404)["code"] == "tokenizer_too_large"


async def test_flush_empties_the_cache() -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        assert (await admin.post("/admin/flush")).json() == {"action": "flush"}
    assert client.admin_calls == [("flush", {})]


@pytest.mark.parametrize("path", ["/admin/flush", "/admin/drain", "/admin/abort"])
@pytest.mark.parametrize("origin", ["https://example.com", "null"])
async def test_a_web_page_cannot_change_anything(path: str, origin: str) -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        answer = await admin.post(path, headers={"origin": origin})
        assert error_of(answer, 403)["code"] == "origin_not_allowed"
        assert answer.headers["x-request-id"]
        assert (await admin.get("/admin/load", headers={"origin": origin})).status_code == 200
    assert (client.admin_calls, client.drained, client.aborted) == ([], [], [])


async def test_abort_tells_how_many_choices_it_reached() -> None:
    client = FakeClient()
    async with http(build_app(client)) as api, http(build_admin_app(client)) as admin:
        await api.post(CHAT, json=chat_body(), headers={"x-request-id": "call-1"})
        assert (await admin.post("/admin/abort", json={"request_id": "call-1"})).json() == {"num_aborted": 1}
        assert (await admin.post("/admin/abort", json={"request_id": "call"})).json() == {"num_aborted": 0}
        assert error_of(await admin.post("/admin/abort", json={}))["param"] == "request_id"
    assert client.aborted == ["call-1", "call"]


@pytest.mark.parametrize(("body", "seconds"), [(None, None), ({}, None), ({"deadline_seconds": 0}, 0.0)])
async def test_drain_answers_with_the_state_it_left(body: dict[str, Any] | None, seconds: float | None) -> None:
    client = FakeClient()
    async with http(build_admin_app(client)) as admin:
        answer = await (admin.post("/admin/drain", json=body) if body is not None else admin.post("/admin/drain"))
        assert answer.json()["state"] == "draining"
        error = error_of(await admin.post("/admin/drain", json={"deadline_seconds": -1}))
        assert error["param"] == "deadline_seconds"
    assert client.drained == [seconds]


async def test_a_drain_goes_on_when_its_caller_stops_waiting() -> None:
    started, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(FakeClient):
        async def drain(self, deadline_seconds: float | None = None) -> None:
            started.set()
            await may_end.wait()
            ended.set()

    async with http(build_admin_app(Slow())) as admin:
        call = asyncio.ensure_future(admin.post("/admin/drain"))
        await started.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        may_end.set()
        async with asyncio.timeout(60):
            await ended.wait()


async def test_the_admin_paths_are_not_on_the_public_port() -> None:
    async with http(build_app(FakeClient())) as api:
        for path in ("/admin/load", "/admin/cache", "/admin/tokenizer", "/admin/flush", "/admin/drain", "/admin/abort"):
            assert (await api.get(path)).status_code == 404


async def test_admin_refuses_while_there_is_no_cache_to_look_at() -> None:
    async with http(build_admin_app(FakeClient(state="loading", capacity=None))) as admin:
        error_of(await admin.get("/admin/cache"), 503)
        error_of(await admin.post("/admin/flush"), 503)
        assert (await admin.get("/admin/load")).json()["state"] == "loading"
