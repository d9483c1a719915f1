"""One trace from a client through gateway and engine, as a receiver gets it over OTLP from both programs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from support_spans import NOT_SAMPLED, SPAN_ID, TRACE_ID, TRACEPARENT, Received, Receiver, receiver

from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
MARKER = "the marker of a prompt"
PHASES = {"tokenize", "queue", "kv.match", "prefill", "decode"}
ROUTE, CALL = "gateway.route", f"chat {MODEL}"
_START_SECONDS = 240


@pytest.fixture(scope="module")
def received() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.fixture(scope="module")
def client(received: Receiver) -> Iterator[openai.OpenAI]:
    """A client of a gateway before one engine, both of which send their traces to ``received``."""
    engine, engine_admin, gateway, gateway_admin = (free_port() for _ in range(4))
    sapwood, traced = [sys.executable, "-m", "sapwood"], [f"--otlp-endpoint={received.url}", "--trace-sampling-ratio=0"]
    commands = [
        [
            *(*sapwood, "serve", *traced, f"--port={engine}", f"--admin-port={engine_admin}"),
            *("--kv-tokens=4096", "--threads=1", "--thread-binding=off"),
        ],
        [
            *(*sapwood, "gateway", *traced, f"--port={gateway}", f"--admin-port={gateway_admin}"),
            f"--engine=http://127.0.0.1:{engine},http://127.0.0.1:{engine_admin}",
            *("--policy=prefix-affinity", "--load-interval-seconds=0.2"),
        ],
    ]
    processes = [subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in commands]
    try:
        _wait_until_ready(f"http://127.0.0.1:{gateway_admin}")
        with openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{gateway}/v1", max_retries=0) as client:
            yield client
        for process in processes:
            process.terminate()
        assert [process.wait(60) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait_until_ready(url: str) -> None:
    """Ask the gateway again and again until it knows that the engine takes requests."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            if b'sapwood_gateway_replicas{state="fit"} 1' in answer.read():
                return
        assert time.monotonic() < deadline, f"{url} is not ready in time"
        time.sleep(0.05)  # what is waited for needs the processor


def stream(client: openai.OpenAI, traceparent: str, *, max_tokens: int) -> float:
    """Read a streamed answer to its end; return the seconds that it took."""
    began = time.monotonic()
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Tell me of {MARKER}. " * 40}],
        max_tokens=max_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"traceparent": traceparent},
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    return time.monotonic() - began


def named(spans: list[Received]) -> dict[str, Received]:
    """Return spans by their names, of which each is there once."""
    found = {span.name: span for span in spans}
    assert len(found) == len(spans)
    return found


def test_one_streamed_request_is_one_trace_whose_phases_are_the_clients_latency(
    client: openai.OpenAI, received: Receiver
) -> None:
    stream(client, NOT_SAMPLED, max_tokens=2)  # what is done once is done
    stream(client, TRACEPARENT, max_tokens=2)
    spans = named(received.wait_for(TRACE_ID, {ROUTE, CALL, *PHASES}))
    attempt = spans["POST /v1/chat/completions"]
    assert set(spans) == {ROUTE, attempt.name, CALL, *PHASES}
    assert {span.service for span in spans.values()} == {"sapwood-gateway", "sapwood-engine"}
    assert spans[ROUTE].parent_id == SPAN_ID
    assert attempt.parent_id == spans[ROUTE].span_id
    assert spans[CALL].parent_id == attempt.span_id
    assert {spans[name].parent_id for name in PHASES} == {spans[CALL].span_id}
    assert not [span for span in spans.values() if span.is_error]
    ratios: list[float] = []
    while not 0.95 <= (ratio := told_part(client, received, number=len(ratios))) <= 1.05:
        ratios.append(ratio)
        assert len(ratios) < 10, ratios


def told_part(client: openai.OpenAI, received: Receiver, *, number: int) -> float:
    """Return which part of a client's latency a trace tells of: less on a busy machine, where a client waits for its
    own turn.
    """
    trace_id = f"{0xDEF000 + number:032x}"
    latency = stream(client, f"00-{trace_id}-{SPAN_ID}-01", max_tokens=100)
    spans = named(received.wait_for(trace_id, {ROUTE, CALL, *PHASES}))
    in_gateway = spans[ROUTE].seconds - spans["POST /v1/chat/completions"].seconds
    return (in_gateway + sum(spans[name].seconds for name in PHASES)) / latency


def test_what_clients_wrote_is_in_no_byte_that_was_sent(client: openai.OpenAI, received: Receiver) -> None:
    trace_id = f"{0xABC:032x}"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(
            model=MARKER, prompt=MARKER, extra_headers={"traceparent": f"00-{trace_id}-{SPAN_ID}-01"}
        )
    stream(client, f"00-{trace_id}-{SPAN_ID}-01", max_tokens=2)
    assert "prefill" in {span.name for span in received.wait_for(trace_id, {ROUTE, CALL, *PHASES})}
    assert not [body for body in received.bodies if MARKER.encode() in body or b"Bearer" in body]
