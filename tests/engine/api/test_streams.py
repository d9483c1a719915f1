"""The stream and the whole answer say the same, and a stream ends honestly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_api import CHAT, TEXT, chat_body, error_of, events, http, join_stream, served, summary, text_body
from support_fake_client import FakeClient, Pause, Say, Script, spoken

from sapwood_engine.api.app import build_app
from sapwood_engine.errors import Draining, GenerationFailed, Overloaded, SapwoodError, WorkerDied
from sapwood_engine.service.generation import Generation

FINISHES: list[Literal["stop", "length"]] = ["stop", "length"]
ENDPOINTS = [(CHAT, chat_body, "delta"), (TEXT, text_body, "text")]


def regroup(said: Sequence[Say], cuts: list[bool]) -> list[Say | Pause]:
    """Join neighbouring deltas of one choice where there is no cut."""
    script: list[Say | Pause] = []
    for position, step in enumerate(said):
        last = script[-1] if script else None
        if isinstance(last, Say) and last.index == step.index and last.finish is None and not cuts[position]:
            script[-1] = Say(
                last.text + step.text,
                step.index,
                last.token_ids + step.token_ids,
                last.logprobs + step.logprobs,
                step.finish,
                step.stop_reason,
            )
        else:
            script += [Pause(), step] if cuts[position] else [step]
    return script


async def both_ways(client: FakeClient, path: str, body: dict[str, Any], kind: str) -> tuple[Any, Any]:
    async with http(build_app(client)) as api:
        whole = await api.post(path, json=body)
        assert whole.status_code == 200, whole.text
        streamed = await api.post(path, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    return summary(whole.json()), join_stream(events(streamed.text), text=kind)


@pytest.mark.parametrize(("path", "body", "kind"), ENDPOINTS)
@settings(max_examples=60)
@given(data=st.data())
def test_the_joined_stream_equals_the_whole_answer_for_every_partition(
    path: str, body: Any, kind: str, data: st.DataObject
) -> None:
    texts = data.draw(st.lists(st.text(alphabet="aé😀\ufffd \x00\n", max_size=6), min_size=1, max_size=3))
    finishes = [data.draw(st.sampled_from(FINISHES)) for _ in texts]
    with_logprobs = data.draw(st.booleans())
    said = [
        step
        for index, (text, finish) in enumerate(zip(texts, finishes, strict=True))
        for step in spoken(text, index=index, with_logprobs=with_logprobs, finish=finish)
    ]
    cuts = data.draw(st.lists(st.booleans(), min_size=len(said), max_size=len(said)))
    fields: dict[str, Any] = {"n": len(texts)}
    if with_logprobs:
        fields |= {"logprobs": True, "top_logprobs": 2} if kind == "delta" else {"logprobs": 2}
    if kind == "text":
        fields["echo"] = data.draw(st.booleans())

    client = FakeClient(script=lambda _: regroup(said, cuts), num_cached_tokens=1)
    whole, streamed = asyncio.run(both_ways(client, path, body(**fields), kind))

    assert streamed == whole
    echoed = "hi" if fields.get("echo") else ""
    assert [choice["text"] for choice in whole["choices"].values()] == [echoed + text for text in texts]
    assert [choice["finish_reason"] for choice in whole["choices"].values()] == finishes


async def test_the_role_comes_first_the_finish_reason_alone_and_one_done_last() -> None:
    async with http(build_app(FakeClient(reply="ab"))) as api:
        stream = events((await api.post(CHAT, json=chat_body(stream=True))).text)
    assert [chunk["choices"][0]["delta"] for chunk in stream[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in stream[:-1]] == [None, None, None, "stop"]
    assert stream[-1] == "[DONE]"
    assert all("usage" not in chunk for chunk in stream[:-1])
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in stream[:-1]}) == 1


@pytest.mark.parametrize(("path", "body", "kind"), ENDPOINTS)
async def test_usage_comes_in_a_last_chunk_without_choices_and_is_null_before(path: str, body: Any, kind: str) -> None:
    request = body(stream=True, stream_options={"include_usage": True})
    async with http(build_app(FakeClient(reply="ab", num_cached_tokens=2))) as api:
        *chunks, last, done = events((await api.post(path, json=request)).text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)


async def test_each_of_n_choices_keeps_its_index_and_finishes_once() -> None:
    """D09: siblings that interleave, one of which ends early."""
    said: Script = [
        Say("x", 0),
        Say("p", 2),
        Say("l", 1),
        Say("", 1, finish="length"),
        Say("y", 0),
        Say("q", 2),
        Say("", 2, finish="stop"),
        Say("z", 0, finish="stop"),
    ]
    async with http(build_app(FakeClient(script=lambda _: said))) as api:
        stream = events((await api.post(CHAT, json=chat_body(stream=True, n=3))).text)
    joined = join_stream(stream, text="delta")["choices"]
    assert {index: (c["text"], c["finish_reason"]) for index, c in joined.items()} == {
        0: ("xyz", "stop"),
        1: ("l", "length"),
        2: ("pq", "stop"),
    }
    roles = [c["index"] for chunk in stream[:-1] for c in chunk["choices"] if "role" in c["delta"]]
    assert sorted(roles) == [0, 1, 2]
    assert stream.count("[DONE]") == 1


async def test_deltas_that_are_ready_together_go_out_in_one_write() -> None:
    writes: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            writes.append(message["body"])

    body = httpx.Request("POST", "http://x", json=chat_body(stream=True)).content
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    script: Script = [*spoken("abc")[:-1], Pause(), *spoken("de")]
    await build_app(FakeClient(script=lambda _: script))(scope, receive, send)

    assert [write.count(b"data: ") for write in writes if write] == [
        4,
        3,
        1,
    ]  # role a b c | d e finish | [DONE]


@pytest.mark.parametrize(("path", "body", "kind"), ENDPOINTS)
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (GenerationFailed("The answer was aborted before its end.", reason="abort"), "generation_failed"),
        (WorkerDied(-9), "worker_died"),
        (ZeroDivisionError("a fault of ours"), "internal_error"),
    ],
)
async def test_an_error_after_three_chunks_ends_the_stream_with_one_error_event(
    path: str, body: Any, kind: str, failure: Exception, code: str
) -> None:
    """D29: no [DONE], no finish_reason, nothing that could pass for a complete answer."""
    said: Script = [Say("a"), Say("b"), Say("c"), failure]
    async with http(build_app(FakeClient(script=lambda _: said))) as api:
        response = await api.post(path, json=body(stream=True))
    *chunks, last = events(response.text)
    assert join_stream(chunks, text=kind)["choices"][0] == {
        "text": "abc",
        "logprobs": None,
        "finish_reason": None,
    }
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["code"] == code
    assert "a fault of ours" not in response.text


@pytest.mark.parametrize(("path", "body", "kind"), ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Overloaded(num_queued=9, limit=9, retry_after_seconds=7), 429),
        (Draining(retry_after_seconds=7), 503),
    ],
)
async def test_a_refusal_before_the_first_token_is_an_http_status_streaming_or_not(
    path: str, body: Any, kind: str, stream: bool, refusal: SapwoodError, status: int
) -> None:
    async with http(build_app(FakeClient(script=lambda _: [refusal]))) as api:
        response = await api.post(path, json=body(stream=stream))
    error_of(response, status)
    assert response.headers["retry-after"] == "7"


async def test_a_failure_of_a_whole_answer_is_a_500_with_an_error_object() -> None:
    said: Script = [Say("a"), GenerationFailed("step 3 failed")]
    async with http(build_app(FakeClient(script=lambda _: said))) as api:
        error = error_of(await api.post(CHAT, json=chat_body()), 500)
    assert error["code"] == "generation_failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_its_generations_at_once(stream: bool) -> None:
    """D31: over a real socket, closed while the engine has more to say."""
    started = asyncio.Event()

    def script(_: Generation) -> Script:
        started.set()
        return [Say("a"), Pause(asyncio.Event()), Say(finish="stop")]

    client = FakeClient(script=script)
    async with served(build_app(client)) as address:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = httpx.Request("POST", address, json=text_body(prompt=["one", "two"], stream=stream)).content
        head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await started.wait()
        if stream:
            await reader.readuntil(b"data: ")
        assert client.num_open == 2
        writer.close()
        async with asyncio.timeout(60):
            await client.all_closed.wait()
    assert client.num_open == 0


async def test_one_failing_prompt_ends_the_others_of_its_call() -> None:
    def script(generation: Generation) -> Script:
        if generation.prompt_ids == tuple(b"bad"):
            return [Say("x"), WorkerDied(1)]
        return [Say("y"), Pause(asyncio.Event())]

    client = FakeClient(script=script)
    async with http(build_app(client)) as api:
        response = await api.post(TEXT, json=text_body(prompt=["good", "bad"], stream=True))
    assert "error" in events(response.text)[-1]
    assert client.num_open == 0
