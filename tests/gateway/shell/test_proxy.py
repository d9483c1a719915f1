"""Requests through a running gateway to real upstream servers: what arrives there, and what comes back."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from support_gateway import (
    CHAT,
    MODEL,
    Answer,
    Break,
    Gateway,
    Steps,
    Upstream,
    behind,
    drop,
    echo,
    gateway,
    nobody,
    routes,
    status,
    upstream,
)
from yarl import URL

from sapwood_gateway.core.balance import Report

PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
async def steps() -> Steps:
    return Steps()


def codes(running: Gateway) -> dict[str, float]:
    """How requests ended."""
    counted = running.counted("sapwood_gateway_requests_total").items()
    return {labels.split('"')[1]: value for labels, value in counted}


@pytest.fixture
async def engine(steps: Steps) -> AsyncIterator[Upstream]:
    async with upstream(steps.answer) as server:
        yield server


@pytest.fixture
async def running(engine: Upstream) -> AsyncIterator[Gateway]:
    async with gateway(routes(engine.replica("pod-a"))) as made:
        yield made


async def error_of(response: aiohttp.ClientResponse, code: int) -> dict[str, object]:
    assert response.status == code, await response.text()
    assert response.headers["Content-Type"] == "application/json"
    error: dict[str, object] = json.loads(await response.read())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- what passes through


async def test_a_body_reaches_the_engine_byte_for_byte_and_its_answer_the_client() -> None:
    body = ('{ "model" :"' + MODEL + '","messages":[],  "x": "é😀\\ud83d" }').encode()
    async with behind(echo) as (running, [engine]):
        async with running.client.post(PATH + "?a=b%20c", data=body) as response:
            assert await response.read() == body
        assert engine.bodies == [body]
        assert engine.requests[0].path_qs == PATH + "?a=b%20c"


async def test_a_body_of_megabytes_passes_through() -> None:
    body = json.dumps({**BODY, "x": "y" * 3_000_000}).encode()
    async with (
        behind(echo, max_body_bytes=2**22) as (running, _),
        running.client.post(PATH, data=io.BytesIO(body)) as response,
    ):
        assert await response.read() == body


async def test_each_piece_of_a_stream_arrives_before_the_next_one_is_sent(running: Gateway, steps: Steps) -> None:
    pieces = [b'data: {"n":1}\n\n', b'data: {"n"', b":2}\n\n", b"data: [DONE]\n\n"]
    steps.items.put_nowait(pieces[0])
    async with running.client.post(PATH, json=BODY) as response:
        assert await response.content.readany() == pieces[0]
        for piece in pieces[1:]:
            steps.items.put_nowait(piece)
            assert await response.content.readany() == piece
        steps.items.put_nowait(None)
        assert await response.content.read() == b""


async def test_a_stream_tells_what_stands_in_between_not_to_hold_it_back(running: Gateway, steps: Steps) -> None:
    steps.items.put_nowait(b"data: 1\n\n")
    steps.items.put_nowait(None)
    async with running.client.post(PATH, json=BODY) as response:
        await response.read()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Cache-Control"] == "no-cache"
    assert "Content-Length" not in response.headers


async def test_a_whole_answer_keeps_its_length_and_headers() -> None:
    answer = status(200, b"12345", X_Tokens="5", Connection="X-Private", X_Private="1", Keep_Alive="timeout=5")
    async with behind(answer) as (running, _):
        async with running.client.post(PATH, json=BODY) as response:
            assert await response.read() == b"12345"
        assert response.headers["Content-Length"] == "5"
        assert response.headers["X-Tokens"] == "5"
        assert {"X-Private", "Keep-Alive", "Server", "Transfer-Encoding"}.isdisjoint(response.headers)


async def test_a_compressed_answer_stays_as_it_is() -> None:
    answer = status(200, b"\x1f\x8b not really gzip", Content_Encoding="gzip")
    async with behind(answer) as (running, _), running.client.post(PATH, json=BODY) as response:
        assert await response.read() == b"\x1f\x8b not really gzip"


async def test_headers_of_one_connection_do_not_reach_the_engine_and_the_others_do() -> None:
    headers = {"Connection": "X-Hop", "X-Hop": "1", "TE": "trailers", "Authorization": "Bearer k", "X-Mine": "2"}
    async with behind(echo) as (running, [engine]):
        async with running.client.post(PATH, json=BODY, headers=headers) as response:
            await response.read()
        got = engine.requests[0].headers
        assert {"X-Hop", "TE"}.isdisjoint(got)
        assert (got["Authorization"], got["X-Mine"]) == ("Bearer k", "2")
        assert got["Host"] == engine.url.removeprefix("http://")


@pytest.mark.parametrize(("offered", "kept"), [("abc-1", True), ("a b", False), ("x" * 129, False), ("", False)])
async def test_a_request_has_one_id_everywhere(offered: str, kept: bool) -> None:
    async with behind(echo) as (running, [engine]):
        async with running.client.post(PATH, json=BODY, headers={"X-Request-Id": offered}) as response:
            await response.read()
        assert response.headers["X-Request-Id"] == engine.requests[0].headers["X-Request-Id"]
        assert (response.headers["X-Request-Id"] == offered) == kept


async def test_an_engines_refusal_of_a_bad_request_is_passed_on_and_sent_once() -> None:
    refusal = b'{"error":{"message":"no","type":"invalid_request_error","param":"n","code":"invalid_value"}}'
    for code in (400, 404, 422, 500):
        async with behind(status(code, refusal), echo) as (running, [bad, good]):
            async with running.client.post(PATH, json=BODY) as response:
                assert (response.status, await response.read()) == (code, refusal)
            assert (len(bad.bodies), len(good.bodies)) == (1, 0)


# --- clients that leave


async def test_a_client_that_leaves_a_stream_takes_the_upstream_connection_along(
    running: Gateway, engine: Upstream, steps: Steps
) -> None:
    steps.items.put_nowait(b"data: 1\n\n")
    async with running.client.post(PATH, json=BODY) as response:
        await response.content.readany()
        assert engine.num_running == 1
        response.close()
        await engine.idle.wait()
    await running.traffic.drained()
    assert running.fleet.num_own == 0
    assert running.counted("sapwood_gateway_requests_total") == {
        f'{{code="499",inference_service="{CHAT}",model="{MODEL}"}}': 1
    }


async def test_a_client_that_leaves_before_the_first_byte_does_too(
    running: Gateway, engine: Upstream, steps: Steps
) -> None:
    asking = asyncio.create_task(running.client.post(PATH, json=BODY))
    await engine.busy.wait()
    asking.cancel()
    await engine.idle.wait()
    await running.traffic.drained()
    assert running.fleet.num_own == 0


# --- other replicas


@pytest.mark.parametrize("answer", [drop, *(status(code) for code in (429, 502, 503, 504))])
async def test_what_one_replica_does_not_answer_another_one_does(answer: Answer) -> None:
    async with behind(answer, echo) as (running, [bad, good]):
        async with running.client.post(PATH, json=BODY) as response:
            assert response.status == 200
            assert await response.json() == BODY
        assert (len(bad.bodies), len(good.bodies)) == (1, 1)
        assert bad.requests[0].headers["X-Request-Id"] == good.requests[0].headers["X-Request-Id"]


async def test_a_replica_that_cannot_be_reached_costs_no_request() -> None:
    async with upstream(echo) as good, gateway(routes(nobody(), good.replica("b"))) as running:
        for _ in range(10):
            async with running.client.post(PATH, json=BODY) as response:
                assert response.status == 200
        failures = running.series("sapwood_gateway_attempt_failures_total")
        assert failures['{reason="connect"}'] == 3  # then it rests
        assert running.series("sapwood_gateway_replicas")['{state="resting"}'] == 1


async def test_a_replica_that_answers_headers_and_dies_before_the_first_byte_is_no_loss(steps: Steps) -> None:
    steps.items.put_nowait(Break)
    async with behind(steps.answer, echo) as (running, _), running.client.post(PATH, json=BODY) as response:
        assert await response.json() == BODY


async def test_a_replica_that_does_not_begin_in_time_is_given_up_where_a_limit_is_set(steps: Steps) -> None:
    async with behind(steps.answer, first_byte_timeout_seconds=0.05) as (running, [slow]):
        async with running.client.post(PATH, json=BODY) as response:
            assert (await error_of(response, 504))["code"] == "upstream_timeout"
        await slow.idle.wait()


async def test_where_all_are_busy_the_client_gets_the_last_ones_answer() -> None:
    busy = status(429, b'{"error":{"code":"queue_full"}}', Retry_After="7")
    async with behind(busy, busy) as (running, [a, b]):
        async with running.client.post(PATH, json=BODY) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "7"
            assert await response.json() == {"error": {"code": "queue_full"}}
        assert (len(a.bodies), len(b.bodies)) == (1, 1)


async def endless(request: web.Request) -> web.StreamResponse:
    """Refuse, and never come to the end of saying so."""
    response = web.StreamResponse(status=503)
    await response.prepare(request)
    while True:
        await response.write(b" " * 2**16)


async def test_a_refusal_without_an_end_is_not_read_to_its_end_and_another_replica_answers() -> None:
    async with behind(endless, echo) as (running, [refusing, _]):
        async with running.client.post(PATH, json=BODY) as response:
            assert await response.json() == BODY
        await refusing.idle.wait()
        assert running.series("sapwood_gateway_attempt_failures_total")['{reason="broken"}'] == 1


@pytest.mark.parametrize(
    "head",
    [
        *(b"200 OK\r\nX-A: a\x01b", b"200 OK\r\nX-A: \x7f", b"200 O\x02K"),
        *(b"101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade", b"099 Low", b"999 High"),
    ],
)
async def test_what_no_client_can_be_told_is_no_answer_and_another_replica_gives_one(head: bytes) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.write(b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\n\r\n")
        request.transport.close()
        return web.Response()

    async with behind(answer, echo) as (running, _):
        async with running.client.post(PATH, json=BODY) as response:
            assert (response.status, await response.json()) == (200, BODY)
        assert running.series("sapwood_gateway_attempt_failures_total")['{reason="broken"}'] == 1


async def test_a_refusal_that_does_not_end_in_time_is_none(steps: Steps) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429)
        await response.prepare(request)
        await steps.items.get()
        return response

    async with behind(refuse, echo, refusal_timeout_seconds=0.05) as (running, _):
        async with running.client.post(PATH, json=BODY) as response:
            assert await response.json() == BODY
        assert running.series("sapwood_gateway_attempt_failures_total")['{reason="broken"}'] == 1


async def test_an_engine_cannot_send_the_gateway_elsewhere() -> None:
    async with upstream(echo) as elsewhere:
        redirect = status(307, Location=elsewhere.url)
        async with (
            behind(redirect) as (running, _),
            running.client.post(PATH, json=BODY, allow_redirects=False) as response,
        ):
            assert (response.status, response.headers["Location"]) == (307, elsewhere.url)
        assert elsewhere.bodies == []


async def test_attempts_are_bounded() -> None:
    async with behind(status(503), status(503), status(503), max_attempts=2) as (running, engines):
        async with running.client.post(PATH, json=BODY) as response:
            assert response.status == 503
        assert sum(len(engine.bodies) for engine in engines) == 2


async def test_bad_requests_open_no_circuit() -> None:
    async with behind(status(400)) as (running, _):
        for _ in range(10):
            async with running.client.post(PATH, json=BODY) as response:
                assert response.status == 400
        assert running.series("sapwood_gateway_replicas")['{state="fit"}'] == 1


async def test_a_draining_replica_gets_nothing_new() -> None:
    async with behind(echo, echo) as (running, [a, b]):
        running.fleet.reported("pod-0", Report("draining", 5, 0, 0))
        for _ in range(4):
            async with running.client.post(PATH, json=BODY) as response:
                assert response.status == 200
        assert (len(a.bodies), len(b.bodies)) == (0, 4)


async def test_a_service_whose_last_replica_cannot_be_reached_says_so() -> None:
    async with gateway(routes(nobody())) as running, running.client.post(PATH, json=BODY) as response:
        error = await error_of(response, 503)
        assert error["code"] == "replica_unreachable"
        assert "team/chat" in str(error["message"])
        assert response.headers["Retry-After"] == "1"


async def test_a_service_without_replicas_says_so_and_when_to_come_back() -> None:
    async with gateway(routes()) as running, running.client.post(PATH, json=BODY) as response:
        error = await error_of(response, 503)
        assert error["code"] == "no_replica_ready"
        assert "team/chat" in str(error["message"])
        assert response.headers["Retry-After"] == "5"
        assert running.series("sapwood_gateway_route_total")['{result="none"}'] == 1


# --- answers that break off


@pytest.mark.parametrize("last", [b'data: {"n":1}\n\n', b'data: {"n":'])
async def test_a_stream_whose_engine_dies_ends_with_an_error_event(running: Gateway, steps: Steps, last: bytes) -> None:
    for item in (b"data: 0\n\n", last, Break):
        steps.items.put_nowait(item)
    async with running.client.post(PATH, json=BODY) as response:
        blocks = (await response.read()).decode().split("\n\n")
    assert blocks[0] == "data: 0"
    assert blocks[-1] == ""
    assert json.loads(blocks[-2].removeprefix("data: "))["error"]["code"] == "upstream_ended"
    assert running.series("sapwood_gateway_attempt_failures_total")['{reason="cut"}'] == 1
    assert codes(running) == {"502": 1}


async def test_a_stream_that_its_engine_ends_with_an_error_counts_as_one(running: Gateway, steps: Steps) -> None:
    for item in (b"data: 0\n\n", b'data: {"error":{}}\n\n', None):
        steps.items.put_nowait(item)
    async with running.client.post(PATH, json=BODY) as response:
        assert (await response.read()).endswith(b'{"error":{}}\n\n')
    assert codes(running) == {"500": 1}


async def test_an_answer_that_is_no_stream_breaks_off_where_its_engine_dies() -> None:
    steps = Steps("application/json")
    async with behind(steps.answer) as (running, _):
        for item in (b'{"choices":', Break):
            steps.items.put_nowait(item)
        async with running.client.post(PATH, json=BODY) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_requests_that_outlast_the_drain_end_with_an_error(
    running: Gateway, engine: Upstream, steps: Steps
) -> None:
    steps.items.put_nowait(b"data: 1\n\n")
    async with running.client.post(PATH, json=BODY) as stream:
        await stream.content.readany()
        engine.busy.clear()
        waiting = asyncio.create_task(running.client.post(PATH, json=BODY))
        await engine.busy.wait()
        running.traffic.is_draining = True
        running.proxy.cut()
        assert json.loads((await stream.read()).removeprefix(b"data: "))["error"]["code"] == "gateway_stopping"
        assert (await error_of(await waiting, 503))["code"] == "gateway_stopping"
    await running.traffic.drained()
    assert codes(running) == {"503": 2}


# --- what the gateway refuses itself


@pytest.mark.parametrize(
    ("body", "status_", "code"),
    [
        (b"", 400, "invalid_body"),
        (b"[]", 400, "invalid_body"),
        (b'{"model":', 400, "invalid_body"),
        (b'{"model":"\xff"}', 400, "invalid_body"),
        (b'{"model":1}', 400, "invalid_value"),
        (b'{"model":"other"}', 404, "model_not_found"),
        (b'{"model":"\\ud83d"}', 404, "model_not_found"),
        (b'{"model":"' + b"x" * 2_000_000 + b'"}', 413, "body_too_large"),
    ],
    ids=["empty", "list", "cut", "bytes", "number", "unknown", "half a pair", "large"],
)
async def test_what_no_engine_could_be_found_for_is_refused(body: bytes, status_: int, code: str) -> None:
    async with behind(echo) as (running, [engine]):
        async with running.client.post(PATH, data=io.BytesIO(body)) as response:
            assert (await error_of(response, status_))["code"] == code
        assert engine.bodies == []


async def test_a_request_without_a_model_goes_to_the_only_service() -> None:
    async with behind(echo) as (running, _), running.client.post("/tokenize", json={"prompt": "hi"}) as response:
        assert await response.json() == {"prompt": "hi"}


async def test_a_compressed_body_is_refused() -> None:
    async with behind(echo) as (running, [engine]):
        async with running.client.post(PATH, data=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}) as response:
            assert (await error_of(response, 415))["code"] == "unsupported_encoding"
        assert engine.bodies == []


async def test_a_body_that_does_not_come_in_time_is_refused() -> None:
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def begun() -> AsyncIterator[bytes]:
        yield b'{"model":'
        yield await pieces.get()

    async with behind(echo, body_timeout_seconds=0.05) as (running, [engine]):
        async with running.client.post(PATH, data=begun()) as response:
            assert (await error_of(response, 408))["code"] == "body_timeout"
        assert engine.bodies == []
        assert running.counted("sapwood_gateway_requests_total") == {'{code="408",inference_service="",model=""}': 1}


async def test_a_body_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    async with behind(echo, max_body_bytes=100) as (running, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(running.url).port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_bodies_that_have_no_room_beside_those_of_requests_under_way_are_refused(
    engine: Upstream, steps: Steps
) -> None:
    body = json.dumps({"model": MODEL, "x": "y" * 600}).encode()
    async with gateway(routes(engine.replica()), max_body_bytes=1000, max_held_bytes=1000) as running:
        steps.items.put_nowait(b"data: 1\n\n")
        async with running.client.post(PATH, data=body) as stream:
            await stream.content.readany()
            async with running.client.post(PATH, data=body) as response:
                assert (await error_of(response, 503))["code"] == "gateway_full"
                assert response.headers["Retry-After"] == "1"
            async with running.client.post(PATH, data=b"[]") as response:
                assert response.status == 400
            steps.items.put_nowait(None)
            await stream.read()
        await running.traffic.drained()
        steps.items.put_nowait(None)
        async with running.client.post(PATH, data=body) as response:
            assert response.status == 200


@pytest.mark.parametrize("sent", [b"[]", b'{"model":"other"}', b"x" * 2000], ids=["invalid", "unknown", "large"])
async def test_a_refused_body_leaves_its_room_to_others(sent: bytes) -> None:
    async with behind(echo, max_body_bytes=1000, max_held_bytes=1000) as (running, _):
        for _ in range(1000 // len(sent) + 1):
            async with running.client.post(PATH, data=io.BytesIO(sent)) as response:
                assert 400 <= response.status < 500
        async with running.client.post(PATH, json={"model": MODEL, "x": "y" * 900}) as response:
            assert response.status == 200


async def test_names_that_clients_make_up_make_no_series() -> None:
    async with behind(echo) as (running, _):
        for number in range(5):
            async with running.client.post(PATH, json={"model": f"made-up-{number}"}) as response:
                assert response.status == 404
        assert running.counted("sapwood_gateway_requests_total") == {'{code="404",inference_service="",model=""}': 5}


async def test_nothing_that_a_client_wrote_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "MARKER-PROMPT"}]}
    headers = {"Authorization": "Bearer MARKER-KEY"}

    for answer in (echo, drop, status(500)):
        async with behind(answer) as (running, _):
            for sent in (body, {**body, "model": "MARKER-MODEL"}, {**body, "model": 1}):
                async with running.client.post(PATH, json=sent, headers=headers) as response:
                    await response.read()
    written = "".join(str(vars(record)) for record in caplog.records if record.name.startswith("sapwood"))
    assert "MARKER" not in written
    assert "'code': '200'" in written
