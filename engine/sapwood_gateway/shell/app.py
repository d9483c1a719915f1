"""The two HTTP applications: what clients see, and what probes and scrapers see."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from secrets import token_hex

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from structlog.contextvars import bound_contextvars

from sapwood_contract.http import GATEWAY_DEMAND, GATEWAY_TRACE, LIVEZ, METRICS, READYZ, GatewayDemand, ServiceDemand
from sapwood_gateway.core.choose import models_of
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.shell import openai
from sapwood_gateway.shell.auth import Auth
from sapwood_gateway.shell.call import REQUEST_ID_KEY
from sapwood_gateway.shell.console import Console
from sapwood_gateway.shell.headers import REQUEST_ID, sane_request_id
from sapwood_gateway.shell.limiter import RATE_HEADERS_KEY
from sapwood_gateway.shell.metrics import GatewayMetrics
from sapwood_gateway.shell.proxy import Proxy
from sapwood_gateway.shell.workloads import ServiceTraces

_log = logging.getLogger(__name__)

FORWARDED = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
"""What goes to an engine. The rest of an engine's paths is about one replica, and nobody's outside the cluster."""
_CODES = {404: "not_found", 405: "method_not_allowed"}


class Traffic:
    """Counts the requests that are being answered, so that a gateway that is to end knows when none is left."""

    def __init__(self) -> None:
        self.is_draining = False
        self._num = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A request has come."""
        self._num += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is answered, or its client has left."""
        self._num -= 1
        if self._num == 0:
            self._idle.set()

    async def drained(self) -> None:
        """Return when no request is left."""
        await self._idle.wait()


def build_app(
    fleet: Fleet, proxy: Proxy, *, traffic: Traffic, auth: Auth, console: Console | None = None
) -> web.Application:
    """Return the OpenAI API of all services; ``auth``: that of ``proxy``; ``console``: None serves none."""
    app = web.Application(middlewares=[_edge(traffic)])
    for path in FORWARDED:
        app.router.add_post(path, proxy.handle)
    models = _Models(fleet, auth, created=int(time.time()))
    app.router.add_get("/v1/models", models.list)
    app.router.add_get("/v1/models/{model:.+}", models.show)
    if console is not None:
        console.add_to(app)

    async def before_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)
        # aiohttp refuses some requests itself, before a middleware has seen them.
        response.headers[REQUEST_ID] = request.get(REQUEST_ID_KEY) or sane_request_id(None)
        response.headers.update(request.get(RATE_HEADERS_KEY, {}))
        if traffic.is_draining:
            response.headers["Connection"] = "close"
            response.force_close()

    app.on_response_prepare.append(before_headers)
    return app


def build_admin_app(
    metrics: GatewayMetrics,
    *,
    traffic: Traffic,
    is_discovered: Callable[[], bool],
    demand: Callable[[], tuple[ServiceDemand, ...]],
    traces: ServiceTraces,
) -> web.Application:
    """Return the probes, the metrics, what there is to do for each service, which an autoscaler asks for, and what one
    had to do of late, which its replay asks for.
    """
    epoch = token_hex(8)

    async def live(_: web.Request) -> web.Response:
        return openai.json_response({"state": state()})

    async def ready(_: web.Request) -> web.Response:
        return openai.json_response({"state": state()}, status=200 if state() == "ready" else 503)

    async def show_metrics(request: web.Request) -> web.Response:
        scraped = metrics.render(request.headers.get("Accept", ""))
        return web.Response(body=scraped.body, headers={"Content-Type": scraped.content_type})

    async def show_demand(_: web.Request) -> web.Response:
        return openai.json_response(asdict(GatewayDemand(epoch, demand())))

    def state() -> str:
        if traffic.is_draining:
            return "draining"
        return "ready" if is_discovered() else "discovering"

    app = web.Application()
    app.router.add_get(LIVEZ, live)
    app.router.add_get(READYZ, ready)
    app.router.add_get(METRICS, show_metrics)
    app.router.add_get(GATEWAY_DEMAND, show_demand)
    app.router.add_get(GATEWAY_TRACE, traces.show)
    return app


@dataclass(frozen=True, slots=True)
class _Models:
    """``/v1/models``: of the service that the host names, or of all, what the caller may call."""

    fleet: Fleet
    auth: Auth
    created: int

    async def list(self, request: web.Request) -> web.Response:
        served = models_of(self.auth.caller(request, self.fleet.routes).visible)
        cards = [openai.model_card(model, self.created) for model in served]
        return openai.json_response({"object": "list", "data": cards})

    async def show(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        self.auth.model(self.auth.caller(request, self.fleet.routes), model)
        return openai.json_response(openai.model_card(model, self.created))


def _edge(traffic: Traffic) -> Middleware:
    """Return the outermost layer: a request id, the count of requests, and every refusal as an OpenAI error."""

    @web.middleware
    async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = request[REQUEST_ID_KEY] = sane_request_id(request.headers.get(REQUEST_ID))
        traffic.enter()
        try:
            with bound_contextvars(request_id=request_id):
                return await _answer(request, handler)
        finally:
            traffic.leave()

    return edge


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except openai.GatewayError as error:
        return openai.error_response(error)
    except web.HTTPException as error:
        answer = openai.error_response(_of_http(request, error))
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception:
        _log.exception("unhandled fault")
        return openai.error_response(openai.INTERNAL_ERROR)


def _of_http(request: web.Request, error: web.HTTPException) -> openai.BadRequest:
    message = f"{request.method} {request.path}: {error.reason}."
    return openai.BadRequest(error.status, message, code=_CODES.get(error.status, "invalid_request"))
