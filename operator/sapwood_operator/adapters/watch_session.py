"""kopf's connection to the API server: documents that are nested too deeply reach kopf cut, and its lists are noticed.

kopf reads lists and events with a reader that such a document breaks, and all watches with it. And of a list that it
made anew kopf does not tell what is gone since the one before; where it finds nothing, not even that there was a list.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import kopf

from sapwood_contract.shallow import shallow


def watch_session(info: kopf.ConnectionInfo, on_read: Callable[[str], None]) -> kopf.AiohttpSession:
    """Return a session of the running loop with the credentials of ``info``. kopf closes it.

    ``on_read`` is called with the path of everything that is read and no watch, once the server has answered.
    """

    async def on_answer(_session: object, _context: object, params: aiohttp.TraceRequestEndParams) -> None:
        if "watch" not in params.url.query:
            on_read(params.url.path)

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(on_answer)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        response_class=_Response,
        trace_configs=[trace],
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)


class _Response(aiohttp.ClientResponse):
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        self.content = _Lines(self.content)  # type: ignore[assignment]  # it is what it wraps, but for one method
        return self

    async def json(self, **_: Any) -> Any:
        return json.loads(shallow(await self.read()))


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
