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

from sapwood_engine.api.access import Keys, RouteClass
from sapwood_engine.api.errors import INTERNAL_ERROR, WebPageRefused, error_response, json_response
from sapwood_engine.errors import RequestError

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Edge:
    """Wraps ``app``; in ``scope["state"]`` ``request_id`` is set for everything inside, and ``trusted``: what the
    gateway says of the request. HEAD is a GET there.

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
    ) -> None:
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
        scope.setdefault("state", {})["request_id"] = request_id
        is_head = scope["method"] == "HEAD"
        inner = {**scope, "method": "GET"} if is_head else scope
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            scope["state"]["trusted"] = self._keys.read(self._class_of(scope["path"]), headers)
        except RequestError as refusal:
            await error_response(refusal)(scope, receive, send_with_id)
            return
        if self._refuse_web_pages and scope["method"] not in ("GET", "HEAD") and "origin" in headers:
            await error_response(WebPageRefused())(scope, receive, send_with_id)
            return
        try:
            await self._app(inner, receive, send_with_id)
        except Exception:
            log.exception("unhandled fault", extra={"request_id": request_id, "path": scope["path"]})
            if started:
                raise
            await json_response(INTERNAL_ERROR, status=500)(scope, receive, send_with_id)


def _request_id(offered: str | None) -> str:
    return offered if offered is not None and _SANE_ID.fullmatch(offered) else uuid.uuid4().hex
