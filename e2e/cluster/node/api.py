"""The node's client of the Kubernetes API: JSON in, JSON out, and watches. It carries the node's own certificate."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

MERGE_PATCH = "application/strategic-merge-patch+json"
MAX_LINE_BYTES = 4 << 20
"""How long one event of a watch may be; an object in etcd is at most 1.5 MiB."""
WATCH_SECONDS = 300
CALL_SECONDS = 20.0


class ApiError(Exception):
    """The API server answered ``status``, with its own ``message``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
"""What a call raises while the API server is away."""


class NodeApi:
    """An open client; use it as a context manager."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self._server = server
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=MAX_LINE_BYTES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str) -> Any:
        return await self._call("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._call("POST", path, body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Change an object by a strategic merge patch."""
        return await self._call("PATCH", path, body, MERGE_PATCH)

    async def delete(self, path: str, options: Mapping[str, Any]) -> Any:
        return await self._call("DELETE", path, options)

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the events after resource ``version`` until the server ends the watch; `ApiError` 410 where that
        version is too old."""
        query |= {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(sock_connect=CALL_SECONDS, sock_read=WATCH_SECONDS + CALL_SECONDS)
        async with self._session.get(self._server + path, params=query, timeout=timeout) as answer:
            if answer.status != 200:
                raise ApiError(answer.status, await answer.text())
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
                yield event

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        *,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, self._server + path, params=query, data=data, headers=headers, timeout=timeout
        ) as answer:
            content = await answer.read()
        if answer.status >= 400:
            raise ApiError(answer.status, _message_of(content))
        return json.loads(content)


def _message_of(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:300]


def open_api(kubeconfig: Path) -> NodeApi:
    """Return a client with the identity in a kubeconfig that ``cluster.pki`` wrote."""
    config = json.loads(kubeconfig.read_text(encoding="utf-8"))
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(server["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.TemporaryDirectory() as folder:  # ssl takes a client's certificate from a file only
        path = Path(folder, "identity.pem")
        path.touch(0o600)
        parts = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
        path.write_bytes(b"".join(parts))
        context.load_cert_chain(path)
    return NodeApi(server["server"], context)
