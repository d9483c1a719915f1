"""``sapwood gateway`` as a program: what it needs to start, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess

import aiohttp
import pytest
from support_gateway import MODEL, Steps, echo
from support_gateway_process import GATEWAY, engine, gateway_process, is_ready
from yarl import URL

PATH = "/v1/chat/completions"


async def test_it_serves_engines_that_are_listed_by_address_and_ends_with_0() -> None:
    async with engine(echo) as a, engine(echo) as b, gateway_process(a, b) as running:
        async with running.client.get("/v1/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == [MODEL]
        for _ in range(4):
            async with running.client.post(PATH, json={"model": MODEL}) as response:
                assert await response.json() == {"model": MODEL}
        assert (len(a.bodies), len(b.bodies)) == (2, 2)
        async with running.client.get(running.admin_url + "/metrics") as response:
            assert 'sapwood_gateway_replicas{state="fit"} 2.0' in await response.text()
        running.process.terminate()
        assert await running.process.wait() == 0


async def test_sigterm_lets_a_stream_finish_and_takes_nothing_new() -> None:
    steps = Steps()
    async with engine(steps.answer) as a, gateway_process(a) as running:
        steps.items.put_nowait(b"data: 1\n\n")
        async with running.client.post(PATH, json={"model": MODEL, "stream": True}) as stream:
            assert await stream.content.readany() == b"data: 1\n\n"
            running.process.terminate()
            while await is_ready(running.client, running.admin_url):
                pass
            with pytest.raises(aiohttp.ClientConnectorError):
                await aiohttp.request("POST", stream.url, json={"model": MODEL}).__aenter__()
            steps.items.put_nowait(b"data: 2\n\n")
            steps.items.put_nowait(None)
            assert await stream.content.read() == b"data: 2\n\n"
        assert await running.process.wait() == 0


async def test_what_outlasts_the_drain_ends_with_an_error_event() -> None:
    steps = Steps()
    async with engine(steps.answer) as a, gateway_process(a, drain_seconds=0.1) as running:
        steps.items.put_nowait(b"data: 1\n\n")
        async with running.client.post(PATH, json={"model": MODEL, "stream": True}) as stream:
            await stream.content.readany()
            running.process.terminate()
            last = await stream.content.read()
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "gateway_stopping"
        assert await running.process.wait() == 0


async def test_a_second_signal_ends_it_at_once() -> None:
    steps = Steps()
    async with engine(steps.answer) as a, gateway_process(a) as running:
        steps.items.put_nowait(b"data: 1\n\n")
        async with running.client.post(PATH, json={"model": MODEL, "stream": True}) as stream:
            await stream.content.readany()
            running.process.terminate()
            while await is_ready(running.client, running.admin_url):
                pass
            running.process.send_signal(signal.SIGINT)
            assert await running.process.wait() == 128 + signal.SIGINT


async def test_an_engine_that_still_loads_gets_nothing() -> None:
    async with (
        engine(echo, state="loading") as a,
        gateway_process(a) as running,
        running.client.post(PATH, json={"model": MODEL}) as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == (503, "no_replica_ready")


async def test_what_neither_port_can_read_is_an_error_object_that_shows_nothing_of_it() -> None:
    async with engine(echo) as a, gateway_process(a) as running:
        for port in (running.port, URL(running.admin_url).port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer sk-secret\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert b" 400 " in head.splitlines()[0]
            assert b"X-Request-Id: " in head
            assert json.loads(body)["error"]["code"] == "invalid_request"
            assert not any(word in head + body for word in (b"sk-secret", b"aiohttp", b"Python/"))


async def test_a_connection_that_brings_no_whole_head_is_closed() -> None:
    async with engine(echo) as a, gateway_process(a, idle_timeout_seconds=0.3) as running:
        for sent in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(sent)
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()


async def test_a_head_that_cannot_be_read_is_refused_and_not_logged() -> None:
    async with engine(echo) as a, gateway_process(a) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET / HTTP/1.1\r\nAuthorization: MARKER\x01\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        running.process.terminate()
        assert running.process.stderr is not None
        written = await running.process.stderr.read()
        assert b"drained" in written
        assert b"MARKER" not in written


def test_a_port_that_is_taken_refuses_to_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*GATEWAY, f"--port={port}", "--engine=http://127.0.0.1:1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--port: 127.0.0.1 port {port} cannot be listened on" in done.stderr


def test_without_a_cluster_and_without_engines_it_says_what_to_do() -> None:
    command = [*GATEWAY, "--port=0"]
    environment = {"PATH": "", "HOME": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "list them with --engine, or set KUBECONFIG" in done.stderr
