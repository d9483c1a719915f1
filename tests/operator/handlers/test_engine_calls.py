"""What the leading operator asks of a service's engines: at the addresses of its pods, as the gateway where it must."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web
from support_gateway import serving
from support_operator import SETTINGS, WITH_SECRET, a_pod, a_service

from sapwood_contract.http import ADMIN_LOAD, EngineLoad, LoadSnapshot
from sapwood_contract.trust import CREDENTIAL_HEADER, engine_credential
from sapwood_operator.autoscaling.engines import Engine, LoadSeen, LookAtLoad
from sapwood_operator.autoscaling.movement import Lost
from sapwood_operator.handlers.engine_calls import Engines
from sapwood_operator.handlers.store import ServiceKey
from sapwood_operator.settings import OperatorSettings

KEY = ServiceKey("team", "chat")
DEADLINE_SECONDS = 60.0
WITH_KEYS = a_service(tenancy={"authentication": "ApiKey"})


def a_pod_at(url: str) -> dict[str, Any]:
    pod = a_pod("chat-1", ready=True)
    pod["metadata"]["uid"] = "u1"
    port = int(url.rpartition(":")[2])
    pod["spec"] = {"containers": [{"name": "engine", "ports": [{"name": "admin", "containerPort": port}]}]}
    pod["status"]["podIP"] = "127.0.0.1"
    return pod


async def asked(service: Mapping[str, Any], settings: OperatorSettings) -> tuple[Mapping[str, str], list[object]]:
    """Look at an engine's load; return the headers it saw, and the losses that were counted."""
    headers: list[Mapping[str, str]] = []
    lost: list[object] = []
    woken = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        headers.append(request.headers)
        return web.json_response(dataclasses.asdict(EngineLoad("m", "ready", LoadSnapshot(num_running=2), "r1")))

    def wake(key: ServiceKey) -> None:
        assert key == KEY
        woken.set()

    app = web.Application()
    app.router.add_get(ADMIN_LOAD, answer)
    engines = Engines(settings, wake=wake, lose=lambda *told: lost.append(told))
    async with serving(app) as url:
        running = asyncio.create_task(engines.run())
        await asyncio.sleep(0)
        calls = [LookAtLoad((Engine("chat-1", "u1"),))]
        engines.carry_out(KEY, service, [a_pod_at(url)], calls, [Lost("u1", 7.0)])
        async with asyncio.timeout(DEADLINE_SECONDS):
            await woken.wait()
        load = engines.known(KEY)["u1"].load
        assert isinstance(load, LoadSeen)
        assert load.num_requests == 2
        engines.forget(KEY)
        assert engines.known(KEY) == {}
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return headers[0], lost


async def test_engines_are_asked_at_their_pods_addresses() -> None:
    headers, lost = await asked(a_service(), WITH_SECRET)
    assert CREDENTIAL_HEADER not in headers
    assert lost == [("team", "chat", 7.0)]


async def test_engines_of_services_with_keys_are_shown_the_gateways_credential() -> None:
    headers, _ = await asked(WITH_KEYS, WITH_SECRET)
    assert headers[CREDENTIAL_HEADER] == engine_credential(WITH_SECRET.secret, "team", "chat")


async def test_without_a_secret_there_is_no_credential_to_show() -> None:
    headers, _ = await asked(WITH_KEYS, SETTINGS)
    assert CREDENTIAL_HEADER not in headers


def test_before_it_runs_nothing_is_asked() -> None:
    engines = Engines(SETTINGS, wake=lambda _: None, lose=lambda *_: None)
    engines.carry_out(KEY, a_service(), [], [], [])
    assert engines.known(KEY) == {}
