"""``sapwood gateway`` as a program before a service that goes to zero and wakes, known by a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from support_gateway import MODEL, PATH, Steps, Upstream, echo
from support_gateway_process import Running, engine, gateway_process
from yarl import URL

from sapwood_contract.http import GATEWAY_DEMAND, GatewayDemand, ServiceDemand
from sapwood_contract.routing import ServiceRoute, to_json
from sapwood_gateway.core.cluster_facts import SLICE_SERVICE_LABEL


@dataclass(frozen=True, slots=True)
class Pod:
    """One engine of the file."""

    engine: Upstream
    name: str
    ready: bool = True

    def slice(self) -> dict[str, Any]:
        port = URL(self.engine.url).port
        return {
            "kind": "EndpointSlice",
            "metadata": {"name": self.name, "labels": {SLICE_SERVICE_LABEL: "chat-engine"}},
            "ports": [{"name": "http", "port": port}, {"name": "admin", "port": port}],
            "endpoints": [
                {
                    "addresses": ["127.0.0.1"],
                    "conditions": {"ready": self.ready},
                    "targetRef": {"kind": "Pod", "name": self.name, "uid": f"uid-{self.name}"},
                }
            ],
        }


@dataclass(frozen=True, slots=True)
class Service:
    """A running gateway, and the file by which it knows its only service."""

    running: Running
    path: Path
    asker: aiohttp.ClientSession
    """Beside `Running.client`, which has no connection left while a hundred requests wait."""

    def write(self, *pods: Pod, cordoned: Sequence[str] = ()) -> None:
        write(self.path, *pods, cordoned=cordoned)

    async def demand(self) -> ServiceDemand:
        async with self.asker.get(self.running.admin_url + GATEWAY_DEMAND) as answer:
            (told,) = msgspec.json.decode(await answer.read(), type=GatewayDemand).services
            return told

    async def until(self, holds: Callable[[ServiceDemand], bool]) -> ServiceDemand:
        async with asyncio.timeout(60):
            while not holds(told := await self.demand()):  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.02)  # what is waited for needs the processor
            return told

    def ask(self, number: int = 0) -> asyncio.Task[tuple[int, dict[str, Any], str | None]]:
        async def asking() -> tuple[int, dict[str, Any], str | None]:
            async with self.running.client.post(PATH, json={"model": MODEL, "seed": number}) as answer:
                return answer.status, await answer.json(), answer.headers.get("Retry-After")

        return asyncio.create_task(asking())


def write(path: Path, *pods: Pod, cordoned: Sequence[str] = ()) -> None:
    route = ServiceRoute(
        namespace="default",
        service="chat",
        models=(MODEL,),
        engine_service="chat-engine",
        policy="PrefixAffinity",
        queue_max_requests=100,
        queue_max_wait_seconds=600.0,
        cordoned=tuple(cordoned),
    )
    config_map = {"kind": "ConfigMap", "metadata": {"name": "chat"}, "data": {"service.json": to_json(route)}}
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"kind": "List", "items": [config_map, *(pod.slice() for pod in pods)]}))
    draft.rename(path)


@asynccontextmanager
async def at_zero(folder: Path, *, drain_seconds: float = 20.0) -> AsyncIterator[Service]:
    """A gateway whose service has no replica, and lets requests wait."""
    path = folder / "services.json"
    write(path)
    async with (
        gateway_process(options=[f"--discovery-file={path}"], drain_seconds=drain_seconds) as running,
        aiohttp.ClientSession() as asker,
    ):
        yield Service(running, path, asker)


async def test_a_hundred_requests_wake_a_service_and_its_first_replica_answers_all(tmp_path: Path) -> None:
    async with engine(echo) as pod, at_zero(tmp_path) as service:
        before = await service.demand()
        assert (before.num_waiting, before.num_arrived, before.replicas) == (0, 0, {})
        asked = [service.ask(number) for number in range(100)]
        told = await service.until(lambda told: told.num_waiting == 100)
        assert (told.num_running, told.num_arrived, told.idle_seconds) == (0, 100, 0.0)
        url = f"http://127.0.0.1:{service.running.port}{PATH}"
        async with service.asker.post(url, json={"model": MODEL}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "5")
        service.write(Pod(pod, "p1", ready=False))
        await service.until(lambda told: "p1" in told.replicas)
        service.write(Pod(pod, "p1"))
        assert [(await each)[:2] for each in asked] == [(200, {"model": MODEL, "seed": n}) for n in range(100)]
        after = await service.until(lambda told: told.num_waiting + told.num_running == 0)
        assert (after.num_arrived, after.replicas, after.idle_seconds > 0) == (101, {"p1": 0}, True)


async def test_who_leaves_is_not_waited_for_and_who_waits_when_the_gateway_ends_is_told(tmp_path: Path) -> None:
    async with at_zero(tmp_path, drain_seconds=0.1) as service:
        leaves, stays = service.ask(), service.ask()
        await service.until(lambda told: told.num_waiting == 2)
        leaves.cancel()
        await service.until(lambda told: told.num_waiting == 1)
        service.running.process.terminate()
        code, body, retry_after = await stays
        assert (code, body["error"]["code"], retry_after) == (503, "gateway_stopping", "1")
        assert await service.running.process.wait() == 0


async def test_a_stream_goes_on_while_its_replica_is_cordoned_and_new_requests_go_elsewhere(tmp_path: Path) -> None:
    steps = Steps()
    async with engine(steps.answer) as leaves, engine(echo) as stays, at_zero(tmp_path) as service:
        service.write(Pod(leaves, "leaves"))
        steps.items.put_nowait(b"data: 1\n\n")
        async with service.running.client.post(PATH, json={"model": MODEL, "stream": True}) as stream:
            assert await stream.content.readany() == b"data: 1\n\n"
            service.write(Pod(leaves, "leaves"), Pod(stays, "stays"), cordoned=["leaves"])
            await service.until(lambda told: told.replicas == {"leaves": 1, "stays": 0})
            assert [(await service.ask(number))[0] for number in range(4)] == [200] * 4
            async with service.running.client.get(service.running.admin_url + "/metrics") as answer:
                assert b'sapwood_gateway_replicas{state="cordoned"} 1.0' in await answer.read()
            steps.items.put_nowait(b"data: 2\n\n")
            steps.items.put_nowait(None)
            assert await stream.content.read() == b"data: 2\n\n"
        assert (len(leaves.bodies), len(stays.bodies)) == (1, 4)
        await service.until(lambda told: told.replicas == {"leaves": 0, "stays": 0})
