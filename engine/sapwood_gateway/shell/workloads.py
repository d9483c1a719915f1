"""Keeps the last hour of every service that is routed by prefix, and tells an admin of one as a trace.

What is kept are lengths and hashes (`core.workload`). Noted are requests that an engine has worked on, when they end,
however they end: what was refused or turned away has no length of an answer.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web

from sapwood_contract.http import GATEWAY_TRACE
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.core.workload import Kept, WorkloadLog, block_names, traced
from sapwood_gateway.shell import openai
from sapwood_gateway.shell.admin_keys import AdminKeys
from sapwood_gateway.shell.call import Call
from sapwood_gateway.shell.prompts import Read
from sapwood_gateway.shell.usage import Meter

_READING = re.compile(r"[0-9a-f]{16,64}")


class Workloads:
    """What services had to do of late; for one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = WorkloadLog(since=clock())

    @contextmanager
    def noted(self, call: Call, read: Read, meter: Meter, *, arrived_at: float) -> Iterator[None]:
        """Keep what becomes of a request in the block, where it is one for a service that is routed by prefix."""
        try:
            yield
        finally:
            is_generation = call.request.path.startswith("/v1/")
            if call.service.policy == "PrefixAffinity" and is_generation and meter.is_answer:
                self._note(call.service.key, read, meter, arrived_at)

    def _note(self, service: ServiceKey, read: Read, meter: Meter, arrived_at: float) -> None:
        first = next(iter(read.prompts.items()), None)  # of several that of most replicas
        if first is None:
            num_prompt_tokens, names = max(1, meter.num_prompt_tokens()), b""
        else:
            naming, prompt = first
            num_prompt_tokens, names = prompt.num_tokens, block_names(prompt, naming.block_tokens)
        self._log.note(
            service,
            arrived_at=arrived_at,
            num_prompt_tokens=num_prompt_tokens,
            num_answer_tokens=meter.num_answer_tokens(),
            names=names,
        )

    def kept(self, service: ServiceKey) -> Kept:
        """Return the last hour of ``service``."""
        return self._log.of(service, now=self._clock())


class ServiceTraces:
    """Answers `GATEWAY_TRACE`."""

    def __init__(self, fleet: Fleet, workloads: Workloads, *, admin_keys: AdminKeys, secret: bytes | None) -> None:
        """``admin_keys``: any of them opens it; none: it is open. ``secret``: of the installation, if there is one."""
        self._fleet = fleet
        self._workloads = workloads
        self._admin_keys = admin_keys
        self._secret = secret
        self._turn = asyncio.Lock()
        """One answer at a time: a full one takes a thread a second, and tens of megabytes."""

    async def show(self, request: web.Request) -> web.Response:
        """Return the last hour of the service that the query names as a `ServiceTrace`."""
        try:
            service, key = self._asked(request)
        except openai.GatewayError as error:
            return openai.error_response(error)
        async with self._turn:
            kept = self._workloads.kept(service)
            body = await asyncio.to_thread(lambda: msgspec.json.encode(traced(kept, key=key)))
        return web.Response(body=body, content_type="application/json")

    def _asked(self, request: web.Request) -> tuple[ServiceKey, bytes | None]:
        """Return the service, and what names of blocks are made with; raises `GatewayError`."""
        if self._admin_keys and not self._admin_keys.are_shown(request.headers):
            raise openai.Unauthorized(401, "The admin key is missing or not known.", code="invalid_api_key")
        key = ServiceKey(request.query.get("namespace", ""), request.query.get("service", ""))
        service = self._fleet.routes.services.get(key)
        if service is None:
            raise openai.BadRequest(
                404, f"{GATEWAY_TRACE}: there is no service of this namespace and name here.", code="unknown_service"
            )
        if service.policy != "PrefixAffinity":
            raise openai.BadRequest(
                409,
                f"{GATEWAY_TRACE}: the service is not routed by prefix, so its prompts are not read and no trace is "
                "kept. Set its routing.policy to PrefixAffinity, and ask again when it has answered for a while.",
                code="not_by_prefix",
            )
        return key, self._naming_key(key, request.query.get("reading", ""))

    def _naming_key(self, service: ServiceKey, reading: str) -> bytes | None:
        """Return what all gateways of an installation name blocks with in one reading, and nobody else can."""
        if not reading:
            return None
        if not _READING.fullmatch(reading):
            raise openai.BadRequest(
                400,
                "reading: give 16 to 64 random digits out of 0123456789abcdef.",
                code="invalid_value",
                param="reading",
            )
        if self._secret is None:
            return None
        return hmac.digest(self._secret, f"sapwood trace {service} {reading}".encode(), "sha256")
