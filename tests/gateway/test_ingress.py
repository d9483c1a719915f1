"""Behind the real nginx and the real HAProxy, set as docs/ingress.md shows it: streams come as they are sent (H13)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from support_docs import blocks
from support_gateway import MODEL, Answer, Steps, Upstream, drop, echo, status
from support_gateway_process import Running, engine, gateway_process
from support_programs import needs

from sapwood_gateway.shell.options import parse
from sapwood_tools.bench.servers import free_port

PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
DOCUMENT = Path("docs/ingress.md")
PROXIES = ("nginx", "haproxy")
DEFAULTS = parse(["--engine=http://127.0.0.1:1"])
NUM_PIECES = 10


@dataclass(frozen=True, slots=True)
class Site:
    """What a client sees, and the engine at the other end."""

    client: aiohttp.ClientSession
    """Its base address is the proxy's."""
    engine: Upstream


def settings(proxy: str) -> str:
    """The block of the document."""
    [block] = blocks(DOCUMENT, proxy)
    return block.code


def placed(code: str, addresses: Sequence[tuple[str, str]]) -> str:
    """Put in real addresses, each of which the document has once."""
    for told, real in addresses:
        assert code.count(told) == 1, told
        code = code.replace(told, real)
    return code


def nginx_command(folder: Path, port: int, gateway: Running) -> list[str]:
    told = [
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("sapwood-gateway.sapwood.svc:8080", f"127.0.0.1:{gateway.port}"),
    ]
    (folder / "sapwood.conf").write_text(placed(settings("nginx"), told), encoding="utf-8")
    # What a system's own nginx.conf has around conf.d; workers of another user could not look into the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; include {folder}/sapwood.conf; }}\n",
        encoding="utf-8",
    )
    return [needs("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def haproxy_command(folder: Path, port: int, gateway: Running) -> list[str]:
    told = [
        ("bind :80", f"bind 127.0.0.1:{port}"),
        ("sapwood-gateway.sapwood.svc:8080", f"127.0.0.1:{gateway.port}"),
        ("check port 8081", f"check port {urlsplit(gateway.admin_url).port}"),
    ]
    (folder / "haproxy.cfg").write_text(placed(settings("haproxy"), told), encoding="utf-8")
    return [needs("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


@asynccontextmanager
async def site(proxy: str, folder: Path, answer: Answer) -> AsyncIterator[Site]:
    """Run an engine that gives ``answer``, a gateway before it and a proxy before that."""
    needs(proxy)
    port = free_port()
    async with engine(answer) as behind, gateway_process(behind) as gateway:
        command = (nginx_command if proxy == "nginx" else haproxy_command)(folder, port, gateway)
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", auto_decompress=False) as client:
                async with asyncio.timeout(60):
                    while not await is_up(client):
                        assert process.returncode is None, await process.communicate()
                yield Site(client, behind)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def is_up(client: aiohttp.ClientSession) -> bool:
    try:
        async with client.get("/v1/models") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize("proxy", PROXIES)
async def test_each_piece_arrives_before_the_next_one_is_sent_and_soon(proxy: str, tmp_path: Path) -> None:
    steps = Steps()
    seconds = []
    async with site(proxy, tmp_path, steps.answer) as seen:
        sent_at = time.monotonic()
        steps.items.put_nowait(b'data: {"n":0}\n\n')
        async with seen.client.post(PATH, json=BODY) as response:
            for number in range(NUM_PIECES):
                assert await response.content.readany() == b'data: {"n":%d}\n\n' % number
                seconds.append(time.monotonic() - sent_at)
                sent_at = time.monotonic()
                steps.items.put_nowait(b'data: {"n":%d}\n\n' % (number + 1))
            assert await response.content.readany() == b'data: {"n":%d}\n\n' % NUM_PIECES
            steps.items.put_nowait(None)
            assert await response.content.read() == b""
    assert min(seconds) < 0.1  # H13: what a proxy holds back, it holds back each time; the machine is busy now and then
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache"
    assert "Content-Length" not in response.headers
    if proxy != "nginx":  # which heeds it and keeps it to itself
        assert response.headers["X-Accel-Buffering"] == "no"


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_whole_answer_keeps_its_length_and_loses_headers_of_one_connection(proxy: str, tmp_path: Path) -> None:
    answer = status(200, b'{"a":1}', X_Tokens="5", Connection="X-Private", X_Private="1", Keep_Alive="timeout=5")
    async with site(proxy, tmp_path, answer) as seen, seen.client.post(PATH, json=BODY) as response:
        assert await response.read() == b'{"a":1}'
    assert response.headers["Content-Length"] == "7"
    assert response.headers["X-Tokens"] == "5"
    assert {"X-Private", "Keep-Alive", "Transfer-Encoding", "X-Accel-Buffering"}.isdisjoint(response.headers)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_client_that_leaves_is_noticed_by_the_engine(proxy: str, tmp_path: Path) -> None:
    steps = Steps()
    async with site(proxy, tmp_path, steps.answer) as seen:
        steps.items.put_nowait(b"data: 1\n\n")
        async with seen.client.post(PATH, json=BODY) as response:
            await response.content.readany()
            assert seen.engine.num_running == 1
            response.close()
            await seen.engine.idle.wait()
        seen.engine.busy.clear()
        before_the_first_byte = asyncio.create_task(seen.client.post(PATH, json=BODY))
        await seen.engine.busy.wait()
        before_the_first_byte.cancel()
        await seen.engine.idle.wait()


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_prompt_of_megabytes_passes_through_and_one_that_is_too_large_is_refused(
    proxy: str, tmp_path: Path
) -> None:
    body = json.dumps({**BODY, "stream": False, "x": "y" * 6_000_000}).encode()
    async with site(proxy, tmp_path, echo) as seen:
        async with seen.client.post(PATH, data=io.BytesIO(body)) as response:
            assert await response.read() == body
        assert seen.engine.bodies == [body]
        too_large = b"x" * (DEFAULTS.max_body_bytes + 1)
        async with seen.client.post(PATH, data=io.BytesIO(too_large)) as response:
            assert response.status == 413


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_request_that_its_engine_drops_is_not_sent_again(proxy: str, tmp_path: Path) -> None:
    async with site(proxy, tmp_path, drop) as seen:
        async with seen.client.post(PATH, json=BODY) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (502, "upstream_failed")
        assert len(seen.engine.bodies) == 1


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_request_has_one_id_from_the_client_to_the_engine(proxy: str, tmp_path: Path) -> None:
    async with site(proxy, tmp_path, echo) as seen:
        async with seen.client.post(PATH, json=BODY, headers={"X-Request-Id": "abc-1"}) as kept:
            await kept.read()
        async with seen.client.post(PATH, json=BODY) as made:
            await made.read()
        ids = [request.headers["X-Request-Id"] for request in seen.engine.requests]
    assert [kept.headers["X-Request-Id"], made.headers["X-Request-Id"]] == ids
    assert ids[0] == "abc-1"
    assert ids[1]


def seconds_of(code: str, setting: str) -> float:
    """The value of a setting that the block has once, at the beginning of a line."""
    [(value, unit)] = re.findall(rf"^\s*{setting}\s+(\d+)([smh])\b", code, re.MULTILINE)
    return float(value) * {"s": 1, "m": 60, "h": 3_600}[unit]


@pytest.mark.parametrize(
    ("proxy", "setting"),
    [("nginx", "proxy_read_timeout"), ("haproxy", "timeout server"), ("haproxy", "timeout client")],
)
def test_a_first_token_may_take_a_quarter_of_an_hour(proxy: str, setting: str) -> None:
    assert seconds_of(settings(proxy), setting) >= 900


@pytest.mark.parametrize(("proxy", "setting"), [("nginx", "keepalive_timeout"), ("haproxy", "timeout http-keep-alive")])
def test_idle_connections_end_before_the_gateway_would_end_them(proxy: str, setting: str) -> None:
    assert seconds_of(settings(proxy), setting) < DEFAULTS.idle_timeout_seconds


def test_nginx_takes_bodies_as_large_as_the_gateway_does_and_sends_none_twice() -> None:
    code = settings("nginx")
    assert f"client_max_body_size {DEFAULTS.max_body_bytes // 2**20}m;" in code
    assert "non_idempotent" not in code


def test_haproxy_asks_the_admin_port_whether_a_gateway_is_ready() -> None:
    code = settings("haproxy")
    assert "option httpchk GET /readyz" in code
    assert f"check port {DEFAULTS.port + 1} " in code


def test_annotations_of_an_ingress_say_what_the_settings_of_nginx_say() -> None:
    [annotations] = [
        made["metadata"]["annotations"]
        for block in blocks(DOCUMENT, "yaml")
        if "metadata" in (made := yaml.safe_load(block.code))
    ]
    code = settings("nginx")
    for name, value in annotations.items():
        setting = name.removeprefix("nginx.ingress.kubernetes.io/").replace("-", "_")
        setting = "client_max_body_size" if setting == "proxy_body_size" else setting
        [told] = re.findall(rf"^\s*{setting} (\S+?)s?;", code, re.MULTILINE)
        assert told == value
