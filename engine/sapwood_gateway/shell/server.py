"""The HTTP server under an application: what it refuses itself is an OpenAI error too, and repeats nothing.

aiohttp answers and logs what it cannot read with the line that it could not read, in which a key may be.
"""

from __future__ import annotations

import logging

from aiohttp import web

from sapwood_gateway.shell import openai
from sapwood_gateway.shell.headers import REQUEST_ID, sane_request_id

_log = logging.getLogger(__name__)
_NOT_HTTP = "The request is no HTTP that is read here. Send one header a line, without a blank before its colon."


class Runner(web.AppRunner):
    """Serves an application, as `web.AppRunner` does."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        del message  # it quotes the request
        request_id = sane_request_id(None)
        extra = {"request_id": request_id, "reason": type(exc).__name__}
        if status >= 500:  # ours
            _log.error("unhandled fault", exc_info=exc, extra=extra)
        else:
            _log.info("a request is refused unread", extra=extra)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        error = openai.INTERNAL_ERROR if status >= 500 else openai.BadRequest(status, _NOT_HTTP, code="invalid_request")
        answer = openai.error_response(error)
        answer.headers[REQUEST_ID] = request_id
        answer.headers["Server"] = "sapwood"  # else aiohttp writes its version
        answer.force_close()
        return answer
