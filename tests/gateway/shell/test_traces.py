"""A request's way through the gateway as spans (I09): one of it, one of each attempt, ended whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from support_gateway import MODEL, Answer, Break, Gateway, Steps, Upstream, behind, drop, echo, status
from support_spans import NOT_SAMPLED, SPAN_ID, TRACE_ID, TRACEPARENT, Kept, attributes_of, ids_of, parent_of

from sapwood_gateway.shell.route_spans import SpannedRoutes
from sapwood_gateway.shell.route_trace import NoTraces

PATH = "/v1/chat/completions"
ATTEMPT = f"POST {PATH}"
MARKER = "a-marker-of-a-prompt"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": MARKER}]}).encode()
SAMPLED = {"traceparent": TRACEPARENT, "Authorization": "Bearer a-marker-of-a-key"}


@asynccontextmanager
async def traced(*answers: Answer, kept: Kept) -> AsyncIterator[tuple[Gateway, list[Upstream]]]:
    async with behind(*answers, traces=SpannedRoutes(kept.tracing)) as found:
        yield found
    assert not [span for span in kept.spans if "marker" in span.to_json()]


async def ask(gateway: Gateway, body: bytes = BODY, headers: dict[str, str] = SAMPLED) -> int:
    async with gateway.client.post(PATH, data=body, headers=headers) as response:
        await response.read()
        return response.status


def attempts(kept: Kept) -> list[ReadableSpan]:
    return [span for span in kept.spans if span.name == ATTEMPT]


async def test_the_engine_is_told_of_the_attempt_which_is_a_child_of_the_route_in_the_clients_trace() -> None:
    kept = Kept()
    async with traced(echo, kept=kept) as (gateway, (engine,)):
        assert await ask(gateway, headers={"TraceParent": TRACEPARENT, "tracestate": "rojo=1"}) == 200
        (sent,) = engine.requests
    route, (attempt,) = kept.one("gateway.route"), attempts(kept)
    assert (ids_of(route)[0], parent_of(route), route.kind) == (TRACE_ID, SPAN_ID, SpanKind.SERVER)
    assert (parent_of(attempt), attempt.kind) == (ids_of(route)[1], SpanKind.CLIENT)
    assert sent.headers.getall("traceparent") == [f"00-{TRACE_ID}-{ids_of(attempt)[1]}-01"]
    assert sent.headers.getall("tracestate") == ["rojo=1"]
    assert route.status.status_code == StatusCode.OK
    assert attributes_of(route) == {
        "http.request.method": "POST",
        "url.path": PATH,
        "http.response.status_code": 200,
        "gen_ai.request.model": MODEL,
        "sapwood.request_id": sent.headers["X-Request-Id"],
        "sapwood.route.service": "team/chat",
        "sapwood.route.candidates": 1,
        "sapwood.route.reason": "least_load",
        "sapwood.route.queue_seconds": 0.0,
        "sapwood.route.replica": "pod-0",
    }


async def test_each_attempt_has_a_span_and_the_last_one_is_the_engines_parent() -> None:
    kept, answers = Kept(), iter((status(503), drop, echo))

    async def answer(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    async with traced(answer, answer, answer, kept=kept) as (gateway, engines):
        assert await ask(gateway) == 200
    route, tried = kept.one("gateway.route"), attempts(kept)
    said = [attributes_of(each) for each in tried]
    assert {parent_of(each) for each in tried} == {ids_of(route)[1]}
    assert [each.get("error.type") for each in said] == ["unavailable", "broken", None]
    assert [each["http.request.resend_count"] for each in said] == [0, 1, 2]
    assert [each.get("http.response.status_code") for each in said] == [503, None, 200]
    assert route.status.status_code == StatusCode.OK
    assert attributes_of(route)["sapwood.route.replica"] == said[-1]["sapwood.route.replica"]
    told = {engine.requests[0].headers["traceparent"].split("-")[2] for engine in engines}
    assert told == {ids_of(each)[1] for each in tried}


async def test_a_client_that_leaves_ends_both_spans() -> None:
    kept, steps = Kept(), Steps()
    async with traced(steps.answer, kept=kept) as (gateway, (engine,)):
        steps.items.put_nowait(b"data: 1\n\n")
        async with gateway.client.post(PATH, data=BODY, headers=SAMPLED) as response:
            await response.content.readany()
            response.close()
            await engine.idle.wait()
        await gateway.traffic.drained()
    route = kept.one("gateway.route")
    (attempt,) = attempts(kept)
    assert (route.status.status_code, attributes_of(route)["error.type"]) == (StatusCode.ERROR, "client_disconnected")
    assert attempt.status.status_code == StatusCode.ERROR


async def test_an_answer_that_breaks_off_is_an_error_of_both() -> None:
    kept, steps = Kept(), Steps()
    async with traced(steps.answer, kept=kept) as (gateway, _):
        steps.items.put_nowait(b"data: 1\n\n")
        steps.items.put_nowait(Break)
        assert await ask(gateway) == 200
    route = kept.one("gateway.route")
    assert attributes_of(route)["http.response.status_code"] == 502
    assert attributes_of(attempts(kept)[0])["error.type"] == "cut"


@pytest.mark.parametrize(("body", "code"), [(b"{", 400), (json.dumps({"model": MARKER, "messages": []}).encode(), 404)])
async def test_a_request_that_goes_nowhere_has_one_span_with_its_status(body: bytes, code: int) -> None:
    kept = Kept()
    async with traced(echo, kept=kept) as (gateway, _):
        assert await ask(gateway, body) == code
    (route,) = kept.spans
    assert (route.name, route.status.status_code) == ("gateway.route", StatusCode.ERROR)
    assert attributes_of(route)["http.response.status_code"] == code


async def test_a_refusal_of_the_engines_is_an_error_of_both() -> None:
    kept = Kept()
    async with traced(status(400), kept=kept) as (gateway, _):
        assert await ask(gateway) == 400
    assert [attributes_of(span)["error.type"] for span in kept.spans] == ["400", "400"]


async def test_what_nobody_keeps_makes_no_spans_and_the_engine_is_told_so() -> None:
    kept = Kept(sampling_ratio=0)
    async with traced(echo, kept=kept) as (gateway, (engine,)):
        await ask(gateway, headers={"traceparent": NOT_SAMPLED})
        await ask(gateway, headers={})
        first, second = (each.headers["traceparent"].split("-") for each in engine.requests)
    assert kept.spans == []
    assert first[1] == TRACE_ID
    assert second[1] != TRACE_ID
    assert [int(each[3]) & 1 for each in (first, second)] == [0, 0]


async def test_a_context_that_cannot_be_read_is_not_passed_on() -> None:
    kept = Kept()
    async with traced(echo, kept=kept) as (gateway, (engine,)):
        await ask(gateway, headers={"traceparent": "00-garbage", "tracestate": "rojo=1"})
        await ask(gateway, headers={})
        sent = [each.headers for each in engine.requests]
    assert not [each for each in sent if "tracestate" in each]
    routes = [span for span in kept.spans if span.name == "gateway.route"]
    assert [parent_of(each) for each in routes] == [None, None]
    assert len({ids_of(each)[0] for each in routes}) == 2


async def test_two_requests_at_once_keep_their_own_traces() -> None:
    kept = Kept()
    async with traced(echo, kept=kept) as (gateway, _):
        await asyncio.gather(*(ask(gateway, headers={"traceparent": f"00-{n:032x}-{n:016x}-01"}) for n in range(1, 9)))
    for n in range(1, 9):
        attempt, route = (span for span in kept.spans if ids_of(span)[0] == f"{n:032x}")  # in the order of their ends
        assert parent_of(route) == f"{n:016x}"
        assert parent_of(attempt) == ids_of(route)[1]


async def test_a_gateway_that_keeps_no_traces_passes_the_clients_context_on_as_it_came() -> None:
    came = {"traceparent": "of-another-kind", "tracestate": "rojo=1"}
    async with behind(echo, traces=NoTraces()) as (gateway, (engine,)):
        for headers in (came, {"traceparent": TRACEPARENT}):
            await ask(gateway, headers=headers)
        sent = [each.headers for each in engine.requests]
    assert {name: sent[0][name] for name in came} == came
    assert sent[1]["traceparent"] == TRACEPARENT
