"""Tenants of a real engine behind a real gateway, both programs of their own, set up by files alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sapwood_gateway.core.tenants import key_digest
from sapwood_tools.bench.servers import free_port

pytestmark = pytest.mark.engine

MODEL = "smollm2-135m"
CREDENTIAL = "a-credential-that-nobody-guesses"
ADMIN_KEY = "a-key-of-the-admin-api"
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog, who had been asleep, is not amused. " * 3
_START_SECONDS = 240


def write_tenants(path: Path, *names: str) -> None:
    documents = [
        {
            "apiVersion": "serving.sapwood.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": name},
            "spec": {"apiKeys": [{"name": "first", "sha256": key_digest(f"sk-{name}").hex()}]},
        }
        for name in names
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n---\n".join(map(json.dumps, documents)))
    fresh.rename(path)


class Programs:
    """An engine and a gateway before it."""

    def __init__(self, folder: Path) -> None:
        self.tenants = folder / "tenants.yaml"
        write_tenants(self.tenants, "acme", "globex")
        (folder / "credential").write_text(CREDENTIAL + "\n")
        (folder / "admin-key").write_text(ADMIN_KEY + "\n")
        ports = [free_port() for _ in range(4)]
        self.engine, self.engine_admin, self.gateway, self.gateway_admin = (
            f"http://127.0.0.1:{port}" for port in ports
        )
        serve = [
            *("serve", "--kv-tokens=4096", "--threads=1", "--thread-binding=off"),
            *(f"--port={ports[0]}", f"--admin-port={ports[1]}"),
            f"--gateway-credential-file={folder / 'credential'}",
            f"--admin-key-file={folder / 'admin-key'}",
        ]
        gateway = [
            *("gateway", f"--engine={self.engine},{self.engine_admin}"),
            *(f"--port={ports[2]}", f"--admin-port={ports[3]}"),
            *(f"--tenants={self.tenants}", f"--engine-credential-file={folder / 'credential'}"),
        ]
        self.processes = [
            subprocess.Popen([sys.executable, "-m", "sapwood", *argv], stdout=subprocess.DEVNULL, stderr=err)
            for argv, err in ((serve, subprocess.DEVNULL), (gateway, subprocess.DEVNULL))
        ]

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self.models("acme") != [MODEL]:
            assert all(process.poll() is None for process in self.processes)
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def models(self, name: str) -> list[str]:
        try:
            answer = httpx.get(self.gateway + "/v1/models", headers=bearer(f"sk-{name}"))
            return [card["id"] for card in answer.json()["data"]] if answer.status_code == 200 else []
        except httpx.TransportError:
            return []

    def cached(self, name: str, headers: dict[str, str] | None = None, **body: Any) -> int:
        """Return how much of the prompt was found for ``name``."""
        whole = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, **body}
        for _ in range(600):
            given = bearer(f"sk-{name}") | (headers or {})
            answer = httpx.post(self.gateway + "/v1/completions", json=whole, headers=given, timeout=60)
            if answer.status_code != 503:  # the engine has said what it serves before it is ready
                break
            time.sleep(0.1)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    started = Programs(tmp_path_factory.mktemp("tenants"))
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.end()


def test_one_tenant_finds_nothing_of_what_another_has_asked(programs: Programs) -> None:
    assert programs.cached("acme") == 0
    assert programs.cached("acme") > 32
    assert programs.cached("globex", {"X-Sapwood-Tenant": "tenant:static/acme"}) == 0
    assert programs.cached("globex", cache_salt="tenant:static/acme") == 0
    assert programs.cached("globex") > 32  # its own


def test_the_engine_is_open_to_the_gateway_and_to_its_administrator_alone(programs: Programs) -> None:
    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
    for headers in ({}, bearer("sk-acme"), bearer(ADMIN_KEY)):
        assert httpx.post(programs.engine + "/v1/completions", json=ask, headers=headers, timeout=60).status_code == 401
    assert httpx.post(programs.engine_admin + "/admin/flush", timeout=60).status_code == 401
    assert httpx.get(programs.engine_admin + "/admin/load", headers=bearer("sk-acme"), timeout=60).status_code == 401
    tree = httpx.get(programs.engine_admin + "/admin/cache", headers=bearer(ADMIN_KEY), timeout=60)
    assert tree.status_code == 200
    assert "acme" not in tree.text
    assert httpx.get(programs.engine + "/metrics", timeout=60).status_code == 200


def test_a_key_is_known_as_soon_as_the_file_has_it_and_no_longer_than_that(programs: Programs) -> None:
    deadline = time.monotonic() + 60
    write_tenants(programs.tenants, "acme", "initech")
    while programs.models("initech") != [MODEL] or programs.models("globex"):
        assert time.monotonic() < deadline
    programs.tenants.write_text("kind: [")
    assert programs.models("acme") == [MODEL]
