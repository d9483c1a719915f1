"""A gateway and upstream servers in one event loop, on real sockets of this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiohttp import web

from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.balance import Report
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.quotas import WhenUnknown
from sapwood_gateway.core.retry import RetrySettings
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey
from sapwood_gateway.core.tenants import Tenants
from sapwood_gateway.shell.admin_keys import AdminKeys
from sapwood_gateway.shell.app import Traffic, build_admin_app, build_app
from sapwood_gateway.shell.auth import Auth
from sapwood_gateway.shell.body import BodyLimits
from sapwood_gateway.shell.console import Console
from sapwood_gateway.shell.credentials import Credentials, Secrets
from sapwood_gateway.shell.limiter import Limiter
from sapwood_gateway.shell.metrics import GatewayMetrics
from sapwood_gateway.shell.prompts import PATIENCE_SECONDS, NoTexts, Prompts, ReadsTexts
from sapwood_gateway.shell.proxy import Proxy, ProxySettings
from sapwood_gateway.shell.quota_store import LocalQuotaStore, QuotaStore
from sapwood_gateway.shell.route_trace import NoTraces, RouteTraces
from sapwood_gateway.shell.server import Runner
from sapwood_gateway.shell.upstream import new_session
from sapwood_gateway.shell.workloads import ServiceTraces

MODEL = "fake/model-1"
CHAT = ServiceKey("team", "chat")
PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": []}
NO_TENANTS = Tenants()
KNOWS_GATEWAY = Report("ready", 0, 0, 0, knows_gateway=True)
CIRCUIT = CircuitSettings(failures_to_open=3, rest_seconds=10.0, longest_rest_seconds=60.0)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
_NO_TRACES = NoTraces()


@dataclass
class Upstream:
    """A server that answers every POST, and every GET below ``/admin``, with ``answer`` and keeps what it was asked."""

    answer: Answer
    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    num_running: int = 0
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has come."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has ended and none is left."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.requests.append(request)
        self.num_running += 1
        self.busy.set()
        self.idle.clear()
        try:
            return await self.answer(request)
        finally:
            self.num_running -= 1
            if self.num_running == 0:
                self.idle.set()

    def replica(self, id_: str = "") -> Replica:
        return Replica(id=id_ or self.url, name=id_ or self.url, url=self.url, admin_url=self.url)


@asynccontextmanager
async def serving(app: web.Application, *, port: int = 0) -> AsyncIterator[str]:
    """Serve ``app`` as the gateway's own program does; yields the address."""
    runner = Runner(app, access_log=None, handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.05)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", port))
    await web.SockSite(runner, listening).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def upstream(answer: Answer) -> AsyncIterator[Upstream]:
    """Start one upstream server."""
    server = Upstream(answer)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", server.handle)
    app.router.add_get("/admin/{path:.*}", server.handle)
    async with serving(app) as url:
        server.url = url
        yield server


@dataclass
class Gateway:
    """A running gateway, and what is inside."""

    url: str
    fleet: Fleet
    proxy: Proxy
    limiter: Limiter
    traffic: Traffic
    metrics: GatewayMetrics
    client: aiohttp.ClientSession
    """Its base address is the gateway's."""

    def series(self, name: str) -> dict[str, float]:
        """Return the samples of one series by their labels, as written."""
        lines = self.metrics.render().body.decode().splitlines()
        found = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith((name + "{", name + " ")))
        return {labels: float(value) for labels, _, value in found}

    def counted(self, name: str) -> dict[str, float]:
        """Return those of them that have left zero."""
        return {labels: value for labels, value in self.series(name).items() if value}


def routes(*replicas: Replica, policy: RoutingPolicy = "LeastLoad", models: tuple[str, ...] = (MODEL,)) -> Routes:
    """One service with these replicas."""
    return Routes({CHAT: Service(CHAT, models, policy)}, {CHAT: replicas})


def queueing(*replicas: Replica, most: int = 10, seconds: float = 60.0, policy: RoutingPolicy = "LeastLoad") -> Routes:
    """One service with these replicas, for which ``most`` requests may wait so long."""
    made = routes(*replicas, policy=policy)
    service = replace(made.services[CHAT], queue_max_requests=most, queue_max_wait_seconds=seconds)
    return Routes({CHAT: service}, made.replicas)


def metrics_of(fleet: Fleet, *, num_queued: Callable[[], Mapping[str, int]] = dict) -> GatewayMetrics:
    """Return the metrics of a gateway over ``fleet``."""
    return GatewayMetrics(
        served=lambda: fleet.routes.served(),
        census=lambda: fleet.census(0.0),
        num_running=lambda: fleet.num_own,
        num_queued=num_queued,
        num_blocks=lambda: fleet.prefixes.num_blocks,
    )


@asynccontextmanager
async def gateway(
    routes_: Routes,
    *,
    max_attempts: int = 3,
    first_byte_timeout_seconds: float | None = None,
    max_body_bytes: int = 2**20,
    max_held_bytes: int = 2**24,
    body_timeout_seconds: float = 30.0,
    refusal_timeout_seconds: float = 5.0,
    reader: ReadsTexts | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
    tenants: Tenants = NO_TENANTS,
    secret: bytes | None = None,
    store: QuotaStore | None = None,
    when_unknown: WhenUnknown = "open",
    wall_clock: Callable[[], float] = lambda: 0.0,
    traces: RouteTraces = _NO_TRACES,
    has_console: bool = False,
    admin_keys: frozenset[str] = frozenset(),
    operator_url: str | None = None,
) -> AsyncIterator[Gateway]:
    """Run a gateway over ``routes_``; retries follow at once, and rested circuits do not recover by themselves.

    Replicas of services with keys have reported once, that they know the gateway. ``admin_keys``: of the console.
    """
    fleet = Fleet(circuit=CIRCUIT)
    fleet.update(routes_)
    for key, service in routes_.services.items():
        for replica in routes_.of(key) if service.authentication == "ApiKey" else ():
            fleet.reported(replica.id, KNOWS_GATEWAY)
    metrics = metrics_of(fleet, num_queued=lambda: proxy.waiting.census())
    traffic = Traffic()
    credentials = Credentials(Secrets(installation=secret), lambda: fleet.routes)
    auth = Auth(tenants=lambda: tenants, credential_of=credentials.of, denied=lambda: metrics.rejected("auth"))
    limiter = Limiter(
        store or LocalQuotaStore(), when_unknown=when_unknown, metrics=metrics, wall_clock=wall_clock, clock=wall_clock
    )
    prompts = Prompts(reader or NoTexts(), patience_seconds=patience_seconds)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(new_session(connect_timeout_seconds=2.0))
        proxy = Proxy(
            fleet,
            session,
            auth=auth,
            limiter=limiter,
            prompts=stack.enter_context(closing(prompts)),
            metrics=metrics,
            settings=ProxySettings(
                first_byte_timeout_seconds=first_byte_timeout_seconds,
                refusal_timeout_seconds=refusal_timeout_seconds,
                body=BodyLimits(
                    max_bytes=max_body_bytes, max_held_bytes=max_held_bytes, timeout_seconds=body_timeout_seconds
                ),
                retry=RetrySettings(max_attempts=max_attempts),
            ),
            draw=lambda: 0.0,
            traces=traces,
            clock=lambda: 0.0,
        )
        console = None
        if has_console:
            console = Console(
                fleet, session, shown=credentials.shown_to, admin_keys=admin_keys, operator_url=operator_url
            )
        app = build_app(fleet, proxy, traffic=traffic, auth=auth, console=console)
        url = await stack.enter_async_context(serving(app))
        client = await stack.enter_async_context(aiohttp.ClientSession(url, auto_decompress=False))
        yield Gateway(url, fleet, proxy, limiter, traffic, metrics, client)
        await limiter.settled()


def admin_app(
    running: Gateway,
    *,
    is_discovered: Callable[[], bool] = lambda: True,
    admin_keys: frozenset[str] = frozenset(),
    secret: bytes | None = None,
) -> web.Application:
    """Return what is on the admin port of ``running``."""
    return build_admin_app(
        running.metrics,
        traffic=running.traffic,
        is_discovered=is_discovered,
        demand=running.proxy.waiting.demand,
        traces=ServiceTraces(running.fleet, running.proxy.workloads, admin_keys=AdminKeys(admin_keys), secret=secret),
    )


@asynccontextmanager
async def behind(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[Gateway, list[Upstream]]]:
    """Run a gateway (``settings`` as of `gateway`) over an upstream for each of ``answers``, in that order."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(answer)) for answer in answers]
        replicas = [server.replica(f"pod-{number}") for number, server in enumerate(servers)]
        yield await stack.enter_async_context(gateway(routes(*replicas), **settings)), servers


def ask(running: Gateway, body: object = BODY) -> asyncio.Task[tuple[int, bytes]]:
    """Begin a request; the task returns its status and body."""

    async def asking() -> tuple[int, bytes]:
        async with running.client.post(PATH, json=body) as response:
            return response.status, await response.read()

    return asyncio.create_task(asking())


async def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0)


async def waiting(running: Gateway, num: int) -> None:
    """Return when so many wait for the service of `queueing`."""
    await until(lambda: running.proxy.waiting.census() == {str(CHAT): num})


def nobody() -> Replica:
    """A replica at an address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    return Replica(id="nobody", name="nobody", url=url, admin_url=url)


async def echo(request: web.Request) -> web.StreamResponse:
    """Answer with the request's body."""
    return web.Response(body=await request.read(), content_type="application/json")


def status(code: int, body: bytes = b'{"error":{}}', **headers: str) -> Answer:
    """Answer every request with ``code``."""

    async def answer(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, body=body, headers={"Content-Type": "application/json", **named})

    return answer


async def drop(request: web.Request) -> web.StreamResponse:
    """End the connection without an answer, as an engine that is killed does."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclass
class Steps:
    """An answer that goes on only when it is told to: each item put in is sent, `Break` breaks it off, None ends it."""

    content_type: str = "text/event-stream; charset=utf-8"
    items: asyncio.Queue[bytes | type[Break] | None] = field(default_factory=asyncio.Queue)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        while (item := await self.items.get()) is not None:
            if isinstance(item, bytes):
                await response.write(item)
            else:
                assert request.transport is not None
                request.transport.close()
                return response
        await response.write_eof()
        return response


class Break:
    """See `Steps`."""
