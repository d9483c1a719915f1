"""The official client against a real server on a real socket, streaming and not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from support_api import MODEL, served
from support_fake_client import FakeClient, Pause, Say, Script

from sapwood_engine.api.app import build_app
from sapwood_engine.errors import GenerationFailed, Overloaded
from sapwood_engine.service.generation import Generation

KEY = "sk-test"


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    def script(asked: Generation) -> Script:
        prompt = bytes(asked.prompt_ids).decode()
        if "overload" in prompt:
            return [Overloaded(num_queued=1, limit=1, retry_after_seconds=1)]
        if "break" in prompt:
            return [Say("x"), Pause(), GenerationFailed("step 7 failed")]
        return [*(Say(word, token_ids=(1,)) for word in ("Pa", "ris", " 😀")), Say(finish="stop")]

    app = build_app(FakeClient(script=script, num_cached_tokens=2), api_keys=frozenset({KEY}))
    async with (
        served(app) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield client


async def test_a_chat_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "q"}])
    assert answer.choices[0].message.content == "Paris 😀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer._request_id


async def test_a_streamed_chat_completion(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "q"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Paris 😀"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_text_completions_streamed_and_whole(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt=["a", "b"], echo=True)
    assert [choice.text for choice in whole.choices] == ["aParis 😀", "bParis 😀"]
    stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Paris 😀"


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "sapwood"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_errors_become_the_clients_exceptions(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "q"}], temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.RateLimitError):
        await client.completions.create(model=MODEL, prompt="overload", stream=True)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.InternalServerError):
        await client.completions.create(model=MODEL, prompt="break")


async def test_a_stream_that_breaks_is_an_exception_not_a_short_answer(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(model=MODEL, prompt="break", stream=True)
    chunks = aiter(stream)
    assert (await anext(chunks)).choices[0].text == "x"
    with pytest.raises(openai.APIError, match="step 7 failed"):
        await anext(chunks)
