"""``sapwood local`` with a real gateway and real engines: a service that is not there while nobody asks, and grows and
shrinks with what is asked.

That it goes again takes a minute and a half of silence, so it is tested in virtual time (`test_scaling.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import openai
import pytest
from support_local_program import MODEL, Local, outcome, start, stream, until

pytestmark = pytest.mark.engine

_numbers = count()


def document(prefill_utilization: str) -> str:
    """Return a service of up to two replicas, of whose prefill speed so much is planned."""
    return f"""\
apiVersion: serving.sapwood.dev/v1alpha1
kind: InferenceService
metadata: {{name: chat}}
spec:
  model: {{name: {MODEL}, source: {{builtin: {MODEL}}}}}
  engine: {{device: CPU, extraArgs: [--kv-tokens=4096, --threads=1, --thread-binding=off]}}
  autoscaling:
    minReplicas: 0
    maxReplicas: 2
    scaleToZero: {{enabled: true, idleAfter: 1s}}
    capacity: {{prefillUtilization: "{prefill_utilization}"}}
    cache: {{maxHitLoss: "1", settleTime: 1s}}
    behavior: {{scaleDown: {{stabilizationWindow: 1s}}}}
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    running = start(tmp_path_factory.mktemp("scaling"), document("1"))
    try:
        until(lambda: running.process.poll() is not None or "the gateway answers" in running.said(), "a gateway")
        assert running.process.poll() is None, running.said()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def client_of(local: Local) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url=f"{local.url}/v1", max_retries=0)


async def test_requests_at_no_replica_are_held_and_answered_by_one_that_is_woken_for_them(local: Local) -> None:
    assert local.engines() == {}
    async with client_of(local) as client:
        outcomes = await asyncio.gather(*(outcome(stream(client, f"{n} is", max_tokens=4)) for n in range(3)))
    assert outcomes == ["complete"] * 3
    assert len(local.engines()) == 1
    assert "from 0 to 1 replicas: Demand: " in local.said()


async def test_a_bound_that_breaks_adds_a_replica_which_goes_again_without_cutting_a_stream(local: Local) -> None:
    async with client_of(local) as client:
        local.write(document("0.01"))
        await ask_until(client, lambda: len(local.ready_ports()) == 2, "a second replica", max_tokens=8)
        assert "from 1 to 2 replicas: Maximum: 1 replica would use " in local.said()
        local.write(document("1"))
        await ask_until(client, lambda: len(local.engines()) == 1, "one replica", max_tokens=100)
        assert "from 2 to 1 replicas: LoadFell: " in local.said()


async def ask_until(client: openai.AsyncOpenAI, holds: Callable[[], object], what: str, *, max_tokens: int) -> None:
    """Let two people ask something new again and again until something holds; fails where an answer is cut."""
    ended: list[str] = []

    async def ask() -> None:
        while True:
            ended.append(
                await outcome(stream(client, f"{next(_numbers)} is a number and " * 10, max_tokens=max_tokens))
            )
            await asyncio.sleep(0.1)  # so that one replica could answer all of it

    people = [asyncio.create_task(ask()) for _ in range(2)]
    await asyncio.to_thread(until, holds, what)
    for person in people:
        person.cancel()
        with suppress(asyncio.CancelledError):
            await person
    assert set(ended) == {"complete"}
