"""What a user does first, from nothing to an answer: install, apply, wait, talk."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml
from kubernetes import config

from chart_release import NAMESPACE, connect
from pods import Pods
from small_engines import MODEL, READY_SECONDS, TWO_ENGINES
from world import JsonObject, World, eventually

EXAMPLE = Path("examples/chat.yaml")


def kubectl(*args: str, said: str = "") -> str:
    """Run kubectl, which reads ``said``, and return what it writes."""
    done = subprocess.run(
        ["kubectl", *args], check=False, capture_output=True, text=True, timeout=READY_SECONDS + 30, input=said
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def world() -> World:
    return World(config.new_client_from_config())  # type: ignore[no-untyped-call]  # as the library is


def with_kernels(manifest: JsonObject) -> JsonObject:
    """Return the example with a cache on the nodes: its engines need not compile for half a minute."""
    manifest["spec"]["model"]["cache"] = TWO_ENGINES["model"]["cache"]
    return manifest


@pytest.fixture(scope="module")
def chat(world: World) -> Iterator[str]:
    """Install Sapwood, apply the smallest example, wait for it; return the gateway Service's address."""
    release = connect(world)
    release.uninstall()  # what an earlier module left
    release.install()
    kubectl("apply", "--filename", "-", said=json.dumps(with_kernels(yaml.safe_load(EXAMPLE.read_text()))))
    kubectl("wait", "--for=condition=Ready", "inferenceservice/chat", f"--timeout={READY_SECONDS}s")
    service = world.get(f"/api/v1/namespaces/{NAMESPACE}/services/sapwood-gateway")
    assert service is not None
    yield service["spec"]["clusterIP"]
    kubectl("delete", "--filename", str(EXAMPLE))
    engines = "/api/v1/namespaces/default/pods?labelSelector=app.kubernetes.io%2Fcomponent%3Dengine"
    eventually(lambda: not world.items(engines), "the engine's end", within_seconds=120)
    release.uninstall()


def test_openais_client_streams_an_answer_through_the_gateway(chat: str) -> None:
    with openai.OpenAI(base_url=f"http://{chat}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=24,
            temperature=0,
            stream=True,
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "Paris" in "".join(pieces)
    assert len(pieces) > 2  # it came token by token


def test_a_pod_reaches_the_service_under_the_address_in_its_status(world: World, chat: str) -> None:
    url = kubectl("get", "inferenceservice", "chat", "--output", "jsonpath={.status.url}")
    script = f"import urllib.request as u; print(u.urlopen('{url}/v1/models', timeout=30).read().decode())"
    pods = Pods(world, "default")
    said = pods.run("models", {"name": "main", "image": "e2e/python:1", "args": ["-c", script]})
    pods.delete("models")
    assert MODEL in said


def test_an_engine_has_no_token_of_the_api(chat: str) -> None:
    spec = kubectl("get", "pods", "--selector=app.kubernetes.io/component=engine", "--output=jsonpath={.items[*].spec}")
    assert "serviceAccountToken" not in spec
    assert '"automountServiceAccountToken":false' in spec.replace(" ", "")
