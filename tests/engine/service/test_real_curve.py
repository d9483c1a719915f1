"""A served model's exported miss-ratio curve, beside caches of other sizes that replay its log of requests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support_reuse_logs import Logged, conversation_turns, mean_and_most, served_ratio

from sapwood_contract.http import ADMIN_CACHE, METRICS, READYZ
from sapwood_contract.metrics import MRC_CAPACITIES
from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

_START_SECONDS = 240
_KV_TOKENS, _PAGE_SIZE = 3_072, 16


@pytest.fixture
def addresses() -> Iterator[tuple[str, str]]:
    """The API's and the admin API's of a running engine with a small cache of whole pages."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "sapwood", "serve", f"--port={port}", f"--admin-port={admin_port}"]
    command += [f"--kv-tokens={_KV_TOKENS}", f"--page-size={_PAGE_SIZE}", "--partial-pages=off"]
    command += ["--threads=1", "--thread-binding=off"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not _is_ready(url):
                assert process.poll() is None, "the engine did not start"
                assert time.monotonic() < deadline, "the engine is not ready in time"
                time.sleep(0.05)  # what is waited for needs the processor
            yield url, admin
        finally:
            process.kill()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + READYZ, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
    return body


def _complete(url: str, prompt: list[int]) -> None:
    """One token more, of which no KV is ever computed: the log is the prompts."""
    body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def test_the_exported_curve_is_what_caches_of_other_sizes_hit_of_the_engines_own_log(
    addresses: tuple[str, str],
) -> None:
    url, admin = addresses
    history: dict[int, list[int]] = {}
    log = []
    for speaker, added in conversation_turns(num_conversations=60, turn_tokens=20, seed=3):
        history[speaker] = [*history.get(speaker, ()), *added]
        _complete(url, history[speaker])
        log.append(Logged(tuple(history[speaker]), tuple(history[speaker])))
    values = _exported(url)
    hit_ratios = {capacity: values["sapwood_mrc_hit_ratio", capacity] for capacity in MRC_CAPACITIES}

    errors = {
        capacity: 100 * (ratio - served_ratio(log, capacity_tokens=_tokens(capacity), page_size=_PAGE_SIZE))
        for capacity, ratio in hit_ratios.items()
    }
    mean, most = mean_and_most([*errors.values()])
    assert (mean <= 0.6, most <= 2.0) == (True, True), errors

    device, compute = (values["sapwood_prompt_tokens_total", source] for source in ("device", "compute"))
    assert device + compute == sum(len(each.prompt) for each in log)
    assert 100 * abs(hit_ratios["1x"] - device / (device + compute)) < 0.6

    curve: dict[str, Any] = json.loads(_get(f"{admin}{ADMIN_CACHE}?max_nodes=0"))["curve"]
    by_capacity = {point["capacity_tokens"]: point["hit_ratio"] for point in curve["points"]}
    assert by_capacity[_KV_TOKENS] == hit_ratios["1x"]
    assert by_capacity[None] == hit_ratios["inf"]


def _tokens(capacity: str) -> float:
    return min(float(capacity.removesuffix("x")) * _KV_TOKENS, 1e6)


def _exported(url: str) -> dict[tuple[str, str], float]:
    """Series and value of its last label -> value."""
    families = text_string_to_metric_families(_get(url + METRICS).decode())
    return {
        (sample.name, sample.labels.get("capacity", sample.labels.get("source", ""))): sample.value
        for family in families
        for sample in family.samples
    }
