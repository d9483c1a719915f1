"""A stand-in for the Hugging Face hub on this machine: the part of its HTTP API that a download uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandInHub:
    """What the hub holds, and what was asked of it."""

    endpoint: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Name -> path -> content"""
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    """Answer every file with 403, as a hub does that blocks a client half-way."""
    downloads: list[str] = field(default_factory=list)
    """Paths of the files sent, in order"""


@contextmanager
def serve_hub() -> Iterator[StandInHub]:
    """Serve a hub on a free port until the block ends."""
    hub = StandInHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def _answer(self, *, with_body: bool) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self._api("/".join(parts[2:4]), parts[4:])
            else:
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), with_body=with_body)

        def _api(self, name: str, rest: list[str]) -> None:
            files = hub.repositories.get(name)
            if files is None:
                self._refuse(404, "RepoNotFound")
            elif name in hub.gated:
                self._refuse(403, "GatedRepo")
            elif rest and rest[1] not in ("main", COMMIT):
                self._refuse(404, "RevisionNotFound")
            elif rest and rest[0] == "tree":
                self._json(
                    [
                        {"type": "file", "path": path, "size": len(data), "oid": _etag(data)}
                        for path, data in files.items()
                    ]
                )
            else:
                self._json({"id": name, "sha": COMMIT, "siblings": []})

        def _file(self, name: str, revision: str, path: str, *, with_body: bool) -> None:
            data = hub.repositories.get(name, {}).get(path)
            if hub.broken:
                self._refuse(403, "Forbidden")
            elif data is None or revision != COMMIT:
                self._refuse(404, "EntryNotFound")
            else:
                if with_body:
                    hub.downloads.append(path)
                self._send(200, data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT}, with_body=with_body)

        def _json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _refuse(self, status: int, code: str) -> None:
            self._send(status, b"", {"X-Error-Code": code})

        def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
