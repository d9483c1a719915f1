"""The plugin against an API server on a real socket: what cannot be read is a sentence and an exit code."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support_kubeconfig import kubeconfig

from sapwood_operator.adapters.kinds import PODS, SERVICES
from sapwood_operator.kubectl.cli import EXIT_FAILED, main

NAMESPACE = "team"
SERVICE = SERVICES.path(NAMESPACE, "chat")
ALL_PODS = PODS.collection(NAMESPACE)
LOG = f"{PODS.path(NAMESPACE, 'chat-engine-a')}/log"
FORBIDDEN = 'pods "chat-engine-a" is forbidden: User "eve" may not'


def a_pod() -> dict[str, Any]:
    about = {"name": "chat-engine-a", "namespace": NAMESPACE, "uid": "a"}
    return {"metadata": about, "status": {"containerStatuses": [{"state": {"running": {}}}]}}


def refusal(code: int) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": "Refused", "message": FORBIDDEN, "details": {"kind": "x"}}


@dataclass
class FakeServer:
    """One service with one pod, whose log is a line; ``refusing`` says which paths are refused, and how."""

    refusing: dict[str, int] = field(default_factory=dict)
    page: str = ""
    """What a proxy says instead of a refusal."""

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path
        if path in self.refusing:
            code, body = refusal(self.refusing[path])
            return web.Response(text=self.page, status=code) if self.page else web.json_response(body, status=code)
        if path == SERVICE:
            return web.json_response({"metadata": {"name": "chat", "namespace": NAMESPACE, "uid": "chat"}})
        if path == ALL_PODS:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [a_pod()]})
        if path == LOG:
            return web.Response(text="a line\n")
        about = {"name": path.rpartition("/")[2], "kind": "x"}
        return web.json_response({"kind": "Status", "reason": "NotFound", "details": about}, status=404)


async def run(server: FakeServer, folder: Path, *argv: str) -> int:
    async with kubeconfig(server.handle, folder, namespace=NAMESPACE) as path:
        return await asyncio.to_thread(main, [*argv, "--kubeconfig", path])


@pytest.mark.parametrize("options", [(), ("--follow",)], ids=["once", "following"])
@pytest.mark.parametrize(
    ("argv", "refusing", "sentence"),
    [
        (("nosuch",), {}, "there is no InferenceService 'nosuch' in namespace 'team'"),
        (("chat", "-n", "nosuch"), {}, "there is no InferenceService 'chat' in namespace 'nosuch'"),
        (("chat",), {SERVICE: 403}, f"Refused: {FORBIDDEN}"),
        (("chat",), {ALL_PODS: 403}, f"Refused: {FORBIDDEN}"),
        (("chat",), {LOG: 403}, f"the log of chat-engine-a: {FORBIDDEN}"),
    ],
    ids=["service", "namespace", "right to services", "right to pods", "right to logs"],
)
async def test_logs_that_cannot_be_read_are_one_sentence_on_stderr(
    argv: tuple[str, ...],
    refusing: dict[str, int],
    sentence: str,
    options: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await run(FakeServer(refusing), tmp_path, "logs", *argv, *options) == EXIT_FAILED
    assert capsys.readouterr() == ("", f"kubectl sapwood: {sentence}\n")


async def test_a_log_that_the_server_refuses_is_no_log_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(FakeServer({LOG: 400}), tmp_path, "logs", "chat") == EXIT_FAILED
    assert capsys.readouterr() == ("", f"kubectl sapwood: the log of chat-engine-a: {FORBIDDEN}\n")


async def test_a_proxys_page_is_no_log_line_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(FakeServer({LOG: 502}, page="Bad gateway\n"), tmp_path, "logs", "chat") == EXIT_FAILED
    assert capsys.readouterr() == ("", "kubectl sapwood: the log of chat-engine-a: Bad gateway\n")


async def test_a_log_that_can_be_read_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(FakeServer(), tmp_path, "logs", "chat") == 0
    assert capsys.readouterr() == ("[a] a line\n", "")


@pytest.mark.parametrize("command", ["status", "explain", "what-if", "tree", "logs"])
@pytest.mark.parametrize("argv", [("",), ("a/b",), ("..",), ("chat", "-n", "a/b")], ids=str)
def test_a_name_that_no_object_can_have_is_refused(
    command: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, *argv])
    assert ended.value.code == 2
    assert "is no name: give lower case letters, digits and '-'" in capsys.readouterr().err
