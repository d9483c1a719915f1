"""kopf's connection to the API server: documents that are nested too deeply reach kopf cut, as in `adapters.shallow`.

kopf reads lists and events with a reader that such a document breaks, and all watches with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf

from sapwood_operator.adapters.shallow import read_json, shallow


def watch_session(info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    """Return a session of the running loop with the credentials of ``info``. kopf closes it."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        response_class=_Response,
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)


class _Response(aiohttp.ClientResponse):
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        self.content = _Lines(self.content)  # type: ignore[assignment]  # it is what it wraps, but for one method
        return self

    async def json(self, **_: Any) -> Any:
        return read_json(await self.read())


class _Lines:
    """A body whose chunks are whole lines, each cut by itself."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield shallow(line) + b"\n"
        yield shallow(rest)
