"""What the HTTP server refuses itself says nothing of the request and nothing of the server."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from support_gateway import gateway, routes
from yarl import URL

KEY = "sk-nobody-may-see-this"
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("Authorization:", "Authorization :"),
        HEAD + f" folded {KEY}\r\n",
        HEAD + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        HEAD + f"X: {KEY}\x00\r\n",
        HEAD + f"X: {KEY * 1_000}\r\n",
        f"{KEY} / HTTP/9.9\r\n",
    ],
    ids=["blank", "folded", "two lengths", "zero", "long", "no HTTP"],
)
async def test_a_request_that_is_not_read_is_an_error_object_without_its_key(
    head: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway(routes()) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(running.url).port)
        writer.write(head.encode() + b"\r\n")
        answer = (await reader.read()).decode()
        writer.close()
    said, _, body = answer.partition("\r\n\r\n")
    assert " 400 " in said.splitlines()[0]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert "X-Request-Id" in said
    for shown in (answer, caplog.text):
        assert KEY not in shown
        assert "aiohttp" not in shown.lower()
        assert "Python/" not in shown
