"""Every question has its answer, or its reason why there is none; engines are found where people expect them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi import FastAPI
from support_api import served
from support_fake_client import FakeClient

from sapwood_contract.http import RequestView
from sapwood_contract.local_state import ADMIN_KEY_FILE, DISCOVERY_FILE, state_folder, state_folders
from sapwood_engine.api.admin import build_admin_app
from sapwood_engine.service.metrics import EngineMetrics
from sapwood_metrics.exposition import Scraped
from sapwood_tools.admin_client import Unanswered
from sapwood_tools.top import cli
from sapwood_tools.top.engines import EngineAddress, Local, Named, engines_in, local_places, named
from sapwood_tools.top.poller import is_alive, polling
from sapwood_tools.top.samples import Sample
from sapwood_tools.top.source import GatewayAnswer, Poll

ENDED = RequestView("call-1", "ended", "length", 9.0, 2.0, 20, 16, 8, {"queue": 0.5, "prefill": 0.5, "decode": 1.0})
EMPTY = {"num_nodes": 0, "truncated": False, "namespaces": []}


class Answering(FakeClient):
    """Says what an engine says."""

    async def admin(self, action: Literal["cache", "blocks", "flush", "check"], **arguments: Any) -> dict[str, Any]:
        await super().admin(action, **arguments)
        return {"num_tokens": 48} if action == "flush" else EMPTY

    def render_metrics(self, accept: str = "") -> Scraped:
        return EngineMetrics("m").render(accept)


async def asked(*urls: str, gateway: str | None = None, key: str | None = None) -> Poll:
    async with polling(named(urls, gateway, key)) as poller:
        return await poller.ask()


async def sample_of(url: str, key: str | None = None) -> Sample:
    ((_, sample),) = (await asked(url, key=key)).engines
    return sample


async def test_an_engine_answers_every_question() -> None:
    async with served(build_admin_app(Answering(recent=(ENDED,)))) as url:
        sample = await sample_of(url)
    assert sample.problem == ""
    assert sample.load is not None
    assert sample.load.model == "fake/model-1"
    assert sample.figures is not None
    assert sample.requests == (ENDED,)
    assert sample.cache is not None


async def test_of_an_engine_that_loads_what_it_says_is_known() -> None:
    async with served(build_admin_app(Answering(state="loading", capacity=None))) as url:
        sample = await sample_of(url)
    assert sample.load is not None
    assert (sample.load.state, sample.cache, sample.requests) == ("loading", None, ())
    assert sample.problem.startswith("answers 503 Service Unavailable: This engine is still loading its model")


async def test_without_a_key_only_what_is_open_is_known() -> None:
    async with served(build_admin_app(Answering(), admin_keys=frozenset({"right"}))) as url:
        closed, opened = await sample_of(url), await sample_of(url, key="right")
    assert (closed.load, closed.requests, closed.cache, closed.figures is None) == (None, None, None, False)
    assert "--key-file" in closed.problem
    assert opened.problem == ""


async def test_who_is_not_there_and_who_is_something_else_have_a_reason() -> None:
    other = FastAPI()

    @other.get("/{path:path}")
    async def _(path: str) -> dict[str, str]:
        return {"hello": path}

    async with served(other) as url:
        nobody, somebody = (await asked("http://127.0.0.1:9", url)).engines
    assert (nobody[1].has_answer, somebody[1].has_answer) == (False, False)
    assert nobody[1].problem == "does not answer: Connection refused"
    assert somebody[1].problem.startswith("answers with something that is not understood")


async def test_orders_are_carried_out_and_refusals_told() -> None:
    client = Answering()
    async with served(build_admin_app(client)) as url, polling(named([url], None, None)) as poller:
        assert await poller.abort(url, "call-1") == 0
        assert await poller.flush(url) == 48
        with pytest.raises(Unanswered, match="does not answer"):
            await poller.flush("http://127.0.0.1:9")
    assert (client.aborted, client.admin_calls) == (["call-1"], [("flush", {})])


async def test_a_gateway_answers_or_has_a_reason() -> None:
    async with served(build_admin_app(Answering())) as url:
        answer = (await asked(gateway=url)).gateway
    assert isinstance(answer, GatewayAnswer)
    assert answer.figures is None
    assert answer.problem.startswith("answers with something that is not understood")


# --- where engines are


def discovery(*engines: tuple[str, int]) -> dict[str, Any]:
    """What `sapwood local` writes, as far as it matters."""
    slices = [
        {
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "engine"}},
            "ports": [{"name": "http", "port": port - 1}, {"name": "admin", "port": port}],
            "endpoints": [{"addresses": ["127.0.0.1"], "targetRef": {"kind": "Pod", "name": name}}],
        }
        for name, port in engines
    ]
    others = [
        {"kind": "ConfigMap", "metadata": {"name": "route"}},
        {"kind": "EndpointSlice", "metadata": {"name": "x", "labels": {"app.kubernetes.io/component": "gateway"}}},
    ]
    return {"kind": "List", "items": [*others, *slices]}


def test_the_engines_of_a_discovery_file_are_found_by_their_names() -> None:
    found = list(engines_in(discovery(("chat-a", 15_001), ("chat-b", 15_003))))
    assert found == [
        EngineAddress("chat-a", "http://127.0.0.1:15001"),
        EngineAddress("chat-b", "http://127.0.0.1:15003"),
    ]


def test_engines_come_and_go_with_the_file(tmp_path: Path) -> None:
    place = Local(tmp_path / DISCOVERY_FILE, None)
    assert place.addresses() == ()
    place.discovery_file.write_text(json.dumps(discovery(("chat-a", 15_001))))
    assert [engine.name for engine in place.addresses()] == ["chat-a"]
    place.discovery_file.write_text("{")
    assert place.addresses() == ()


def test_the_folders_of_every_sapwood_local_are_looked_at(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert (state_folders(environment), local_places(environment, None)) == ({}, [])
    for port in (9000, 8080):
        state_folder(environment, port).mkdir(parents=True)
    (tmp_path / "sapwood" / "local-x").mkdir()
    (state_folder(environment, 8080) / ADMIN_KEY_FILE).write_text("own")
    assert [(place.gateway, place.key) for place in local_places(environment, None)] == [
        ("http://127.0.0.1:8081", "own"),
        ("http://127.0.0.1:9001", None),
    ]
    assert [place.key for place in local_places(environment, "given")] == ["given", "given"]


def test_an_engine_named_twice_is_one() -> None:
    assert named(["http://127.0.0.1:1", "http://127.0.0.1:1"], None, None) == Named(
        (EngineAddress("127.0.0.1:1", "http://127.0.0.1:1"),)
    )


async def test_a_program_is_alive_where_it_answers_its_probe() -> None:
    async with served(build_admin_app(FakeClient(state="loading", capacity=None))) as url:
        assert await is_alive(url)
    assert not await is_alive("http://127.0.0.1:9")


# --- the command without a terminal


async def test_without_arguments_it_shows_what_a_sapwood_local_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = frozenset({"own"})
    async with (
        served(build_admin_app(FakeClient())) as gateway,
        served(build_admin_app(Answering(), admin_keys=keys)) as engine,
    ):
        port_of_gateway, port_of_engine = (int(url.rpartition(":")[2]) for url in (gateway, engine))
        folder = state_folder({"XDG_STATE_HOME": str(tmp_path)}, port_of_gateway - 1)
        folder.mkdir(parents=True)
        (folder / ADMIN_KEY_FILE).write_text("own")
        (folder / DISCOVERY_FILE).write_text(json.dumps(discovery(("chat-a", port_of_engine))))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert await asyncio.to_thread(cli.main, ["--interval=0.1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"gateway 127.0.0.1:{port_of_gateway} ")
    assert "fake/model-1 · ready · chat-a · 0 running, 0 waiting" in printed


def test_once_with_nobody_there_is_an_error_in_a_line_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--once", "--engine=http://127.0.0.1:9", "--engine=http://127.0.0.1:10"]
    assert cli.main(argv) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "sapwood top: http://127.0.0.1:9 does not answer: Connection refused"
    assert second == "sapwood top: http://127.0.0.1:10 does not answer: Connection refused"


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--interval=0", "take 0.1 to 3600 seconds"),
        ("--interval=nan", "take 0.1 to 3600 seconds"),
        ("--engine=127.0.0.1:8001", "is not an address such as"),
        ("--key-file=nowhere", "No such file"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(argument: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([argument])
    error = capsys.readouterr().err
    assert (stopped.value.code, argument.partition("=")[0] in error, told in error) == (2, True, True)
