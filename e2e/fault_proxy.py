"""A proxy before the API server that spoils single calls: the n-th that concerns a namespace, in one of several ways.

It speaks plain HTTP to the operator and TLS to the API server, as the identity that it is given. Watches pass through
it and are never counted: they have no order that a test could name.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import aiohttp
from aiohttp import web

Fault = Literal["500", "409", "429", "timeout", "reset", "answer lost"]
FAULTS: tuple[Fault, ...] = ("500", "409", "429", "timeout", "reset", "answer lost")
_REASONS = {"500": "InternalError", "409": "Conflict", "429": "TooManyRequests"}
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")
_HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
_LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.1
"""How soon a watch that is to end does."""
_TOO_OLD = (
    json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode() + b"\n"
)
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The API server, and as whom to speak to it."""

    server: str
    tls: ssl.SSLContext
    authorization: str


@dataclass(slots=True)
class Plan:
    """What happens to the calls about one namespace."""

    fault_at: int = 0
    """Which call is spoilt, counted from 1; 0: none."""
    fault: Fault = "500"
    after_write: Callable[[int], None] = lambda _number: None
    """Told the number of each write that the API server has answered, before the operator gets the answer."""
    calls: list[str] = field(default_factory=list)
    """Every call so far, as ``METHOD path``."""
    num_writes: int = 0
    struck: bool = False


class FaultProxy:
    """Runs in a thread, in the network of the thread that starts it."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._plans: dict[str, Plan] = {}
        self._port = 0
        self._loses_events = False
        self._num_refusals = 0
        self._expired = 0
        """How often all watches were ended; a watch that began before the last time is ended."""

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"http://{_LOOPBACK}:{self._port}"

    def plan(self, namespace: str, plan: Plan) -> Plan:
        """Set what happens to the calls about ``namespace`` from now on; the same object tells what did."""
        self._plans[namespace] = plan
        return plan

    def lose_events(self) -> None:
        """Let no event of the watches that run now through any more."""
        self._loses_events = True

    def expire_watches(self) -> None:
        """Tell every watch that its version is too old (410), as an API server does that has forgotten so much."""
        self._expired += 1
        self._loses_events = False

    def refuse_watches(self, num_watches: int) -> None:
        """Answer the next watches that begin with a page that no API server would write."""
        self._num_refusals = num_watches

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        """Serve for as long as the context lasts."""
        loop = asyncio.new_event_loop()
        started = threading.Event()
        stop = asyncio.Event()
        thread = threading.Thread(target=lambda: loop.run_until_complete(self._serve(started, stop)), daemon=True)
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)
            loop.close()

    async def _serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        connector = aiohttp.TCPConnector(ssl=self._upstream.tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", partial(self._handle, session=session))
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, _LOOPBACK, 0).start()
            self._port = runner.addresses[0][1]
            started.set()
            await stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        if _is_watch(request) and self._num_refusals > 0:
            self._num_refusals -= 1
            return web.Response(status=418)
        plan = self._plan_of(request)
        if plan is None:
            return await self._forward(request, session)
        plan.calls.append(f"{request.method} {request.path}")
        if len(plan.calls) == plan.fault_at:
            plan.struck = True
            return await self._spoil(plan.fault, request, session)
        answer = await self._forward(request, session)
        if request.method in WRITES:
            plan.num_writes += 1
            plan.after_write(plan.num_writes)
        return answer

    def _plan_of(self, request: web.Request) -> Plan | None:
        found = _NAMESPACE.search(request.path)
        return self._plans.get(found.group(1)) if found and not _is_watch(request) else None

    async def _spoil(self, fault: Fault, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        match fault:
            case "timeout":
                await asyncio.sleep(60)  # the client goes first, and its going cancels this
            case "answer lost":
                await self._forward(request, session)
            case "500" | "409" | "429":
                body = {"kind": "Status", "code": int(fault), "reason": _REASONS[fault], "message": "by the proxy"}
                headers = {"Retry-After": "1"} if fault == "429" else {}
                text = json.dumps(body)
                return web.Response(status=int(fault), text=text, headers=headers, content_type="application/json")
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _forward(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        """Pass a call on, and its answer back: that of a watch as it comes, any other as a whole."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        headers["Authorization"] = self._upstream.authorization
        async with session.request(
            request.method,
            self._upstream.server + request.path_qs,
            headers=headers,
            data=await request.read() or None,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as upstream:
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP_HEADERS}
            if not _is_watch(request):
                return web.Response(status=upstream.status, headers=kept, body=await upstream.read())
            answer = web.StreamResponse(status=upstream.status, headers=kept)
            await answer.prepare(request)
            await self._pass_events(upstream.content, answer)
            await answer.write_eof()
            return answer

    async def _pass_events(self, events: aiohttp.StreamReader, answer: web.StreamResponse) -> None:
        began = self._expired
        while not events.at_eof():
            chunk = b""
            with suppress(TimeoutError):
                chunk = await asyncio.wait_for(events.readany(), _LOOK_SECONDS)
            if self._expired != began:
                await answer.write(_TOO_OLD)
                return
            if not self._loses_events:
                await answer.write(chunk)


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch") == "true"
