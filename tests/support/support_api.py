"""Talks to the HTTP API: in-process for most tests, over a real server where sockets matter."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MODEL = "fake/model-1"


def chat_body(**fields: Any) -> dict[str, Any]:
    """A smallest chat request, with ``fields`` besides."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}


def text_body(**fields: Any) -> dict[str, Any]:
    """A smallest completion request, with ``fields`` besides."""
    return {"model": MODEL, "prompt": "hi", **fields}


@asynccontextmanager
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of ``app`` without sockets; what the application raises is its answer, not the test's."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://sapwood") as client:
        yield client


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serve ``app`` on a free port of this machine with uvicorn; yields the address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # from here on connections wait for the server
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()


def events(stream: str) -> list[Any]:
    """Return the payload of each event of an SSE ``stream``; ``[DONE]`` as that text."""
    payloads = []
    for block in stream.split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            payloads.append(data if data == "[DONE]" else json.loads(data, parse_constant=_refuse_constant))
    return payloads


def strict_json(text: str) -> Any:
    """Parse ``text`` as JSON proper: NaN and Infinity are errors."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Return the error object of ``response``, having checked its shape and that it is of ``status``."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = strict_json(response.text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return dict(error)


def join_stream(payloads: list[Any], *, text: str) -> dict[str, Any]:
    """Join chunks into what a whole answer says: per choice text, logprobs and finish reason, and the usage.

    ``text`` names where a chunk's choice keeps its text: ``delta`` or ``text``.
    """
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in payloads:
        if chunk == "[DONE]":
            continue
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            joined = choices.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
            said = choice["delta"].get("content", "") if text == "delta" else choice["text"]
            joined["text"] += said
            for name, values in (choice["logprobs"] or {}).items():
                if values is not None:
                    joined["logprobs"] = joined["logprobs"] or {}
                    joined["logprobs"].setdefault(name, []).extend(values)
            if choice["finish_reason"] is not None:
                assert joined["finish_reason"] is None, f"choice {choice['index']} finished twice"
                joined["finish_reason"] = choice["finish_reason"]
    return {"choices": dict(sorted(choices.items())), "usage": usage}


def summary(answer: dict[str, Any]) -> dict[str, Any]:
    """Return of a whole answer what `join_stream` returns of a stream."""
    choices = {}
    for choice in answer["choices"]:
        said = choice["message"]["content"] if "message" in choice else choice["text"]
        logprobs = {name: values for name, values in (choice["logprobs"] or {}).items() if values}
        choices[choice["index"]] = {
            "text": said,
            "logprobs": logprobs or None,
            "finish_reason": choice["finish_reason"],
        }
    return {"choices": choices, "usage": answer["usage"]}
