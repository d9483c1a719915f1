"""The console at ``/ui``: files for everybody, and for admins the replicas and what each one's engine tells of itself.

The gateway's admin key goes to no engine: an engine may be anybody's pod. What a caller shows an engine is what it
says in `ENGINE_AUTHORIZATION_HEADER`; its Authorization too, where the gateway has no admin key and so wants none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import aiohttp
from aiohttp import web

from sapwood_console.files import DATA_HEADERS, SECURITY_HEADERS, read_files
from sapwood_console.origin import origin_of
from sapwood_console.paths import (
    ABOUT,
    DATA_CACHE,
    DATA_LOAD,
    DATA_REPLICAS,
    DATA_REQUESTS,
    DATA_SCALING,
    DATA_WHAT_IF,
    ENGINE_AUTHORIZATION_HEADER,
    MAX_CONSOLE_NODES,
    PAGE,
    About,
)
from sapwood_contract.http import ADMIN_CACHE, ADMIN_LOAD, ADMIN_REQUESTS, OPERATOR_AUTOSCALING, OPERATOR_WHAT_IF
from sapwood_gateway.core.balance import fitness
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.routes import Replica, ServiceKey
from sapwood_gateway.shell import openai
from sapwood_gateway.shell.admin_keys import AdminKeys
from sapwood_gateway.shell.credentials import Shown
from sapwood_gateway.shell.operator_port import OperatorPort
from sapwood_gateway.shell.upstream import TooLong, read_at_most

_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 8 * 2**20
"""Of an engine's answer: `MAX_CONSOLE_NODES` with their text have a tenth of it."""


class Console:
    """Answers the page for one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        *,
        shown: Shown,
        admin_keys: frozenset[str] = frozenset(),
        operator_url: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``admin_keys``: any of them opens the data; none: they are open, but where a service asks for API keys.
        ``operator_url``: None where nobody scales.
        """
        self._fleet = fleet
        self._session = session
        self._shown = shown
        self._admin_keys = AdminKeys(admin_keys)
        self._operator = None if operator_url is None else OperatorPort(session, operator_url)
        self._clock = clock
        self._files = read_files()

    def add_to(self, app: web.Application) -> None:
        """Serve the page and its data in ``app``."""
        add = app.router.add_get
        add(ABOUT, self._show_about)
        add(DATA_REPLICAS, self._show_replicas)
        for path, asked in ((DATA_LOAD, ADMIN_LOAD), (DATA_CACHE, ADMIN_CACHE), (DATA_REQUESTS, ADMIN_REQUESTS)):
            add(path, partial(self._ask_engine, asked))
        add(DATA_SCALING, self._show_scaling)
        add(DATA_WHAT_IF, partial(self._ask_operator, OPERATOR_WHAT_IF))
        add(PAGE, self._show_file)
        add(PAGE + "/", self._show_file)
        add(PAGE + "/{name}", self._show_file)

    async def _show_file(self, request: web.Request) -> web.Response:
        file = self._files.get(request.path)
        if file is None:
            raise web.HTTPNotFound
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=file.headers)
        return web.Response(body=file.body, headers=file.headers)

    async def _show_about(self, _: web.Request) -> web.Response:
        asks_api_key = self._has_tenants
        return _json(asdict(About("gateway", self._door, asks_api_key=asks_api_key, shows_text=True)), SECURITY_HEADERS)

    async def _show_replicas(self, request: web.Request) -> web.Response:
        self._let_in(request)
        now = self._clock()
        routes = self._fleet.routes
        views = [self._view(replica, key, now) for key in routes.services for replica in routes.of(key)]
        return _json({"replicas": [asdict(view) for view in views]}, DATA_HEADERS)

    async def _show_scaling(self, request: web.Request) -> web.Response:
        if "service" in request.query:
            return await self._ask_operator(OPERATOR_AUTOSCALING, request)
        self._let_in(request)
        services = sorted(map(str, self._fleet.routes.services))
        return _json({"scales": self._operator is not None, "services": services}, DATA_HEADERS)

    async def _ask_operator(self, path: str, request: web.Request) -> web.Response:
        """Return what the operator answers about the service that the query names."""
        self._let_in(request)
        if self._operator is None:
            fix = "start the gateway with --operator-url"
            raise openai.BadRequest(404, f"No operator is known here that scales: {fix}.", code="no_operator")
        key = self._service(request.query.get("service", ""))
        given = {name: request.query[name] for name in ("replicas", "memory") if name in request.query}
        body = await self._operator.ask(path, {"namespace": key.namespace, "name": key.name, **given})
        return web.Response(body=body, headers={**DATA_HEADERS, "Content-Type": "application/json"})

    async def _ask_engine(self, path: str, request: web.Request) -> web.Response:
        """Return what the engine that the query names answers at ``path`` of its admin API."""
        self._let_in(request)
        replica = self._replica(request.query.get("replica", ""))
        status, body = await self._get(replica.admin_url + path, _asked(request), self._headers(request, replica))
        if status == 401:
            raise openai.Unauthorized(
                403,
                f"The engine asks for an admin key of its own: send it in {ENGINE_AUTHORIZATION_HEADER}.",
                code="engine_key_needed",
            )
        return web.Response(body=body, status=status, headers={**DATA_HEADERS, "Content-Type": "application/json"})

    async def _get(self, url: str, query: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                url, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await read_at_most(response, _MAX_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, TooLong):
            raise openai.Unavailable(502, "The replica does not answer.", code="replica_unreachable") from None

    def _headers(self, request: web.Request, replica: Replica) -> dict[str, str]:
        own = request.headers.get(ENGINE_AUTHORIZATION_HEADER)
        if own is None and not self._admin_keys:
            own = request.headers.get("Authorization")
        return {**self._shown(replica.id), **({} if own is None else {"Authorization": own})}

    def _service(self, text: str) -> ServiceKey:
        for key in self._fleet.routes.services:
            if text == str(key):
                return key
        raise openai.BadRequest(
            404,
            f"service: there is none of this name now; {DATA_SCALING} lists those that there are.",
            code="unknown_service",
            param="service",
        )

    def _replica(self, replica_id: str) -> Replica:
        for replica in self._fleet.routes.all_replicas():
            if replica.id == replica_id:
                return replica
        raise openai.BadRequest(
            404,
            f"replica: there is none of this id now; {DATA_REPLICAS} lists those that there are.",
            code="unknown_replica",
            param="replica",
        )

    def _view(self, replica: Replica, key: ServiceKey, now: float) -> ReplicaView:
        standing = self._fleet.standing(replica)
        report = standing.report
        return ReplicaView(
            id=replica.id,
            name=replica.name,
            service=str(key),
            model=report.model,
            fitness=fitness(standing, tried=(), now=now),
            num_requests=standing.num_requests,
            num_own=standing.num_own,
            num_waiting_tokens=report.num_waiting_tokens,
            num_blocks=self._fleet.prefixes.num_blocks_of(replica.id),
        )

    @property
    def _has_tenants(self) -> bool:
        return any(service.authentication == "ApiKey" for service in self._fleet.routes.services.values())

    @property
    def _door(self) -> Literal["open", "key", "closed"]:
        if self._admin_keys:
            return "key"
        return "closed" if self._has_tenants else "open"

    def _let_in(self, request: web.Request) -> None:
        """Raise `openai.Unauthorized` for whom the data are not meant."""
        match self._door:
            case "key":
                if not self._admin_keys.are_shown(request.headers):
                    raise openai.Unauthorized(401, "The admin key is missing or not known.", code="invalid_api_key")
            case "closed":
                raise openai.Unauthorized(
                    403,
                    "Services behind this gateway ask for API keys, and nobody has been named who may look into them: "
                    "start it with --admin-key-file.",
                    code="admin_closed",
                )
        match origin_of(request.headers, asks_key=bool(self._admin_keys)):
            case "foreign page":
                raise openai.Unauthorized(
                    403, "Pages of other servers get no data of the console.", code="not_our_page"
                )
            case "strange name":
                raise openai.Unauthorized(
                    403,
                    "Host: without an admin key the console answers to an IP address or localhost alone. Use one of "
                    "them, or start the gateway with --admin-key-file.",
                    code="not_our_page",
                )


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as the page shows it."""

    id: str
    name: str
    service: str
    model: str
    """Empty where it has not said."""
    fitness: str
    """As `balance.Fitness`."""
    num_requests: int
    """Running and waiting there, whoever sent them."""
    num_own: int
    num_waiting_tokens: int
    num_blocks: int | None
    """Cached blocks that it is known to hold; None where prefixes do not decide."""


def _asked(request: web.Request) -> dict[str, str]:
    """Return what of the query goes on: the engine checks the values, the number of nodes alone is bounded here."""
    query = {name: request.query[name] for name in ("max_nodes", "text") if name in request.query}
    if query.get("max_nodes", "").isdecimal():
        query["max_nodes"] = str(min(int(query["max_nodes"]), MAX_CONSOLE_NODES))
    return query


def _json(value: Any, headers: Mapping[str, str]) -> web.Response:
    return openai.json_response(value, headers=dict(headers))
