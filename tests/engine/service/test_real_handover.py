"""Two served engines: what one computed is handed to the other before that is ready, and found by its first request."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sapwood_contract.http import (
    ADMIN_HOT_PREFIXES,
    ADMIN_LOAD,
    ADMIN_PREFIXES,
    ADMIN_REQUESTS,
    ADMIN_WARM,
    BLOCK_NAME_BYTES,
    METRICS,
    READYZ,
)
from sapwood_contract.trust import CREDENTIAL_HEADER
from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

DEADLINE_SECONDS = 240
MARKER = "marker-8d21"
COMMON = f"Of the {MARKER} it was said in all the towns along the river, and for longer than anybody could tell, that "
PROMPTS = [COMMON + end for end in ("it could sing.", "it had been a bridge.", "nobody had seen it twice.")]
CREDENTIAL, KEY = "credential-of-the-gateway", "key-of-an-admin"
AS_GATEWAY = {CREDENTIAL_HEADER: CREDENTIAL}
AS_ADMIN = {"Authorization": f"Bearer {KEY}"}


@dataclass
class Served:
    """A running engine, and what it wrote."""

    process: subprocess.Popen[bytes]
    url: str
    admin_url: str
    log: Path

    def ask(
        self, path: str, body: dict[str, Any] | None = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and answer; of a text what it says."""
        url = (self.url if path.startswith("/v1") else self.admin_url) + path
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(asked, timeout=120) as answer:
                status, said = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, said = error.code, error.read()
        return status, said.decode() if path == METRICS else json.loads(said)

    def complete(self, prompt: str) -> tuple[int, str]:
        """Return the cached tokens of ``prompt``, and what follows it."""
        body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 6, "temperature": 0, "cache_salt": MARKER}
        status, answer = self.ask("/v1/completions", body, headers=AS_GATEWAY)
        assert status == 200
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]

    def names(self) -> set[bytes]:
        """Of all pages that it tells of."""
        told = [b64decode(node["blocks"]) for node in self.ask(ADMIN_PREFIXES, headers=AS_GATEWAY)[1]["nodes"]]
        size = BLOCK_NAME_BYTES
        return {blocks[at : at + size] for blocks in told for at in range(0, len(blocks), size)}

    def state(self) -> str:
        try:
            return str(self.ask(ADMIN_LOAD, headers=AS_GATEWAY)[1]["state"])
        except OSError:
            return "not there"

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not holds():
            assert self.process.poll() is None, "the engine has ended"
            assert time.monotonic() < deadline, "it does not come about"
            time.sleep(0.05)  # what is waited for needs the processor


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """One that publishes its blocks, and one that publishes none and waits for an hour to be told what to compute."""
    folder = tmp_path_factory.mktemp("handover")
    (folder / "credential").write_text(CREDENTIAL)
    (folder / "keys").write_text(KEY)
    files = (f"--gateway-credential-file={folder / 'credential'}", f"--admin-key-file={folder / 'keys'}")
    giving = _start(folder / "giving", "--kv-events-port=0", *files)
    taking = _start(folder / "taking", "--warm-wait-seconds=3600", *files)
    try:
        giving.wait_for(lambda: giving.state() == "ready")
        taking.wait_for(
            lambda: taking.state() == "warming" and taking.ask(ADMIN_PREFIXES, headers=AS_GATEWAY)[0] == 200
        )
        yield giving, taking
    finally:
        for each in (giving, taking):
            each.process.kill()
            each.process.wait()


def _start(log: Path, *options: str) -> Served:
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "sapwood", "serve", f"--port={port}", f"--admin-port={admin_port}"]
    command += ["--kv-tokens=4096", "--threads=1", "--thread-binding=off", "--log-level=debug", *options]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=written)
    return Served(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", log)


def test_what_one_computed_is_in_the_other_before_that_is_ready_and_its_first_request_finds_it(
    engines: tuple[Served, Served],
) -> None:
    giving, taking = engines
    answers = [giving.complete(prompt) for prompt in PROMPTS]
    assert answers[1][0] > 0
    for _ in range(2):  # a page that is never used again is not worth handing over
        for prompt in PROMPTS:
            giving.complete(prompt)
    status, hot = giving.ask(ADMIN_HOT_PREFIXES, headers=AS_GATEWAY)
    assert status == 200

    assert taking.ask(READYZ)[0] == 503
    assert taking.ask("/v1/models", headers=AS_GATEWAY)[0] == 200
    first, *others = hot["prefixes"]
    status, progress = taking.ask(ADMIN_WARM, {**hot, "prefixes": [first], "is_last": False}, headers=AS_GATEWAY)
    assert (status, progress["state"]) == (200, "warming")
    taking.wait_for(lambda: taking.ask(ADMIN_WARM, headers=AS_GATEWAY)[1]["num_done"] == 1)
    assert taking.state() == "warming"
    taking.ask(ADMIN_WARM, {**hot, "prefixes": others, "is_last": True}, headers=AS_ADMIN)
    taking.wait_for(lambda: taking.state() == "ready")
    assert taking.ask(READYZ)[0] == 200
    done = {"state": "ready", "num_waiting": 0, "num_done": len(hot["prefixes"]), "num_dropped": 0}
    assert taking.ask(ADMIN_WARM, headers=AS_GATEWAY) == (200, done)

    assert set() != taking.names() <= giving.names()
    assert taking.ask(ADMIN_REQUESTS, headers=AS_ADMIN)[1] == {"requests": []}
    metrics = taking.ask(METRICS)[1].splitlines()
    counted = [line for line in metrics if line.startswith(("sapwood_requests_total", "sapwood_prompt_tokens_total"))]
    assert {line.rpartition(" ")[2] for line in counted} == {"0.0"}

    again = [giving.complete(prompt) for prompt in PROMPTS]
    page_tokens = giving.ask(ADMIN_PREFIXES, headers=AS_GATEWAY)[1]["page_size"]
    for prompt, (num_cached, text) in zip(PROMPTS, again, strict=True):
        found, said = taking.complete(prompt)
        assert said == text
        assert num_cached // page_tokens * page_tokens <= found <= num_cached

    ids = first["token_ids"][:4]
    for each in engines:
        written = each.log.read_text()
        assert "call ended" in written  # it logs what it is asked
        assert MARKER not in written
        assert ", ".join(map(str, ids)) not in written


@pytest.mark.parametrize("path", [ADMIN_PREFIXES, ADMIN_HOT_PREFIXES, ADMIN_WARM])
def test_the_gateways_credential_and_an_admin_key_open_it_and_nothing_else_does(
    engines: tuple[Served, Served], path: str
) -> None:
    giving, _ = engines
    assert giving.ask(path, headers=AS_GATEWAY)[0] == 200
    assert giving.ask(path, headers=AS_ADMIN)[0] == 200
    assert giving.ask(path)[0] == 401
    assert giving.ask(path, headers={"Authorization": f"Bearer {CREDENTIAL}"})[0] == 401


def test_token_ids_of_another_revision_and_ids_out_of_the_vocabulary_are_refused(
    engines: tuple[Served, Served],
) -> None:
    _, taking = engines
    _, hot = taking.ask(ADMIN_HOT_PREFIXES, headers=AS_GATEWAY)
    assert taking.ask(ADMIN_WARM, {**hot, "model_revision": "another"}, headers=AS_GATEWAY)[0] == 409
    wrong = {**hot, "prefixes": [{"token_ids": [10**9], "worth_tokens": 1}]}
    status, answer = taking.ask(ADMIN_WARM, wrong, headers=AS_GATEWAY)
    assert (status, answer["error"]["code"]) == (400, "invalid_token_id")
