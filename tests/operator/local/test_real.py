"""``sapwood local`` on examples/chat.yaml, with real engines: what users do, and what happens to them.

One platform serves the first tests in their order, as one day would: each leaves it as the next one expects it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import openai
import psutil
import pytest
from support_local_program import MODEL, PATIENCE_SECONDS, Local, option_of, outcome, start, stream, until

pytestmark = pytest.mark.engine

EXAMPLE = Path("examples/chat.yaml").read_text(encoding="utf-8")


def document(replicas: int, more: str = "") -> str:
    """Return the example with so many replicas, and with little memory for their caches."""
    small = EXAMPLE.replace("device: CPU", "device: CPU\n    extraArgs: [--kv-tokens=8192]")
    assert "replicas: 2" in small
    return small.replace("replicas: 2", f"replicas: {replicas}") + more


def load_of(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/admin/load", timeout=30) as answer:
        load: dict[str, int] = json.loads(answer.read())["load"]
        return load


def num_requests(port: int) -> float:
    """Return how many requests an engine has ended since it was started."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sapwood_requests_total{"))


async def streams_on_all(
    client: openai.AsyncOpenAI, local: Local, least: int, text: str, *, max_tokens: int
) -> list[AsyncGenerator[str, None]]:
    """Begin ``least`` streams, and more until every engine has one: who has just come gets a few at first."""
    streams = [stream(client, f"{number} {text}", max_tokens=max_tokens) for number in range(least)]
    await asyncio.gather(*(anext(each) for each in streams))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(load_of(port)["num_running"] for port in local.engines()):
            streams.append(stream(client, f"{len(streams)} {text}", max_tokens=max_tokens))
            await anext(streams[-1])
    return streams


def processes_below(local: Local) -> list[psutil.Process]:
    return psutil.Process(local.process.pid).children(recursive=True)


def have_ended(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    running = start(tmp_path_factory.mktemp("local"), document(2))
    try:
        until(lambda: running.process.poll() is not None or running.serves_with(2), "two ready replicas")
        assert running.process.poll() is None, running.said()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.fixture
async def client(local: Local) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{local.url}/v1", max_retries=0) as client:
        yield client


async def test_openais_client_streams_over_one_address(client: openai.AsyncOpenAI, local: Local) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    chunks = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    assert "Paris" in "".join(pieces)
    assert len(pieces) > 2
    assert len(local.engines()) == 2
    threads = {option_of(engine.cmdline(), "--threads") for engine in local.engines().values()}
    assert {int(each) * 2 <= max(2, psutil.cpu_count(logical=False) or 1) for each in threads} == {True}


async def test_one_engine_is_killed_under_16_streams_and_only_those_on_it_end_and_it_is_back_by_itself(
    client: openai.AsyncOpenAI, local: Local
) -> None:
    streams = await streams_on_all(client, local, 16, "is a number that", max_tokens=120)
    before = local.engines()
    port, victim = next(iter(before.items()))
    num_on_it = load_of(port)["num_running"]
    assert 0 < num_on_it < len(streams)
    victim.kill()
    outcomes = await asyncio.gather(*(outcome(each) for each in streams))
    assert outcomes.count("error event") == num_on_it
    assert outcomes.count("complete") == len(streams) - num_on_it

    assert await outcome(stream(client, "Meanwhile", max_tokens=4)) == "complete"
    # Its port may be somebody else's by now, so it has another one.
    await asyncio.to_thread(until, lambda: set(local.ready_ports()) - set(before), "the engine's return")
    (back,) = set(local.ready_ports()) - set(before)
    while num_requests(back) == 0:
        prompts = [f"Afterwards {time.monotonic()} {number}" for number in range(8)]
        found = await asyncio.gather(*(outcome(stream(client, prompt, max_tokens=4)) for prompt in prompts))
        assert set(found) == {"complete"}
    assert "ended with exit code 137" in local.said()


async def test_a_file_that_breaks_a_rule_is_told_and_changes_nothing(client: openai.AsyncOpenAI, local: Local) -> None:
    before = local.engines()
    local.write(document(2, "  autoscaling:\n    maxReplicas: 3\n"))
    told = "spec.replicas: 2 cannot be used: replicas and autoscaling both decide the number of replicas"
    await asyncio.to_thread(until, lambda: told in local.said(), "the complaint")
    assert await outcome(stream(client, "Still", max_tokens=4)) == "complete"
    assert local.engines() == before


async def test_a_smaller_number_in_the_file_drains_without_cutting_a_stream(
    client: openai.AsyncOpenAI, local: Local
) -> None:
    streams = await streams_on_all(client, local, 6, "stories:", max_tokens=150)
    local.write(document(1))
    outcomes = await asyncio.gather(*(outcome(each) for each in streams))
    assert set(outcomes) == {"complete"}
    await asyncio.to_thread(until, lambda: len(local.engines()) == 1, "the end of one replica")
    assert "Draining" in local.said()
    assert await outcome(stream(client, "Last", max_tokens=4)) == "complete"


async def test_ctrl_c_lets_a_stream_finish_and_leaves_no_process(client: openai.AsyncOpenAI, local: Local) -> None:
    processes = processes_below(local)
    assert len(processes) > 2
    running = stream(client, "A long farewell", max_tokens=100)
    await anext(running)
    local.process.send_signal(signal.SIGINT)
    assert await outcome(running) == "complete"
    assert await asyncio.to_thread(local.process.wait, PATIENCE_SECONDS) == 0
    until(lambda: have_ended(processes), "the end of all processes")


def test_no_process_outlives_a_killed_one(tmp_path: Path) -> None:
    running = start(tmp_path, document(2))
    try:
        # An engine's worker, and what the gateway reads prompts in, are processes of their own.
        until(lambda: len(processes_below(running)) >= 5, "engines with their workers")
        processes = processes_below(running)
    finally:
        running.process.kill()
        running.process.wait()
    until(lambda: have_ended(processes), "the end of all processes")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """One replica of a service that asks for keys, and a Tenant that has one."""
    key = hashlib.sha256(b"sk-acme").hexdigest()
    tenant = f"""\
  tenancy: {{authentication: ApiKey}}
---
apiVersion: serving.sapwood.dev/v1alpha1
kind: Tenant
metadata: {{name: acme}}
spec: {{apiKeys: [{{name: first, sha256: {key}}}]}}
"""
    running = start(tmp_path_factory.mktemp("guarded"), document(1, tenant))
    try:
        until(lambda: running.process.poll() is not None or running.serves_with(1), "a ready replica")
        yield running
    finally:
        running.process.kill()
        running.process.wait()


async def test_a_tenants_key_opens_a_service_that_asks_for_keys_and_nothing_else_does(guarded: Local) -> None:
    async with openai.AsyncOpenAI(api_key="sk-acme", base_url=f"{guarded.url}/v1", max_retries=0) as acme:
        assert await outcome(stream(acme, "Once", max_tokens=4)) == "complete"
        with pytest.raises(openai.AuthenticationError):
            await acme.with_options(api_key="sk-other").completions.create(model=MODEL, prompt="x")
    (port,) = guarded.engines()
    async with openai.AsyncOpenAI(api_key="sk-acme", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as direct:
        with pytest.raises(openai.AuthenticationError):
            await direct.completions.create(model=MODEL, prompt="x")


def test_a_second_signal_ends_everything_at_once(guarded: Local) -> None:
    processes = processes_below(guarded)
    guarded.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in guarded.said(), "the drain")
    guarded.process.send_signal(signal.SIGINT)
    assert guarded.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGINT
    until(lambda: have_ended(processes), "the end of all processes")
