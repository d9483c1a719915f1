"""What `no_sharing_loss` asks of a server whose time it takes as its baseline."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from sapwood_tools.bench_core_scheduler import measure_request_seconds


class _Server(BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "some-model"}]})

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer({"choices": [{"text": ""}]})

    def _answer(self, payload: dict[str, Any]) -> None:
        body = json.dumps(payload).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_real_request_has_512_unshared_tokens_and_one_token_of_output(address: str) -> None:
    _Server.bodies.clear()
    assert measure_request_seconds(address, num_requests=3) > 0
    assert [(b["model"], len(b["prompt"]), b["max_tokens"]) for b in _Server.bodies] == [("some-model", 512, 1)] * 3
    assert len({tuple(b["prompt"]) for b in _Server.bodies}) == 3
