"""Calls as spans (I09): one ended span a call whatever becomes of it, a child of what the client says, true phases."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from support_api import CHAT, TEXT, http, served
from support_service import DEADLINE_SECONDS, ENDLESS, ThreadEngine, byte_tokenizer, options, settle, thread_engine
from support_spans import NOT_SAMPLED, SPAN_ID, TRACE_ID, TRACEPARENT, Kept, attributes_of, ids_of, parent_of

from sapwood_contract.http import LoadSnapshot
from sapwood_engine.api.app import build_app
from sapwood_engine.errors import WorkerDied
from sapwood_engine.service.call_trace import MOST_CHOICES, CallTraces
from sapwood_text.chat_template import JinjaTemplate

CALL = "text_completion fake"
PHASES = ["queue", "kv.match", "prefill", "decode"]
MARKER = "once-upon-a-marker"


@dataclass
class Traced:
    """An engine whose spans are kept."""

    engine: ThreadEngine
    client: httpx.AsyncClient
    kept: Kept

    async def ask(self, *, traceparent: str | None = TRACEPARENT, header: str = "traceparent", **fields: Any) -> Any:
        body = {"model": "fake", "prompt": MARKER, "max_tokens": 4, **fields}
        headers = {} if traceparent is None else {header: traceparent}
        return await self.client.post(TEXT, json=body, headers=headers)

    async def until(self, holds: Callable[[LoadSnapshot], int]) -> None:
        """Return once the engine's load is so."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds(await settle(self.engine.client)):
                pass

    def children(self, span: ReadableSpan) -> list[ReadableSpan]:
        return [each for each in self.kept.spans if parent_of(each) == ids_of(span)[1]]


@asynccontextmanager
async def tracing(*, fail_send: int | None = None, **launch: int) -> AsyncIterator[Traced]:
    kept = Kept()
    async with thread_engine(launch=options(**launch), fail_send=fail_send) as engine:
        app = build_app(engine.client, traces=CallTraces(kept.tracing, model="fake"))
        async with http(app) as client:
            yield Traced(engine, client, kept)
    kept.tracing.close()


@pytest.fixture
async def traced(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Traced]:
    async with tracing() as found:
        yield found
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


def is_ordered(spans: list[ReadableSpan]) -> bool:
    bounds = [(span.start_time or 0, span.end_time or 0) for span in spans]
    return all(begin <= end for begin, end in bounds) and all(
        first[1] == second[0] for first, second in pairwise(bounds)
    )


async def test_a_call_is_a_child_of_its_clients_span_with_phases_that_follow_one_another(traced: Traced) -> None:
    assert (await traced.ask()).status_code == 200
    call = traced.kept.one(CALL)
    assert ids_of(call)[0] == TRACE_ID
    assert (parent_of(call), call.kind, call.status.status_code) == (SPAN_ID, SpanKind.SERVER, StatusCode.OK)
    children = sorted(traced.children(call), key=lambda span: span.start_time or 0)
    assert [span.name for span in children] == ["tokenize", *PHASES]
    assert is_ordered(children[1:])
    assert (call.start_time or 0) <= (children[0].start_time or 0)
    assert (children[-1].end_time or 0) <= (call.end_time or 0)


async def test_a_call_has_the_attributes_of_the_conventions_and_nothing_that_a_client_wrote(traced: Traced) -> None:
    for _ in range(2):
        response = await traced.ask(temperature=0.5, top_p=0.9)
    said = attributes_of(traced.kept.spans[-1])
    usage = response.json()["usage"]
    assert {name: value for name, value in said.items() if name.startswith("gen_ai")} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "sapwood",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.stream": False,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
    }
    assert said["gen_ai.usage.cache_read.input_tokens"] > 0
    assert said["sapwood.request_id"] == response.headers["x-request-id"]
    assert not [span for span in traced.kept.spans if MARKER in span.to_json()]


async def test_the_phases_say_what_they_did(traced: Traced) -> None:
    prompt = [7] * 40  # more than one chunk of 32
    for _ in range(2):
        await traced.ask(prompt=prompt)
    first, second = (
        {span.name: attributes_of(span) for span in traced.children(call)}
        for call in traced.kept.spans
        if call.name == CALL
    )
    assert first["prefill"] == {
        "sapwood.choice": 0,
        "sapwood.cached_tokens": 0,
        "sapwood.computed_tokens": 40,
        "sapwood.chunks": 2,
    }
    assert second["kv.match"] == {"sapwood.choice": 0, "sapwood.cached_tokens": 39}
    assert second["prefill"]["sapwood.computed_tokens"] == second["prefill"]["sapwood.chunks"] == 1
    assert second["decode"]["sapwood.output_tokens"] == 4
    assert second["decode"]["sapwood.detokenize_seconds"] > 0
    assert "tokenize" not in first


async def test_header_names_are_read_in_any_case_and_without_one_a_call_begins_its_own_trace(traced: Traced) -> None:
    await traced.ask(header="TraceParent")
    for traceparent in (None, "00-garbage", None):
        await traced.ask(traceparent=traceparent)
    calls = [span for span in traced.kept.spans if span.name == CALL]
    assert [parent_of(call) for call in calls] == [SPAN_ID, None, None, None]
    assert len({ids_of(call)[0] for call in calls}) == 4
    assert all(traced.children(call) for call in calls)


async def test_two_calls_at_once_keep_their_own_traces(traced: Traced) -> None:
    others = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]
    await asyncio.gather(*(traced.ask(traceparent=each, max_tokens=30) for each in others))
    for number in (1, 2):
        spans = [span for span in traced.kept.spans if ids_of(span)[0] == f"{number:032x}"]
        (call,) = (span for span in spans if span.name == CALL)
        assert parent_of(call) == f"{number:016x}"
        assert sorted(span.name for span in traced.children(call)) == sorted(["tokenize", *PHASES])
        assert len(spans) == 6


async def test_a_trace_that_its_client_does_not_keep_has_no_spans(traced: Traced) -> None:
    assert (await traced.ask(traceparent=NOT_SAMPLED)).status_code == 200
    assert traced.kept.spans == []


async def test_an_aborted_call_ends_as_an_error_with_the_phases_that_it_had(traced: Traced) -> None:
    asked = asyncio.create_task(traced.ask(max_tokens=ENDLESS, ignore_eos=True))
    await traced.until(lambda load: load.num_running)
    (view,) = traced.engine.client.requests(0).requests
    assert await traced.engine.client.abort(view.request_id) == 1
    assert (await asked).status_code == 500
    call = traced.kept.one(CALL)
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "aborted")
    last = traced.children(call)[-1]
    assert attributes_of(last)["error.type"] == "aborted"
    assert attributes_of(call)["error.type"] == "aborted"


async def test_a_refused_call_has_one_span_with_its_status(traced: Traced) -> None:
    assert (await traced.ask(temperature=9)).status_code == 400
    assert (await traced.ask(model=MARKER)).status_code == 404
    bad, unknown = traced.kept.spans
    for span, status in ((bad, 400), (unknown, 404)):
        assert span.status.status_code == StatusCode.ERROR
        assert attributes_of(span)["http.response.status_code"] == status
        assert attributes_of(span)["error.type"] == str(status)
        assert MARKER not in span.to_json()


async def test_of_a_call_that_finds_the_queue_full_the_wait_is_told() -> None:
    async with tracing(max_running=1, max_queued=1) as traced:
        busy = []
        for is_there in (lambda load: load.num_running, lambda load: load.num_waiting):
            busy.append(asyncio.create_task(traced.ask(max_tokens=ENDLESS, ignore_eos=True)))
            await traced.until(is_there)
        traceparent = f"00-{7:032x}-{7:016x}-01"
        assert (await traced.ask(traceparent=traceparent)).status_code == 429
        for view in traced.engine.client.requests(0).requests:
            await traced.engine.client.abort(view.request_id)
        await asyncio.gather(*busy)
    call, *phases = sorted(
        (span for span in traced.kept.spans if ids_of(span)[0] == f"{7:032x}"), key=lambda span: span.start_time or 0
    )
    assert (call.name, attributes_of(call)["error.type"]) == (CALL, "Overloaded")
    assert [span.name for span in phases] == ["tokenize", "queue"]
    assert len([span for span in traced.kept.spans if span.name == CALL]) == 3


async def test_when_the_worker_dies_every_span_ends() -> None:
    async with tracing(fail_send=10) as traced:
        assert (await traced.ask(max_tokens=60, ignore_eos=True)).status_code == 500
        call, (*_, last) = traced.kept.one(CALL), traced.kept.spans[:-1]
        assert attributes_of(call)["error.type"] == WorkerDied.__name__
        assert attributes_of(last)["error.type"] == "failed"
        assert (await traced.ask(traceparent=None)).status_code == 500
    assert len([span for span in traced.kept.spans if span.name == CALL]) == 2


async def test_each_choice_has_its_phases_up_to_a_bound_and_the_sums_are_of_all(traced: Traced) -> None:
    response = await traced.ask(prompt=[MARKER, MARKER * 2], n=MOST_CHOICES, max_tokens=1)
    call, usage = traced.kept.one(CALL), response.json()["usage"]
    decodes = [attributes_of(span)["sapwood.choice"] for span in traced.children(call) if span.name == "decode"]
    assert sorted(decodes) == list(range(MOST_CHOICES))
    assert attributes_of(call)["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 2 * MOST_CHOICES
    assert attributes_of(call)["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]


async def test_what_is_no_call_has_no_span(traced: Traced) -> None:
    await traced.client.get("/v1/models", headers={"traceparent": TRACEPARENT})
    await traced.client.get(TEXT, headers={"traceparent": TRACEPARENT})
    await traced.client.post("/tokenize", json={"prompt": "x"}, headers={"traceparent": TRACEPARENT})
    assert traced.kept.spans == []


async def test_records_logged_for_a_request_carry_its_traces_id(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[dict[str, Any]] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            from structlog.contextvars import get_contextvars  # noqa: PLC0415

            if record.getMessage() == "call ended":
                seen.append(dict(get_contextvars()))

    watch = Watch()
    log = logging.getLogger("sapwood_engine.service.client")
    log.addHandler(watch)
    log.setLevel(logging.INFO)
    try:
        response = await traced.ask()
        await traced.ask(traceparent=NOT_SAMPLED)
    finally:
        log.removeHandler(watch)
        log.setLevel(logging.NOTSET)
    assert [each["trace_id"] for each in seen] == [TRACE_ID, TRACE_ID]
    assert seen[0]["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_of_a_call_whose_client_leaves_every_span_ends(stream: bool) -> None:
    kept = Kept()
    async with thread_engine() as engine:
        app = build_app(engine.client, traces=CallTraces(kept.tracing, model="fake"))
        async with served(app) as url, httpx.AsyncClient(base_url=url) as client:
            body = {"model": "fake", "prompt": "hi", "max_tokens": ENDLESS, "stream": stream, "ignore_eos": True}
            if stream:
                async with client.stream("POST", TEXT, json=body, headers={"traceparent": TRACEPARENT}) as response:
                    await anext(response.aiter_bytes())
            else:
                asked = asyncio.create_task(client.post(TEXT, json=body, headers={"traceparent": TRACEPARENT}))
                async with asyncio.timeout(DEADLINE_SECONDS):
                    while not (await settle(engine.client)).num_running:
                        pass
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not [span for span in kept.spans if span.name == CALL]:
                    await settle(engine.client)
    call = kept.one(CALL)
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, "client_disconnected")
    assert attributes_of(call)["http.response.status_code"] == 499
    assert {span.name for span in kept.spans if parent_of(span) == ids_of(call)[1]} >= {"tokenize", "queue"}


async def test_a_streamed_chat_has_a_span_from_its_first_byte_to_its_last() -> None:
    kept = Kept()
    async with thread_engine() as engine:
        template = JinjaTemplate("{{ messages[0].content }}", {})
        engine.client.checkpoint_found("revision", byte_tokenizer(template))
        app = build_app(engine.client, traces=CallTraces(kept.tracing, model="fake"))
        async with http(app) as client:
            body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
            response = await client.post(CHAT, json=body, headers={"traceparent": TRACEPARENT})
    assert response.text.endswith("data: [DONE]\n\n")
    assert json.loads(response.text.split("\n\n")[0].removeprefix("data: "))
    call = kept.one("chat fake")
    assert attributes_of(call)["gen_ai.request.stream"] is True
    assert attributes_of(call)["gen_ai.usage.output_tokens"] == 3
