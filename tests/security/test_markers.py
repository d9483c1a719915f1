"""What callers write and who they are is in no log and no metric of programs that run, whatever goes wrong (J07, I05).

One gateway before two engines, each a program of its own, all logging everything, live through a day: answers,
refusals, clients that leave, a worker that dies, engines that are gone. Every text and name in it is a marker.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support_fake_serve import CHAT_MODEL

from sapwood_gateway.core.tenants import key_digest
from sapwood_tools.bench.servers import free_port

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SERVE = Path(__file__).parents[1] / "support" / "support_fake_serve.py"
START_SECONDS = 240.0
DEADLINE_SECONDS = 60.0
PRIVATE = {
    name: f"MARKER-{name}-8d21"
    for name in (
        *("prompt", "system", "tool", "key", "engine-key", "wrong-key", "tenant", "salt", "extra", "user", "session"),
        *("cache-key", "metadata", "stop", "model", "path", "query", "agent", "state", "line", "schema", "credential"),
    )
}
PRIVATE["tenant"] = "marker-tenant-8d21"
REQUEST_ID = "MARKER-request-8d21"
FOR_PEOPLE = "sapwood: "
"""How a line begins that tells a person at a terminal why a program ends."""
RESULT_KEYS = {"event", "level", "logger", "program", "timestamp"}


@dataclass
class Program:
    """One that runs, and what it wrote."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    url: str
    admin_url: str


@dataclass
class Day:
    """What is left of it."""

    metrics: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)


class Programs:
    """A gateway and two engines."""

    def __init__(self, folder: Path) -> None:
        (folder / "credential").write_text(PRIVATE["credential"])
        (folder / "keys").write_text(PRIVATE["engine-key"])
        digest = key_digest(PRIVATE["key"]).hex()
        tenant = {
            "apiVersion": "serving.sapwood.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": PRIVATE["tenant"]},
            "spec": {"apiKeys": [{"name": "first", "sha256": digest}]},
        }
        (folder / "tenants.yaml").write_text(json.dumps(tenant))
        files = (f"--gateway-credential-file={folder / 'credential'}", f"--api-key-file={folder / 'keys'}")
        engine = (
            sys.executable,
            str(SERVE),
            f"--model={CHAT_MODEL}",
            "--served-model-name=fake",
            "--kv-events-port=0",
            "--max-running=4",
            *files,
        )
        self.engines = [self._start(f"engine-{number}", folder, *engine) for number in range(2)]
        listed = [f"--engine={each.url},{each.admin_url}" for each in self.engines]
        options = (f"--tenants={folder / 'tenants.yaml'}", f"--engine-credential-file={folder / 'credential'}")
        gateway = (
            sys.executable,
            "-m",
            "sapwood",
            "gateway",
            "--policy=prefix-affinity",
            "--load-interval-seconds=0.1",
        )
        self.gateway = self._start("gateway", folder, *gateway, *listed, *options)

    def _start(self, name: str, folder: Path, *command: str) -> Program:
        port, admin_port = free_port(), free_port()
        argv = [*command, f"--port={port}", f"--admin-port={admin_port}", "--log-level=debug"]
        with (folder / name).open("wb") as log:
            process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=log)
        return Program(name, folder / name, process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")

    @property
    def all(self) -> list[Program]:
        return [*self.engines, self.gateway]


def headers(**changes: str) -> dict[str, str]:
    """Of a call through the gateway."""
    given = {
        "authorization": f"Bearer {PRIVATE['key']}",
        "x-session-id": PRIVATE["session"],
        "x-request-id": REQUEST_ID,
        "user-agent": PRIVATE["agent"],
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "tracestate": f"x={PRIVATE['state']}",
    }
    return given | changes


def text(**fields: Any) -> dict[str, Any]:
    owners = {"user": PRIVATE["user"], "extra_key": PRIVATE["extra"], "prompt_cache_key": PRIVATE["cache-key"]}
    return {"model": "fake", "prompt": PRIVATE["prompt"], "cache_salt": PRIVATE["salt"], **owners, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": PRIVATE["system"]},
        {"role": "user", "content": PRIVATE["prompt"]},
        {"role": "tool", "content": PRIVATE["tool"], "tool_call_id": PRIVATE["tool"]},
    ]
    return {"model": "fake", "messages": messages, "metadata": {"of": PRIVATE["metadata"]}, **fields}


GOOD: list[tuple[str, Any]] = [
    (TEXT, text(max_tokens=4)),
    (TEXT, text(max_tokens=4, n=2, stream=True, stop=[PRIVATE["stop"]])),
    (CHAT, {"model": "fake", "messages": chat()["messages"][:2], "max_tokens": 4, "user": PRIVATE["user"]}),
]
BAD: list[tuple[str, Any]] = [
    (TEXT, text(temperature=9)),
    (TEXT, text(prompt={"text": PRIVATE["prompt"]})),
    (TEXT, text(max_tokens=10_000_000)),
    (TEXT, text(model=PRIVATE["model"])),
    (TEXT, text(nobody_knows=PRIVATE["metadata"])),
    (TEXT, text(response_format={"type": "json_schema", "json_schema": {"name": PRIVATE["schema"]}})),
    (CHAT, chat(tools=PRIVATE["tool"])),
    (CHAT, chat(messages=[PRIVATE["prompt"], PRIVATE["system"]])),
    (CHAT, f'{{"model": "fake", "messages": [{{"role": "user", "content": "{PRIVATE["prompt"]}'),
    (CHAT, [PRIVATE["prompt"]]),
    (f"/v1/{PRIVATE['path']}?{PRIVATE['query']}={PRIVATE['query']}", text()),
]


async def post(api: httpx.AsyncClient, path: str, body: Any, **given: str) -> httpx.Response:
    content = body if isinstance(body, str) else json.dumps(body)
    return await api.post(path, content=content, headers={"content-type": "application/json", **headers(**given)})


async def leave(api: httpx.AsyncClient, path: str, **given: str) -> None:
    """Go away in the middle of a stream."""
    body = text(max_tokens=20_000, stream=True, ignore_eos=True)
    async with api.stream("POST", path, json=body, headers=headers(**given)) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_bytes())


async def until_ready(api: httpx.AsyncClient, programs: Programs) -> None:
    """Wait for each engine, and then for the gateway: it answers as soon as it knows one of them."""
    async with asyncio.timeout(START_SECONDS):
        for engine in programs.engines:
            await until_ok(programs, partial(api.get, f"{engine.admin_url}/readyz"))
        await until_ok(programs, partial(post, api, TEXT, text(max_tokens=1)))


async def until_ok(programs: Programs, ask: Callable[[], Awaitable[httpx.Response]]) -> None:
    while True:
        assert all(each.process.poll() is None for each in programs.all)
        try:
            if (await ask()).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.05)  # what is waited for needs the processor


async def write_what_is_no_http(program: Program) -> None:
    host, _, port = program.url.removeprefix("http://").partition(":")
    line = f"GET /{PRIVATE['line']} HTTP/9\r\nAuthorization {PRIVATE['line']}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as raw:
        raw.sendall(line.encode())
        await asyncio.to_thread(raw.recv, 1000)


async def scrape(programs: Programs, day: Day) -> None:
    async with httpx.AsyncClient(timeout=DEADLINE_SECONDS) as client:
        for url in (*(each.url for each in programs.engines), programs.gateway.admin_url):
            for accept in ("text/plain", "application/openmetrics-text"):
                day.metrics.append((await client.get(f"{url}/metrics", headers={"accept": accept})).text)


async def live_through(programs: Programs, day: Day) -> None:
    """Everything that may happen, the worst at the end."""
    direct = {"authorization": f"Bearer {PRIVATE['engine-key']}"}
    async with (
        httpx.AsyncClient(base_url=programs.gateway.url, timeout=DEADLINE_SECONDS) as api,
        httpx.AsyncClient(base_url=programs.engines[0].url, timeout=DEADLINE_SECONDS) as engine,
    ):
        await until_ready(api, programs)
        for path, body in GOOD:
            assert (await post(api, path, body)).status_code == 200
            assert (await post(engine, path, body, **direct)).status_code == 200
        for path, body in BAD:
            assert 400 <= (await post(api, path, body)).status_code < 500
            assert 400 <= (await post(engine, path, body, **direct)).status_code < 500
        for client in (api, engine):
            wrong = {"authorization": f"Bearer {PRIVATE['wrong-key']}", "x-sapwood-tenant": PRIVATE["tenant"]}
            assert (await post(client, TEXT, text(), **wrong)).status_code in (401, 403)
        for program in programs.all:
            await write_what_is_no_http(program)
        await leave(api, TEXT)
        await leave(engine, TEXT, **direct)
        await scrape(programs, day)
        await kill_a_worker(programs, engine, direct)
        assert (await post(api, TEXT, text(max_tokens=2))).status_code == 200  # by the other engine
        await lose_the_last_engine(programs, api)


async def kill_a_worker(programs: Programs, engine: httpx.AsyncClient, direct: dict[str, str]) -> None:
    body = text(max_tokens=20_000, stream=True, ignore_eos=True)
    async with engine.stream("POST", TEXT, json=body, headers=headers(**direct)) as answer:
        pieces = answer.aiter_bytes()
        await anext(pieces)
        [worker] = psutil.Process(programs.engines[0].process.pid).children()
        worker.kill()
        assert b'"error"' in b"".join([piece async for piece in pieces])
    assert await asyncio.to_thread(programs.engines[0].process.wait, DEADLINE_SECONDS) == 1


async def lose_the_last_engine(programs: Programs, api: httpx.AsyncClient) -> None:
    body = text(max_tokens=20_000, stream=True, ignore_eos=True)
    async with api.stream("POST", TEXT, json=body, headers=headers()) as answer:
        pieces = answer.aiter_bytes()
        await anext(pieces)
        programs.engines[1].process.kill()
        assert b'"upstream_ended"' in b"".join([piece async for piece in pieces])
    assert (await post(api, TEXT, text())).status_code >= 500
    async with httpx.AsyncClient(timeout=DEADLINE_SECONDS) as client:
        day_end = await client.get(f"{programs.gateway.admin_url}/metrics")
    assert 'code="502"' in day_end.text


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    programs, lived = Programs(tmp_path_factory.mktemp("markers")), Day()
    try:
        asyncio.run(live_through(programs, lived))
        programs.gateway.process.terminate()
        programs.gateway.process.wait(DEADLINE_SECONDS)
    finally:
        for each in programs.all:
            each.process.kill()
            each.process.wait()
            lived.logs[each.name] = each.log.read_text()
    return lived


@pytest.mark.parametrize("name", PRIVATE)
def test_what_a_caller_wrote_or_is_called_is_in_no_log_and_no_metric(day: Day, name: str) -> None:
    marker = PRIVATE[name]
    found = {log: [line for line in text.splitlines() if marker in line] for log, text in day.logs.items()}
    assert not any(found.values()), found
    assert not any(marker in metrics for metrics in day.metrics)
    assert not any(key_digest(PRIVATE["key"]).hex() in log for log in day.logs.values())


def test_the_request_id_is_in_the_logs_of_gateway_and_engines_and_in_no_metric(day: Day) -> None:
    assert all(REQUEST_ID in log for log in day.logs.values())
    assert not any(REQUEST_ID in metrics for metrics in day.metrics)


def test_every_line_is_a_record_and_those_of_a_request_name_it_and_its_trace(day: Day) -> None:
    for log in day.logs.values():
        lines = [line for line in log.splitlines() if not line.startswith(FOR_PEOPLE)]
        records = [json.loads(line) for line in lines]
        assert records
        for record in records:
            assert record.keys() >= RESULT_KEYS
            if record["event"] in ("request", "call ended", "a replica did not answer", "an answer broke off"):
                assert record["request_id"] == REQUEST_ID
                assert record["trace_id"] == "a" * 32
    programs = {
        json.loads(line)["program"] for log in day.logs.values() for line in log.splitlines() if line[:1] == "{"
    }
    assert programs == {"http", "worker", "gateway"}
