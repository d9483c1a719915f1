"""``sapwood local`` with a real gateway and a real engine: a service that is not there while nobody asks.

That it goes again takes a minute and a half of silence, so it is tested in virtual time (`test_scaling.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from support_local_program import MODEL, Local, outcome, start, stream, until

pytestmark = pytest.mark.engine

DOCUMENT = f"""\
apiVersion: serving.sapwood.dev/v1alpha1
kind: InferenceService
metadata: {{name: chat}}
spec:
  model: {{name: {MODEL}, source: {{builtin: {MODEL}}}}}
  engine: {{device: CPU, extraArgs: [--kv-tokens=4096, --threads=1, --thread-binding=off]}}
  autoscaling: {{minReplicas: 0, maxReplicas: 2, scaleToZero: {{enabled: true, idleAfter: 1s}}}}
"""


@pytest.fixture
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    running = start(tmp_path_factory.mktemp("scaling"), DOCUMENT)
    try:
        until(lambda: running.process.poll() is not None or "the gateway answers" in running.said(), "a gateway")
        assert running.process.poll() is None, running.said()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


async def test_requests_at_no_replica_are_held_and_answered_by_one_that_is_woken_for_them(local: Local) -> None:
    assert local.engines() == {}
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{local.url}/v1", max_retries=0) as client:
        outcomes = await asyncio.gather(*(outcome(stream(client, f"{n} is", max_tokens=4)) for n in range(3)))
    assert outcomes == ["complete"] * 3
    assert len(local.engines()) == 1
    assert "from 0 to 1 replicas: Demand: " in local.said()
