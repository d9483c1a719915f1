"""Servers that a benchmark starts are up when they answer, can be paused, and are gone at the end."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil
import pytest

from sapwood_tools.bench import servers
from sapwood_tools.bench.client import Answer, connect
from sapwood_tools.bench.cpu_use import CpuMeter, machine_facts
from sapwood_tools.bench.servers import ServerCommand, ServerError, free_port, running

ANSWERING = """
import http.server, json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, data):
        self.send_response(200); self.end_headers(); self.wfile.write(data)
    def do_GET(self):
        self.reply(json.dumps({"data": [{"id": "m"}]}).encode())
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = {"prompt_tokens": 1, "completion_tokens": asked["max_tokens"]}
        self.reply(b"".join(b"data: " + json.dumps(e).encode() + b"\\n\\n" for e in (
            {"choices": [{"text": "a"}]}, {"choices": [], "usage": usage})) + b"data: [DONE]\\n\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def _stops(process: psutil.Process) -> bool:
    """Wait for the kernel to stop a process, which it does at the next scheduling point."""
    while process.status() != psutil.STATUS_STOPPED:
        pass
    return True


def _ends(process: psutil.Process) -> bool:
    """Wait for the kernel to end a process; one that nobody has asked about stays behind as a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            pass
    return True


def command(code: str) -> ServerCommand:
    port = free_port()
    return ServerCommand("tested", [sys.executable, "-c", code, str(port)], port)


async def test_a_server_is_up_when_it_answers_and_all_of_it_is_gone_at_the_end(tmp_path: Path) -> None:
    async with running(command(ANSWERING), tmp_path) as server:
        async with connect(server.url) as client:
            assert isinstance(await client.complete("x", 3), Answer)
        processes = server.processes()
        assert len(processes) == 2
    assert all(_ends(process) for process in processes)


async def test_a_paused_server_runs_no_process_and_answers_again_afterwards(tmp_path: Path) -> None:
    async with running(command(ANSWERING), tmp_path) as server, connect(server.url) as client:
        server.pause()
        assert all(_stops(process) for process in server.processes())
        server.resume()
        assert isinstance(await client.complete("x", 3), Answer)


async def test_a_paused_server_is_gone_at_the_end_as_well(tmp_path: Path) -> None:
    async with running(command(ANSWERING), tmp_path) as server:
        processes = server.processes()
        server.pause()
    assert all(_ends(process) for process in processes)


async def test_a_server_that_ends_early_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"tested ended with code 3:\nno such model"):
        async with running(command("print('no such model'); raise SystemExit(3)"), tmp_path):
            pass


async def test_a_server_that_ended_while_it_was_measured_is_told(tmp_path: Path) -> None:
    async with running(command(ANSWERING), tmp_path) as server:
        server.check()
        parent = server.processes()[0]
        parent.kill()
        assert _ends(parent)
        with pytest.raises(ServerError, match="tested ended with code -9"):
            server.check()


async def test_a_server_that_ignores_the_signal_to_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_STOP_SECONDS", 0.1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ANSWERING
    async with running(command(deaf), tmp_path) as server:
        processes = server.processes()
    assert all(_ends(process) for process in processes)


def test_work_of_this_process_is_the_clients_and_not_foreign() -> None:
    meter = CpuMeter([])
    while (use := meter.read()).client_cores < 0.2:
        pass
    assert use.server_cores == 0.0
    assert use.foreign_cores >= 0.0


def test_the_machine_is_told_by_what_numbers_depend_on() -> None:
    facts = machine_facts()
    assert isinstance(facts["cores"], int)
    assert facts["cores"] >= 1
    assert facts["processor"]
