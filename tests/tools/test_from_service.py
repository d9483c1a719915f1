"""`sapwood replay --from-service`: whom it asks, what it replays, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from support_gateway import MODEL, serving
from support_gateway_process import Running, gateway_process
from support_workload import an_hour, gateway_that_says, traced
from yarl import URL

from sapwood_contract.http import GATEWAY_TRACE, EngineLoad, LoadSnapshot, ServiceTrace
from sapwood_contract.local_state import DISCOVERY_FILE, state_folder
from sapwood_contract.routing import ServiceRoute, to_json
from sapwood_gateway.core.cluster_facts import SLICE_SERVICE_LABEL
from sapwood_tools.replay import cli
from sapwood_tools.replay.trace import TraceRequest, read_trace

MARK = "nobody-may-read-this"
POLICY = "{maxReplicas: 4, slo: {ttftP90: 20s}}"
KUBECTL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in
  *"get --raw"*) cat "$(dirname "$0")/answer" ;;
  *"get pods"*) cat "$(dirname "$0")/pods" ;;
esac
[ ! -e "$(dirname "$0")/refusal" ] || { cat "$(dirname "$0")/refusal" >&2; exit 1; }
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Replay = Callable[..., Awaitable[Said]]


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Runs the command beside what the test serves; no `sapwood local` of this machine's user is found."""

    async def run(*arguments: str, **environment: str) -> Said:
        for name, value in ({"XDG_STATE_HOME": "/nonexistent"} | environment).items():
            monkeypatch.setenv(name, value)
        code = await asyncio.to_thread(cli.main, arguments)
        return Said(code, *capsys.readouterr())

    return run


def shared(a: TraceRequest, b: TraceRequest) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.blocks, b.blocks, strict=False)))


async def test_the_last_hour_is_replayed_under_a_changed_spec_and_kept(tmp_path: Path, replay: Replay) -> None:
    (policy := tmp_path / "changed.yaml").write_text(POLICY)
    asked: list[dict[str, str]] = []
    (key := tmp_path / "key").write_text("sesame\n")
    async with gateway_that_says(an_hour(), asked) as url:
        given = ["--from-service=chat", "-n", "team", f"--gateway={url}", f"--key-file={key}"]
        page, kept = tmp_path / "page.html", tmp_path / "hour.jsonl"
        more = [f"--autoscale={policy}", "--controllers=sapwood", "--json", f"--report={page}", f"--save={kept}"]
        said = await replay(*given, *more)
    assert said.code == 0, said.err
    assert [json.loads(line)["controller"] for line in said.out.splitlines()] == ["sapwood", "clairvoyant"]
    assert "chat" in page.read_text()
    assert len(read_trace(kept)) == 300
    (query,) = asked
    assert (query["namespace"], query["service"], query["Authorization"]) == ("team", "chat", "Bearer sesame")


async def test_it_is_replayed_over_numbers_of_replicas_too_and_of_what_is_missing_there_is_word(replay: Replay) -> None:
    short = traced(*((at, 1_024, (0, at + 1)) for at in range(30)), covered=600.0)
    async with gateway_that_says(short) as one, gateway_that_says(an_hour(10)) as other:
        given = ["--from-service=chat", f"--gateway={one}", f"--gateway={other}", "--replicas=2", "--json"]
        said = await replay(*given, "--policy=hash,prefix-affinity")
    assert [json.loads(line)["policy"] for line in said.out.splitlines()] == ["hash", "prefix-affinity"]
    assert said.err == f"sapwood replay: {one} knows the last 600 s: what it passed on before is not here\n"


async def test_the_gateway_of_a_sapwood_local_is_found(tmp_path: Path, replay: Replay) -> None:
    async with gateway_that_says(an_hour()) as url:
        port = URL(url).port
        assert port is not None
        environment = {"XDG_STATE_HOME": str(tmp_path)}
        folder = state_folder(environment, port - 1)
        folder.mkdir(parents=True)
        (folder / DISCOVERY_FILE).write_text("{}")
        said = await replay("--from-service=chat", "--replicas=1", "--policy=hash", "--json", **environment)
    assert (said.code, len(said.out.splitlines())) == (0, 1), said.err


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (traced(), "default/chat has answered nothing in the last hour"),
        (an_hour(5), "default/chat has answered 5 requests in the last hour"),
        (b"hello", "answers with something that is not JSON"),
        (b"[]", "answers with something that is not understood"),
    ],
    ids=["nothing", "too few", "no JSON", "something else"],
)
async def test_what_cannot_be_replayed_is_told(answer: Any, told: str, replay: Replay) -> None:
    async with gateway_that_says(answer) as url:
        said = await replay("--from-service=chat", f"--gateway={url}")
    assert (said.code, said.out) == (1, "")
    assert told in said.err
    assert len(said.err.splitlines()) == 1


async def test_requests_that_all_come_before_anything_is_scored_are_told(tmp_path: Path, replay: Replay) -> None:
    (policy := tmp_path / "changed.yaml").write_text(POLICY)
    async with gateway_that_says(an_hour(25)) as url:
        said = await replay("--from-service=chat", f"--gateway={url}", f"--autoscale={policy}")
    assert said.code == 1
    assert "the last request comes after 240 s, and the first 300 s are not scored" in said.err


async def test_without_a_gateway_it_is_told_how_to_name_one(replay: Replay) -> None:
    said = await replay("--from-service=chat")
    assert said.code == 1
    assert "no sapwood local of yours runs. Name the admin address of each with --gateway" in said.err
    said = await replay("--from-service=chat", "--gateway=http://127.0.0.1:9")
    assert (said.code, said.err) == (1, "sapwood replay: http://127.0.0.1:9 does not answer: Connection refused\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a trace, or a running service with --from-service"),
        (["trace.jsonl", "--from-service=chat"], "--from-service and the trace 'trace.jsonl'"),
        (["trace.jsonl", "--save=x"], "--save without --from-service"),
        (["trace.jsonl", "--namespace=team"], "--namespace without --from-service"),
        (["--from-service=chat", "--gateway=here"], "'here' is not an address"),
        (["--from-service=chat", "--gateway=http://a", "--system-namespace=b"], "not allowed with argument"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert told in capsys.readouterr().err


# --- in a cluster


def pod(name: str, *, is_ready: bool = True, **metadata: str) -> Mapping[str, Any]:
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [
                {"ports": [{"name": "http", "containerPort": 8080}, {"name": "admin", "containerPort": 8081}]}
            ]
        },
        "status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]},
    }


def kubectl(folder: Path, *pods: Mapping[str, Any], answer: bytes = b"", refusal: str = "") -> dict[str, str]:
    """Return the environment in which a kubectl answers so."""
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    (folder / "pods").write_text(json.dumps({"items": pods}))
    (folder / "answer").write_bytes(answer)
    if refusal:
        (folder / "refusal").write_text(refusal)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


async def test_in_a_cluster_every_ready_gateway_of_the_release_is_asked_through_kubectl(
    tmp_path: Path, replay: Replay
) -> None:
    pods = pod("one"), pod("two"), pod("new", is_ready=False), pod("old", deletionTimestamp="2026-11-30T00:00:00Z")
    environment = kubectl(tmp_path, *pods, answer=msgspec.json.encode(an_hour(30)))
    kept = tmp_path / "hour.jsonl"
    given = ["--from-service=chat", "--namespace=team", "--system-namespace=sapwood", "--replicas=1", "--policy=hash"]
    said = await replay(*given, f"--save={kept}", **environment)
    assert said.code == 0, said.err
    assert len(read_trace(kept)) == 60
    listed, *asked = (tmp_path / "asked").read_text().splitlines()
    assert "--namespace=sapwood --selector=app.kubernetes.io/name=sapwood,app.kubernetes.io/component=gateway" in listed
    queries = {line.partition("?")[2] for line in asked}
    assert sorted(line.partition("?")[0] for line in asked) == [
        f"get --raw /api/v1/namespaces/sapwood/pods/{name}:8081/proxy/admin/trace" for name in ("one", "two")
    ]
    assert len(queries) == 1, "gateways name blocks alike for one reading alone"


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        ("Error from server (NotFound): the server could not find the requested resource", "it knows no such service"),
        ("Error from server (Conflict): the server reported a conflict", "the service is not routed by prefix"),
        ("Error from server (Forbidden): pods is forbidden", "the right to get pods/proxy"),
        (
            "error: You must be logged in to the server (the server has asked for the client to provide credentials)",
            "kubectl port-forward",
        ),
        ("The connection to the server was refused", "kubectl: The connection to the server was refused\n"),
    ],
)
async def test_what_kubectl_says_is_told_with_what_it_means(
    refusal: str, told: str, tmp_path: Path, replay: Replay
) -> None:
    said = await replay("--from-service=chat", "--system-namespace=sapwood", **kubectl(tmp_path, refusal=refusal))
    assert said.code == 1
    assert refusal in said.err
    assert told in said.err


async def test_a_namespace_without_gateways_and_a_machine_without_kubectl_are_told(
    tmp_path: Path, replay: Replay
) -> None:
    given = ["--from-service=chat", "--system-namespace=lab"]
    said = await replay(*given, **kubectl(tmp_path))
    assert "there is no ready gateway in namespace 'lab'" in said.err
    said = await replay(*given, PATH="/nonexistent")
    assert "kubectl cannot be run (No such file or directory): it has to be on PATH" in said.err


# --- before real gateways


def engine() -> web.Application:
    """An engine of pages of 16 tokens, as gateways see it: it answers a prompt of ids, and repeats a text."""

    async def load(_: web.Request) -> web.Response:
        snapshot = LoadSnapshot(kv_capacity_tokens=160_000, kv_page_tokens=16)
        said = EngineLoad(MODEL, "ready", snapshot, model_revision="revision", knows_gateway=True)
        return web.json_response(msgspec.to_builtins(said))

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        return web.json_response({"choices": [{"text": MARK}], "usage": usage})

    app = web.Application()
    app.router.add_get("/admin/load", load)
    app.router.add_post("/v1/completions", answer)
    return app


def discovery_file(folder: Path, engine_url: str) -> Path:
    """Return a file by which a gateway finds one engine, whose service is routed by prefix."""
    port = URL(engine_url).port
    route = ServiceRoute(
        namespace="default", service="chat", models=(MODEL,), engine_service="chat-engine", policy="PrefixAffinity"
    )
    config_map = {"kind": "ConfigMap", "metadata": {"name": "chat"}, "data": {"service.json": to_json(route)}}
    endpoints = {
        "kind": "EndpointSlice",
        "metadata": {"name": "chat", "labels": {SLICE_SERVICE_LABEL: "chat-engine"}},
        "ports": [{"name": "http", "port": port}, {"name": "admin", "port": port}],
        "endpoints": [
            {
                "addresses": ["127.0.0.1"],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": "pod", "uid": "uid"},
            }
        ],
    }
    (path := folder / "services.json").write_text(json.dumps({"kind": "List", "items": [config_map, endpoints]}))
    return path


async def until_it_reads(running: Running) -> None:
    """Return when a gateway has heard how its engine names blocks: what it cannot read then is told as unreadable."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as client:
        while True:
            async with running.client.post("/tokenize", json={"model": MODEL, "prompt": "a text"}) as answer:
                await answer.read()
            async with client.get(running.admin_url + "/metrics") as answer:
                if 'unread_prompts_total{reason="unreadable"} 0.0' not in await answer.text():
                    return
            await asyncio.sleep(0.05)  # what is waited for needs the processor


async def until_it_has(running: Running, num_requests: int) -> bytes:
    """Return what a gateway tells once it has noted so many requests: it does after their answers."""
    query = {"namespace": "default", "service": "chat"}
    async with asyncio.timeout(60), aiohttp.ClientSession() as client:
        while True:
            async with client.get(running.admin_url + GATEWAY_TRACE, params=query) as answer:
                told = await answer.read()
            if len(msgspec.json.decode(told, type=ServiceTrace).requests) == num_requests:
                return told
            await asyncio.sleep(0.05)  # as above


async def test_fifty_requests_through_two_gateways_are_replayed_with_their_lengths_and_what_they_share(
    tmp_path: Path, replay: Replay
) -> None:
    (secret := tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    kept = tmp_path / "hour.jsonl"
    # Five conversations that begin alike in 600 tokens, and grow by 400 a turn; every other turn by another gateway.
    prompts = [[*[1] * 600, *[2 + number % 5] * 400 * (number // 5 + 1)] for number in range(50)]
    async with serving(engine()) as engine_url:
        options = [f"--discovery-file={discovery_file(tmp_path, engine_url)}", f"--secret-file={secret}"]
        options.append("--prompt-patience-seconds=20")  # however busy the machine is
        async with gateway_process(options=options) as one, gateway_process(options=options) as other:
            for gateway in (one, other):
                await until_it_reads(gateway)
            for number, prompt in enumerate(prompts):
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 3 + number, "user": MARK}
                async with (one, other)[number // 5 % 2].client.post("/v1/completions", json=body) as answer:
                    assert MARK in await answer.text()
            told = [await until_it_has(each, 25) for each in (one, other)]
            given = ["--from-service=chat", f"--gateway={one.admin_url}"]
            given += [f"--gateway={other.admin_url}", f"--save={kept}", "--replicas=2", "--policy=hash", "--json"]
            said = await replay(*given)
            unknown = await replay("--from-service=chat", "-n", "lab", f"--gateway={one.admin_url}")
    assert said.code == 0, said.err
    assert json.loads(said.out)["replicas"] == 2
    assert MARK not in kept.read_text() + said.out + said.err + "".join(each.decode() for each in told)
    trace = read_trace(kept)
    assert [(each.prompt.num_tokens, each.output_tokens) for each in trace] == [
        (len(prompt), 3 + number) for number, prompt in enumerate(prompts)
    ]
    # A turn has whole blocks in common with the one before, which went through the other gateway; others the first.
    assert [shared(now, before) for before, now in zip(trace, trace[5:], strict=False)] == [
        len(prompt) // 512 for prompt in prompts[:45]
    ]
    assert [shared(trace[0], each) for each in trace[1:5]] == [1] * 4
    assert unknown.code == 1
    assert "answers 404 Not Found: /admin/trace: there is no service of this namespace and name here" in unknown.err
