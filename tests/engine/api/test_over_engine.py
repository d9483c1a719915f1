"""The API over the real client, pipes, engine loop, scheduler and cache; only the model is a fake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support_api import CHAT, TEXT, error_of, events, http, join_stream, served, strict_json, summary
from support_fake_executor import FakeExecutor
from support_service import (
    DEADLINE_SECONDS,
    ENDLESS,
    EOS_ID,
    ThreadEngine,
    byte_tokenizer,
    options,
    settle,
    small_capacity,
    thread_engine,
)

from sapwood_contract.http import LoadSnapshot
from sapwood_contract.launch import LaunchOptions
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.api.app import build_app
from sapwood_text.chat_template import JinjaTemplate

PROMPT = "The quick brown fox jumps over the lazy dog; " * 4


def saying(text: bytes, prompt: str) -> FakeExecutor:
    """An executor whose answer to ``prompt`` is ``text`` and then the end of sequence, for ever."""
    answer = dict(enumerate(text, start=len(prompt.encode())))
    return FakeExecutor(small_capacity(), override=lambda tokens: answer.get(len(tokens), EOS_ID))


def with_template(engine: ThreadEngine) -> None:
    """Give the engine's tokenizer a chat template: the contents one after the other."""

    template = JinjaTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {})
    engine.client.checkpoint_found("revision", byte_tokenizer(template))


@asynccontextmanager
async def api_of(engine: ThreadEngine) -> AsyncIterator[httpx.AsyncClient]:
    with_template(engine)
    async with http(build_app(engine.client)) as api:
        yield api


@asynccontextmanager
async def served_engine(
    *, executor: FakeExecutor | None = None, launch: LaunchOptions | None = None, most_connections: int = 100
) -> AsyncIterator[tuple[ThreadEngine, httpx.AsyncClient, httpx.AsyncClient]]:
    """An engine with its API on a real port, and its admin API."""
    limits = httpx.Limits(max_connections=most_connections)
    async with (
        thread_engine(executor=executor, launch=launch) as engine,
        served(build_app(engine.client)) as address,
        httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as api,
        http(build_admin_app(engine.client)) as admin,
    ):
        yield engine, api, admin


async def load_when(engine: ThreadEngine, condition: Callable[[LoadSnapshot], bool]) -> LoadSnapshot:
    """Return the load once ``condition`` holds; every look at it also checks the cache's invariants."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition(load := await settle(engine.client)):
            pass
    return load


def body(path: str, prompt: str | list[str] | list[int] = PROMPT, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": prompt} if path == TEXT else {"messages": [{"role": "user", "content": prompt}]}
    return {"model": "fake", "max_tokens": 12, "temperature": 0, **asked, **fields}


def endless(**fields: Any) -> dict[str, Any]:
    return body(TEXT, max_tokens=ENDLESS // 2, ignore_eos=True, stream=True, **fields)


async def whole(api: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    response = await api.post(path, json=body(path, **fields))
    assert response.status_code == 200, response.text
    return dict(strict_json(response.text))


async def stream(api: httpx.AsyncClient, path: str, **fields: Any) -> list[Any]:
    response = await api.post(path, json=body(path, **fields, stream=True))
    assert response.status_code == 200, response.text
    return events(response.text)


async def test_tokenizing_is_a_phase_of_every_prompt_that_came_as_text() -> None:
    async with thread_engine() as engine, api_of(engine) as api:
        await whole(api, CHAT, n=3)
        await whole(api, TEXT, prompt=["one", "two"])
        await whole(api, TEXT, prompt=[1, 2, 3])
        lines = engine.client.render_metrics().body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines)
    assert float(values['sapwood_request_phase_seconds_count{model="fake",phase="tokenize"}']) == 3
    assert float(values['sapwood_request_phase_seconds_sum{model="fake",phase="tokenize"}']) > 0


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("overlap", ["on", "off"])
async def test_stream_and_whole_answer_agree_on_text_logprobs_usage_and_finish(path: str, overlap: str) -> None:
    logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    asked = {"n": 3, "seed": 5, "temperature": 1, "stop": ["e"], **logprobs}
    async with (
        thread_engine(launch=options(overlap=overlap, prefix_cache="off")) as engine,
        api_of(engine) as api,
    ):
        streamed = await stream(api, path, **asked, stream_options={"include_usage": True})
        answer = summary(await whole(api, path, **asked))
    assert join_stream(streamed, text="delta" if path == CHAT else "text") == answer
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
async def test_the_same_prompt_again_computes_one_token_and_says_so(page_size: int) -> None:
    executor = FakeExecutor(small_capacity(page_size=page_size))
    async with (
        thread_engine(executor=executor, launch=options(page_size=page_size)) as engine,
        api_of(engine) as api,
    ):
        first = await whole(api, TEXT)
        second = await whole(api, TEXT, n=3, seed=1)
        salted = await whole(api, TEXT, cache_salt="other")
    details = "prompt_tokens_details"
    assert first["usage"][details] == {"cached_tokens": 0}
    assert second["usage"][details] == {"cached_tokens": len(PROMPT) - 1}
    assert second["usage"]["prompt_tokens"] == len(PROMPT)
    assert {choice["text"] for choice in second["choices"]} == {first["choices"][0]["text"]}
    assert salted["usage"][details] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"\xf0\x9f\x98\x80 \xc4\x8f", "😀 ď"),
        (b"a\xef\xbf\xbd", "a\ufffd"),
        (b"ok \xf0\x9f\x98", "ok "),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_no_chunk_splits_a_character(path: str, said: bytes, text: str) -> None:
    """D01, D03, and an incomplete character at the end, which is dropped either way."""
    async with thread_engine(executor=saying(said, PROMPT)) as engine, api_of(engine) as api:
        streamed = await stream(api, path, max_tokens=50)
        answer = summary(await whole(api, path, max_tokens=50))["choices"][0]
    assert answer["text"] == text
    assert answer["finish_reason"] == "stop"
    joined = join_stream(streamed, text="delta" if path == CHAT else "text")["choices"][0]
    assert joined["text"] == text
    pieces = [c["delta"].get("content", "") if path == CHAT else c["text"] for e in streamed[:-1] for c in e["choices"]]
    assert all("\ufffd" not in piece for piece in pieces) or text.endswith("\ufffd")


@pytest.mark.parametrize(
    ("said", "stop", "text", "stop_reason"),
    [
        (b"pleas", "assistant", "pleas", None),
        (b"yes?", "\n", "yes?", None),
        (b"one END two", "END", "one ", "END"),
        (b"one ENENDX", "END", "one EN", "END"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_stop_string_never_leaks_and_what_was_held_back_is_not_lost(
    path: str, said: bytes, stop: str, text: str, stop_reason: str | None
) -> None:
    """D05."""
    async with thread_engine(executor=saying(said, PROMPT)) as engine, api_of(engine) as api:
        streamed = await stream(api, path, stop=stop, max_tokens=50)
        choice = (await whole(api, path, stop=stop, max_tokens=50))["choices"][0]
    assert join_stream(streamed, text="delta" if path == CHAT else "text")["choices"][0]["text"] == text
    assert summary({"choices": [choice], "usage": None})["choices"][0]["text"] == text
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop_reason)


async def test_nul_in_a_prompt_counts_in_full() -> None:
    """D25."""
    async with thread_engine() as engine, api_of(engine) as api:
        answer = await whole(api, CHAT, prompt="alpha\x00omega")
    assert answer["usage"]["prompt_tokens"] == len("alpha\x00omega")


async def test_echo_scores_a_prompt_that_is_cached_already() -> None:
    async with thread_engine() as engine, api_of(engine) as api:
        await whole(api, TEXT, prompt="abcdef")
        answer = await whole(api, TEXT, prompt="abcdef", echo=True, logprobs=0, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "abcdef"
    assert choice["logprobs"]["tokens"] == list("abcdef")
    assert [value is None for value in choice["logprobs"]["token_logprobs"]] == [True] + [False] * 5


async def test_echo_alone_without_new_tokens_takes_the_prompt_from_the_cache() -> None:
    async with thread_engine() as engine, api_of(engine) as api:
        await whole(api, TEXT, prompt="abcdef")
        answer = await whole(api, TEXT, prompt="abcdef", echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "abcdef"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 0


async def test_two_clients_that_leave_make_room_for_a_third() -> None:
    """D31: max_running=2 and two endless streams, both sockets closed after a chunk."""
    async with served_engine(launch=options(max_running=2)) as (engine, api, _):
        for _ in range(2):
            async with api.stream("POST", TEXT, json=endless()) as response:
                await anext(response.aiter_raw())
        assert (await api.post(TEXT, json=body(TEXT, prompt="third"))).status_code == 200
        load = await load_when(engine, lambda load: load.num_running == 0)
    assert (load.kv_active_tokens, load.kv_protected_tokens, load.num_waiting) == (0, 0, 0)


async def test_two_hundred_clients_that_leave_at_random_leave_nothing_behind() -> None:
    draw = random.Random(3)
    executor = FakeExecutor(small_capacity(max_seats=16))
    launch = options(max_running=16)
    async with served_engine(executor=executor, launch=launch, most_connections=40) as (engine, api, _):

        async def visit(stays: bool, num_pieces: int, **fields: Any) -> None:
            try:
                async with asyncio.timeout(None if stays else draw.random() / 5):
                    async with api.stream("POST", TEXT, json=body(TEXT, **fields)) as response:
                        assert response.status_code == 200
                        pieces = response.aiter_raw()
                        for _ in range(num_pieces):
                            if await anext(pieces, None) is None:
                                break
            except TimeoutError:
                assert not stays

        visits = []
        for number in range(200):
            stays = draw.random() < 0.3
            visits.append(
                visit(
                    stays,
                    draw.randrange(1, 10),
                    prompt=PROMPT[: draw.randrange(1, len(PROMPT))] + str(number % 7),
                    max_tokens=draw.randrange(1, 40) if stays else 5_000,
                    n=draw.choice([1, 1, 2]),
                    stream=draw.random() < 0.8 or not stays,
                    ignore_eos=not stays,
                )
            )
        await asyncio.gather(*visits)
        load = await load_when(engine, lambda load: load.num_running + load.num_waiting == 0)
        metrics = engine.client.render_metrics().body.decode()
    assert (load.kv_active_tokens, load.kv_protected_tokens, load.radix_locked_nodes) == (0, 0, 0)
    assert load.kv_free_tokens + load.kv_evictable_tokens == load.kv_capacity_tokens
    assert 'sapwood_requests_running{model="fake"} 0.0' in metrics


async def test_a_drain_ends_a_running_stream_with_an_error_event_and_refuses_the_next() -> None:
    """D29: by the engine's own hand, at the deadline."""
    async with served_engine() as (_, api, admin):
        async with api.stream("POST", TEXT, json=endless()) as response:
            pieces = response.aiter_text()
            received = await anext(pieces)
            drained = await admin.post("/admin/drain", json={"deadline_seconds": 0})
            assert drained.json()["state"] == "draining"
            received += "".join([piece async for piece in pieces])
        refused = await api.post(TEXT, json=body(TEXT))
        error_of(refused, 503)
        assert int(refused.headers["retry-after"]) > 0
        assert (await api.get("/readyz")).status_code == 503
        assert (await api.get("/livez")).status_code == 200
    *chunks, last = events(received)
    assert set(last) == {"error"}
    assert join_stream(chunks, text="text")["choices"][0]["finish_reason"] is None


async def test_abort_by_request_id_ends_that_call_alone() -> None:
    async with (
        served_engine() as (_, api, admin),
        api.stream("POST", TEXT, json=endless(n=2), headers={"x-request-id": "mine"}) as response,
    ):
        pieces = response.aiter_text()
        received = await anext(pieces)
        for other, num_aborted in (("min", 0), ("mine#0", 0), ("*", 0), ("mine", 2)):
            answer = await admin.post("/admin/abort", json={"request_id": other})
            assert answer.json() == {"num_aborted": num_aborted}
        received += "".join([piece async for piece in pieces])
    assert set(events(received)[-1]) == {"error"}


@pytest.mark.parametrize("asks_for_stream", [False, True])
async def test_a_failed_step_ends_its_answer_with_an_error_and_the_engine_serves_on(
    asks_for_stream: bool,
) -> None:
    executor = FakeExecutor(small_capacity(), fail_launches=frozenset({12}))
    launch = options(overlap="off")
    async with thread_engine(executor=executor, launch=launch) as engine, api_of(engine) as api:
        response = await api.post(TEXT, json=body(TEXT, max_tokens=30, ignore_eos=True, stream=asks_for_stream))
        assert (await whole(api, TEXT))["choices"][0]["finish_reason"]
    error = events(response.text)[-1]["error"] if asks_for_stream else error_of(response, 500)
    assert error["code"] == "generation_failed"


async def test_the_admin_api_shows_and_flushes_the_live_tree() -> None:
    async with (
        thread_engine() as engine,
        api_of(engine) as api,
        http(build_admin_app(engine.client)) as admin,
    ):
        await whole(api, TEXT)
        tree = (await admin.get("/admin/cache?max_nodes=5")).json()
        assert tree["enabled"] is True
        assert (await admin.get("/admin/load")).json()["load"]["kv_evictable_tokens"] > 0
        assert (await admin.post("/admin/flush")).json()["num_tokens"] > 0
        await load_when(engine, lambda load: load.kv_evictable_tokens == 0)


async def test_a_full_queue_is_a_429_with_retry_after() -> None:
    async with served_engine(launch=options(max_running=1, max_queued=1)) as (engine, api, _):
        async with api.stream("POST", TEXT, json=endless()) as running:
            pieces = running.aiter_raw()  # a name: httpx closes the stream of an iterator that nobody holds
            await anext(pieces)
            waiting = asyncio.ensure_future(api.post(TEXT, json=body(TEXT, max_tokens=2)))
            await load_when(engine, lambda load: load.num_waiting == 1)
            refused = await api.post(TEXT, json=body(TEXT, stream=True))
        assert (await waiting).status_code == 200
    assert error_of(refused, 429)["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) > 0


async def test_calls_of_late_tell_the_phases_and_nothing_of_what_was_written() -> None:
    async with served_engine() as (_, api, admin):
        secret = body(TEXT, "MARKER prompt", max_tokens=4, cache_salt="MARKER salt", user="MARKER user")
        headers = {"x-request-id": "mine", "authorization": "Bearer MARKER key"}
        assert (await api.post(TEXT, json=secret, headers=headers)).status_code == 200
        listed = await admin.get("/admin/requests")
    (told,) = listed.json()["requests"]
    assert "MARKER" not in listed.text
    assert (told["request_id"], told["state"], told["finish"]) == ("mine", "ended", "length")
    assert (told["num_prompt_tokens"], told["num_cached_tokens"], told["num_output_tokens"]) == (13, 0, 4)
    assert list(told["phases"]) == ["tokenize", "queue", "prefill", "decode", "detokenize"]
    assert sum(told["phases"].values()) == pytest.approx(told["duration_seconds"])
