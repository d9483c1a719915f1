"""The outermost layer: a request id on every answer, HEAD, who may enter, and a last net under faults of ours.

Plain ASGI, because it must see every answer (404s and refused bodies included) and must not stand between a
stream and its client's disconnect.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from sapwood_engine.api.access import Keys, RouteClass
from sapwood_engine.api.errors import (
    CLIENT_CLOSED_REQUEST,
    INTERNAL_ERROR,
    OUTCOME,
    WebPageRefused,
    error_response,
    json_response,
)
from sapwood_engine.errors import RequestError

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Edge:
    """Wraps ``app``; in ``scope["state"]`` ``request_id`` is set for everything inside, and ``trusted``: what the
    gateway says of the request. HEAD is a GET there. Every record that is logged inside carries the request id.

    ``class_of`` gives the class of a path. With ``refuse_web_pages`` a browser's page may read only: without a key
    nothing else tells it from the operator.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        class_of: Callable[[str], RouteClass],
        keys: Keys,
        refuse_web_pages: bool = False,
        ended: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``ended``: called with how each request to a path of class ``user`` ended, as `metrics.HTTP_CODES` says."""
        self._ended = ended
        self._app = app
        self._class_of = class_of
        self._keys = keys
        self._refuse_web_pages = refuse_web_pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get(REQUEST_ID_HEADER))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        route = self._class_of(scope["path"])
        answer = _Answer(send, request_id, is_head=scope["method"] == "HEAD")
        with bound_contextvars(request_id=request_id):
            try:
                await self._answer(scope, receive, answer, route, headers)
            finally:
                outcome = state.setdefault(OUTCOME, answer.status)
                if route == "user":
                    self._ended(outcome)

    async def _answer(
        self, scope: Scope, receive: Receive, answer: _Answer, route: RouteClass, headers: Headers
    ) -> None:
        try:
            scope["state"]["trusted"] = self._keys.read(route, headers)
        except RequestError as refusal:
            await error_response(refusal)(scope, receive, answer.send)
            return
        if self._refuse_web_pages and scope["method"] not in ("GET", "HEAD") and "origin" in headers:
            await error_response(WebPageRefused())(scope, receive, answer.send)
            return
        try:
            await self._app({**scope, "method": "GET"} if answer.is_head else scope, receive, answer.send)
        except Exception:
            log.exception("unhandled fault")
            scope["state"][OUTCOME] = 500
            if answer.has_begun:
                raise
            await json_response(INTERNAL_ERROR, status=500)(scope, receive, answer.send)


class _Answer:
    """One answer on its way to its client."""

    def __init__(self, send: Send, request_id: str, *, is_head: bool) -> None:
        self.is_head = is_head
        self.has_begun = False
        self.status = CLIENT_CLOSED_REQUEST
        """What is left where the client goes before its answer has begun."""
        self._send = send
        self._request_id = request_id

    async def send(self, message: Message) -> None:
        """Pass ``message`` on: the head with the request's id, a body only where one was asked for."""
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self._request_id
        elif self.is_head:
            message = {**message, "body": b""}
        await self._send(message)


def _request_id(offered: str | None) -> str:
    return offered if offered is not None and _SANE_ID.fullmatch(offered) else uuid.uuid4().hex
