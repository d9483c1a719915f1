"""A large body is read beside the event loop: what others stream goes on, and the answer is that of a small one."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import model_validator
from support_api import CHAT, chat_body, error_of, events, http
from support_fake_client import ByteTokenizer, FakeClient

from sapwood_engine.api.app import build_app
from sapwood_engine.api.errors import install_error_handlers
from sapwood_engine.api.strict_body import DEFAULT_MAX_BODY_BYTES, LARGE_BODY_BYTES, StrictRoute
from sapwood_text.fields import Fields

LONG = "x" * LARGE_BODY_BYTES
DEADLINE_SECONDS = 10.0


class Blocked(ByteTokenizer):
    """Renders long conversations only once it may."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.may_go_on = threading.Event()
        self.order: list[str] = []

    def render_chat(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        if messages[0]["content"] == LONG:
            self.loop.call_soon_threadsafe(self.begun.set)
            self.may_go_on.wait(DEADLINE_SECONDS)
            self.order.append("rendered")
        return super().render_chat(messages, add_generation_prompt=add_generation_prompt, **template_kwargs)


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_stream_goes_on_while_a_large_conversation_is_rendered(path: str) -> None:
    tokenizer = Blocked()
    client = FakeClient(tokenizer=tokenizer).with_capacity(max_context_tokens=2 * LARGE_BODY_BYTES)
    messages = [{"role": "user", "content": LONG}]
    async with http(build_app(client)) as api:
        body = chat_body(messages=messages) if path == CHAT else {"messages": messages}
        large = asyncio.create_task(api.post(path, json=body))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await tokenizer.begun.wait()
            small = await api.post(CHAT, json=chat_body(stream=True))
        assert events(small.text)[-1] == "[DONE]"
        tokenizer.order.append("streamed")
        tokenizer.may_go_on.set()
        assert (await large).status_code == 200
    assert tokenizer.order == ["streamed", "rendered"]


class Watched(Fields):
    """A body that tells where it is validated."""

    text: str
    number: int = 0

    @model_validator(mode="before")
    @classmethod
    def _note_the_thread(cls, value: Any) -> Any:
        if isinstance(value, dict):
            validated_in.append(threading.current_thread())
        return value


validated_in: list[threading.Thread] = []


def watched_app() -> FastAPI:
    app = FastAPI()
    app.state.max_body_bytes = DEFAULT_MAX_BODY_BYTES
    app.router.route_class = StrictRoute
    install_error_handlers(app)

    @app.post("/")
    async def read(body: Watched) -> list[Any]:
        return [len(body.text), body.number]

    return app


async def test_a_large_body_is_validated_once_and_in_a_thread() -> None:
    here = threading.current_thread()
    async with http(watched_app()) as api:
        validated_in.clear()
        assert (await api.post("/", json={"text": "short", "number": 3})).json() == [5, 3]
        assert validated_in == [here]
        assert (await api.post("/", json={"text": LONG, "number": 3})).json() == [len(LONG), 3]
    _, thread = validated_in
    assert thread is not here


@pytest.mark.parametrize(
    "body",
    [
        {"text": 5},
        {},
        {"text": "", "numbr": 1},
        {"text": "", "number": 1.5},
        [],
    ],
)
async def test_a_large_body_is_refused_as_a_small_one_is(body: Any) -> None:
    raw = json.dumps(body).encode()
    async with http(watched_app()) as api:
        answers = [
            await api.post("/", content=raw + padding, headers={"content-type": "application/json"})
            for padding in (b"", b" " * LARGE_BODY_BYTES)
        ]
    small, large = map(error_of, answers)
    assert small == large
