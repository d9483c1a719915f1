"""What a client wrote, and its key, are in no log line and no error (J07); and a log does not grow with a body."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support_api import CHAT, MODEL, TEXT, chat_body, http, text_body
from support_fake_client import FakeClient
from support_gateway import CHAT as SERVICE
from support_gateway import drop, echo, gateway, nobody, status, upstream

from sapwood_contract.trust import CREDENTIAL_HEADER
from sapwood_engine.api.app import build_app
from sapwood_gateway.core.routes import Replica, Routes, Service
from sapwood_gateway.core.tenants import Tenant, Tenants, key_digest
from sapwood_gateway.shell.logs import configure_logging as configure_gateway_logging
from sapwood_logs.structured import configure_logging

SECRET = b"0123456789abcdef0123456789abcdef"
PROMPT = "MARKER-PROMPT-6f1e"
TOKEN = "MARKER-TOKEN-6f1e"
KEY = "sk-MARKER-KEY-6f1e"
TENANT = "marker-tenant-6f1e"
MOST_LOGGED_BYTES = 4_096
"""For one request, whatever its body."""

TOOLS = [{"type": "mcp", "server_url": "https://x", "headers": {"Authorization": TOKEN}}]
BODIES: dict[str, tuple[str, Any]] = {
    "a field that is missing": (CHAT, {"model": MODEL, "prompt": PROMPT}),
    "messages of the wrong type": (CHAT, chat_body(messages=PROMPT)),
    "messages that are texts": (CHAT, chat_body(messages=[PROMPT])),
    "content of the wrong type": (CHAT, chat_body(messages=[{"role": "user", "content": {"text": PROMPT}}])),
    "a part without its type": (CHAT, chat_body(messages=[{"role": "user", "content": [{"text": PROMPT}]}])),
    "a part that is a text": (CHAT, chat_body(messages=[{"role": "user", "content": [PROMPT]}])),
    "a part with too much": (
        CHAT,
        chat_body(messages=[{"role": "user", "content": [{"type": "text", "text": PROMPT, "more": TOKEN}]}]),
    ),
    "two errors": (
        CHAT,
        {"messages": [{"role": "user", "content": PROMPT, "name": 5}], "temperature": "x"},
    ),
    "a token in tools": (CHAT, chat_body(tools=TOOLS)),
    "tools that are a text": (CHAT, chat_body(tools=TOKEN)),
    "a token in metadata": (CHAT, chat_body(metadata={"authorization": [TOKEN]})),
    "an unknown field": (CHAT, chat_body(promt=PROMPT)),
    "an unknown field with an object": (CHAT, chat_body(headers={"Authorization": TOKEN})),
    "a prompt of the wrong type": (TEXT, text_body(prompt={"text": PROMPT})),
    "a prompt that is half ids": (TEXT, text_body(prompt=[PROMPT, [1], 2])),
    "a suffix": (TEXT, text_body(suffix=PROMPT)),
    "a salt that is a list": (TEXT, text_body(cache_salt=[TOKEN])),
    "a key that is a list": (TEXT, text_body(extra_key=[TOKEN])),
    "stop strings of the wrong type": (TEXT, text_body(stop={"a": PROMPT})),
    "variables of the template": (CHAT, chat_body(chat_template_kwargs={"messages": PROMPT})),
    "not JSON": (CHAT, PROMPT),
    "JSON that breaks off": (CHAT, f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{PROMPT}'),
    "a list": (CHAT, [PROMPT]),
    "a text": (CHAT, json.dumps(PROMPT)),
}


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    named = [logging.getLogger(), logging.getLogger("urllib3"), logging.getLogger("aiohttp.server")]
    before = [(each, each.handlers[:], each.level) for each in named]
    yield
    for each, handlers, level in before:
        each.handlers[:] = handlers
        each.setLevel(level)


def written(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def check(answer: str, logged: str) -> None:
    for marker in (PROMPT, TOKEN, KEY, TENANT, key_digest(KEY).hex()):
        assert marker not in answer
        assert marker not in logged
    assert len(logged) <= MOST_LOGGED_BYTES


@pytest.mark.parametrize("body", BODIES)
async def test_an_engine_repeats_no_prompt_and_no_token(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug", program="http", for_people=False)
    path, content = BODIES[body]
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    async with http(build_app(FakeClient(), api_keys=frozenset({KEY}))) as api:
        answer = await api.post(path, content=written(content), headers=headers)
    assert answer.status_code == 400
    check(answer.text, capsys.readouterr().err)


@pytest.mark.parametrize("fault", [ZeroDivisionError(), RuntimeError(f"quotes {PROMPT}")])
async def test_a_fault_of_ours_repeats_neither(fault: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug", program="http", for_people=False)
    async with http(build_app(FakeClient(script=lambda _: [fault]), api_keys=frozenset({KEY}))) as api:
        body = chat_body(messages=[{"role": "user", "content": PROMPT}])
        answer = await api.post(CHAT, json=body, headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 500
    logged = capsys.readouterr().err
    assert "unhandled fault" in logged
    for marker in (PROMPT, KEY):
        assert marker not in answer.text + logged


TENANTS = Tenants([Tenant(namespace="team", name=TENANT, key_digests=frozenset({key_digest(KEY)}))])


def routed(*replicas: Replica) -> Routes:
    return Routes({SERVICE: Service(SERVICE, (MODEL,), authentication="ApiKey")}, {SERVICE: replicas})


@pytest.mark.parametrize("key", [KEY, f"{KEY}-that-is-wrong"])
@pytest.mark.parametrize("body", BODIES)
async def test_a_gateway_repeats_no_prompt_no_token_and_no_tenant(
    body: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_gateway_logging("debug")
    path, content = BODIES[body]
    headers = {"Authorization": f"Bearer {key}", CREDENTIAL_HEADER: TOKEN, "X-Session-Id": TOKEN}
    async with (
        upstream(status(400)) as server,
        gateway(routed(server.replica()), tenants=TENANTS, secret=SECRET) as running,
    ):
        async with running.client.post(path, data=written(content), headers=headers) as answer:
            assert answer.status == (400 if key == KEY else 401)
            text = await answer.text()
        metrics = running.metrics.render().body.decode()
    check(text, capsys.readouterr().err)
    assert not any(marker in metrics for marker in (PROMPT, TOKEN, KEY, TENANT))


@pytest.mark.parametrize("fails", ["nobody", "drops", "refuses"])
async def test_a_gateway_whose_engines_fail_repeats_neither(fails: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_gateway_logging("debug")
    async with upstream(drop if fails == "drops" else status(503)) as server:
        replica = nobody() if fails == "nobody" else server.replica()
        async with gateway(routed(replica), tenants=TENANTS, secret=SECRET) as running:
            body = chat_body(messages=[{"role": "user", "content": PROMPT}])
            headers = {"Authorization": f"Bearer {KEY}"}
            async with running.client.post(CHAT, json=body, headers=headers) as answer:
                assert answer.status >= 500
                text = await answer.text()
    check(text, capsys.readouterr().err)


@pytest.mark.parametrize("make", [lambda: "x" * 5_000_000, lambda: [PROMPT] * 250_000], ids=["text", "list"])
async def test_a_body_of_five_megabytes_makes_no_long_line(
    make: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_gateway_logging("debug")
    whole = written(chat_body(messages=make(), temperature="hot"))
    async with http(build_app(FakeClient())) as api:
        answer = await api.post(CHAT, content=whole, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert len(answer.content) < 1_000
    async with upstream(echo) as server:
        over = routed(server.replica())
        async with gateway(over, tenants=TENANTS, secret=SECRET, max_body_bytes=2**23) as running:
            for key, code in ((KEY, 200), ("wrong", 401)):
                headers = {"Authorization": f"Bearer {key}"}
                async with running.client.post(CHAT, data=io.BytesIO(whole), headers=headers) as passed:
                    assert passed.status == code
    check(answer.text, capsys.readouterr().err)
