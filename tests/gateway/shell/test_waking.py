"""Services without a replica: who waits for the first one, what is told of them, and who waits again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import msgspec
import pytest
from support_gateway import (
    BODY,
    CHAT,
    KNOWS_GATEWAY,
    MODEL,
    PATH,
    Answer,
    Gateway,
    Steps,
    Upstream,
    admin_app,
    ask,
    drop,
    echo,
    gateway,
    nobody,
    queueing,
    routes,
    serving,
    status,
    until,
    upstream,
    waiting,
)

from sapwood_contract.http import GATEWAY_DEMAND, GatewayDemand, ServiceDemand
from sapwood_gateway.core.routes import Replica, Routes


def demand(running: Gateway) -> ServiceDemand:
    """What there is to do for the only service; what was routed has tests of its own."""
    (told,) = running.proxy.waiting.demand()
    return replace(told, num_routed=0, num_routed_by_prefix=0)


def told(num_waiting: int, num_running: int, num_arrived: int, **replicas: int) -> ServiceDemand:
    return ServiceDemand("team", "chat", num_waiting, num_running, num_arrived, 0.0, replicas)


POD = Replica(id="pod", name="pod", url="http://pod", admin_url="http://pod")


@pytest.mark.parametrize(
    "at_first",
    [
        Routes(queueing().services, {}),
        queueing(),
        queueing(replace(POD, is_ready=False)),
        queueing(replace(POD, is_terminating=True)),
        queueing(replace(POD, is_ready=False), replace(nobody(), is_terminating=True)),
    ],
    ids=["no slice", "empty slices", "not ready", "terminating", "both"],
)
async def test_a_service_without_replicas_and_one_without_any_that_is_ready_hold_requests_alike(
    at_first: Routes,
) -> None:
    async with upstream(echo) as engine, gateway(at_first) as running:
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.update(queueing(engine.replica("pod")))
        assert (await asked)[0] == 200
        assert len(engine.bodies) == 1


async def test_a_hundred_that_wait_are_all_answered_by_the_first_replica_that_comes() -> None:
    async with upstream(echo) as engine, gateway(queueing(most=100)) as running:
        asked = [ask(running, {**BODY, "seed": number}) for number in range(100)]
        await waiting(running, 100)
        assert demand(running) == told(100, 0, 100)
        running.fleet.update(queueing(engine.replica("pod"), most=100))
        assert [(await each)[0] for each in asked] == [200] * 100
        assert len(engine.bodies) == 100
        await running.traffic.drained()
        assert demand(running) == told(0, 0, 100, pod=0)
        (counted,) = running.proxy.waiting.demand()
        assert (counted.num_routed, counted.num_routed_by_prefix) == (100, 0)


async def test_prompts_that_nobody_could_read_yet_are_routed_by_load_when_a_replica_comes() -> None:
    async with upstream(echo) as engine, gateway(queueing(policy="PrefixAffinity")) as running:
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.update(queueing(engine.replica("pod"), policy="PrefixAffinity"))
        assert (await asked)[0] == 200
        assert running.counted("sapwood_gateway_route_total") == {'{result="least_load"}': 1}
        assert running.counted("sapwood_gateway_unread_prompts_total") == {'{reason="unnamed"}': 1}


async def test_no_byte_of_an_answer_that_is_waited_for_comes_before_the_engines_own() -> None:
    steps = Steps()
    async with upstream(steps.answer) as engine, gateway(queueing()) as running:
        asked = asyncio.create_task(running.client.post(PATH, json={**BODY, "stream": True}).__aenter__())
        await waiting(running, 1)
        running.fleet.update(queueing(engine.replica("pod")))
        await engine.busy.wait()
        assert not asked.done()
        steps.items.put_nowait(b"data: 1\n\n")
        async with await asked as response:
            assert await response.content.readany() == b"data: 1\n\n"
            steps.items.put_nowait(None)
            assert await response.content.read() == b""


# --- what is told of demand


async def test_clients_that_leave_while_they_wait_leave_no_demand() -> None:
    async with gateway(queueing()) as running:
        asked = [ask(running) for _ in range(3)]
        await waiting(running, 3)
        for each in asked:
            each.cancel()
        await until(lambda: demand(running).num_waiting == 0)
        await running.traffic.drained()
        assert demand(running) == told(0, 0, 3)
        assert running.proxy.waiting.census() == {"team/chat": 0}


async def test_requests_under_way_are_told_of_by_replica_until_they_end() -> None:
    steps = Steps()
    async with upstream(steps.answer) as engine, gateway(queueing(engine.replica("pod"))) as running:
        assert demand(running) == told(0, 0, 0, pod=0)
        asked = [ask(running), ask(running)]
        await until(lambda: engine.num_running == 2)
        assert demand(running) == told(0, 2, 2, pod=2)
        for _ in asked:
            steps.items.put_nowait(None)
        await asyncio.gather(*asked)
        await running.traffic.drained()
        assert demand(running) == told(0, 0, 2, pod=0)


@pytest.mark.parametrize(
    ("at_first", "code"),
    [(queueing(most=1, seconds=0.001), 503), (routes(), 503), (queueing(nobody()), 503)],
    ids=["waited", "no queue", "unreachable"],
)
async def test_who_is_refused_has_arrived_and_ended(at_first: Routes, code: int) -> None:
    async with gateway(at_first) as running:
        assert (await ask(running))[0] == code
        await running.traffic.drained()
        found = demand(running)
        assert (found.num_waiting, found.num_running, found.num_arrived) == (0, 0, 1)


async def test_who_is_turned_out_of_the_queue_is_not_waited_for() -> None:
    async with gateway(queueing(most=1)) as running:
        first = ask(running)
        await waiting(running, 1)
        assert (await ask(running))[0] == 429
        assert (demand(running).num_waiting, demand(running).num_arrived) == (1, 2)
        first.cancel()


async def test_what_names_no_service_is_no_demand() -> None:
    async with gateway(queueing()) as running:
        assert (await ask(running, {"model": "other"}))[0] == 404
        assert demand(running) == told(0, 0, 0)


async def test_the_admin_port_tells_of_demand_in_one_epoch_a_gateway() -> None:
    async with gateway(queueing(POD)) as running:
        epochs = []
        for _ in range(2):
            async with serving(admin_app(running)) as url, aiohttp.ClientSession(url) as client:
                for _ in range(2):
                    async with client.get(GATEWAY_DEMAND) as answer:
                        read = msgspec.json.decode(await answer.read(), type=GatewayDemand)
                    assert read.services == (told(0, 0, 0, pod=0),)
                    epochs.append(read.epoch)
        assert epochs[0] == epochs[1] != epochs[2] == epochs[3]


# --- who waits again


@asynccontextmanager
async def leaving(answer: Upstream, *, seconds: float = 60.0) -> AsyncIterator[Gateway]:
    """A gateway whose service has one replica, which is cordoned."""
    last = replace(answer.replica("last"), is_cordoned=True)
    async with gateway(queueing(last, seconds=seconds)) as running:
        yield running


def joined(running: Gateway, *replicas: Replica) -> Routes:
    """The present routes with ``replicas`` beside those that there are."""
    return Routes(running.fleet.routes.services, {CHAT: (*running.fleet.routes.of(CHAT), *replicas)})


@pytest.mark.parametrize("answer", [drop, status(503)], ids=["gone", "draining"])
async def test_a_request_that_the_last_replica_has_no_answer_for_waits_for_the_next_one(
    answer: Answer,
) -> None:
    async with upstream(answer) as last, upstream(echo) as next_, leaving(last) as running:
        asked = ask(running)
        await waiting(running, 1)
        assert demand(running) == told(1, 0, 1, last=0)
        running.fleet.update(joined(running, replace(next_.replica("next"), is_ready=False)))
        assert demand(running).num_waiting == 1
        running.fleet.update(queueing(next_.replica("next")))
        assert (await asked)[0] == 200
        assert (len(last.bodies), len(next_.bodies)) == (1, 1)
        await running.traffic.drained()
        assert demand(running) == told(0, 0, 1, next=0)


async def test_a_cordoned_replica_answers_where_there_is_no_other() -> None:
    async with upstream(echo) as last, leaving(last) as running:
        assert (await ask(running))[0] == 200


async def test_a_client_that_leaves_while_it_waits_again_leaves_no_trace() -> None:
    async with upstream(drop) as last, leaving(last) as running:
        asked = [ask(running), ask(running)]
        await waiting(running, 2)
        asked[0].cancel()
        await waiting(running, 1)
        running.fleet.update(queueing())
        asked[1].cancel()
        await waiting(running, 0)
        await running.traffic.drained()
        assert demand(running) == told(0, 0, 2)
        assert running.fleet.num_own == 0


async def test_who_waits_again_waits_no_longer_than_others() -> None:
    async with upstream(drop) as last, leaving(last, seconds=0.01) as running:
        code, body = await ask(running)
        assert (code, json.loads(body)["error"]["code"]) == (503, "queue_timeout")


async def test_who_waits_again_where_requests_may_wait_no_longer_gets_the_last_answer() -> None:
    async with upstream(drop) as last, leaving(last) as running:
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.update(routes(*running.fleet.routes.of(CHAT)))
        code, body = await asked
        assert (code, json.loads(body)["error"]["code"]) == (502, "upstream_failed")


async def test_who_waits_again_is_not_sent_to_a_service_that_asks_for_a_key_by_now() -> None:
    async with upstream(drop) as last, upstream(echo) as next_, leaving(last) as running:
        asked = ask(running)
        await waiting(running, 1)
        made = queueing(next_.replica("next"))
        running.fleet.update(Routes({CHAT: replace(made.services[CHAT], authentication="ApiKey")}, made.replicas))
        running.fleet.reported("next", KNOWS_GATEWAY)
        code, body = await asked
        assert (code, json.loads(body)["error"]["code"]) == (503, "service_changed")
        assert next_.bodies == []


async def test_a_replica_that_is_to_stay_and_has_no_answer_is_not_waited_for() -> None:
    async with gateway(queueing(nobody())) as running:
        code, body = await ask(running)
        assert (code, json.loads(body)["error"]["code"]) == (503, "replica_unreachable")


async def test_a_stream_goes_on_when_its_replica_is_cordoned_and_the_next_request_goes_elsewhere() -> None:
    steps = Steps()
    async with upstream(steps.answer) as leaves, upstream(echo) as stays:
        steps.items.put_nowait(b"data: 1\n\n")
        async with (
            gateway(queueing(leaves.replica("leaves"))) as running,
            running.client.post(PATH, json={"model": MODEL, "stream": True}) as stream,
        ):
            assert await stream.content.readany() == b"data: 1\n\n"
            both = (replace(leaves.replica("leaves"), is_cordoned=True), stays.replica("stays"))
            running.fleet.update(queueing(*both))
            assert [(await ask(running))[0] for _ in range(3)] == [200] * 3
            assert (len(leaves.bodies), len(stays.bodies)) == (1, 3)
            assert demand(running).replicas["leaves"] == 1
            steps.items.put_nowait(b"data: 2\n\n")
            steps.items.put_nowait(None)
            assert await stream.content.read() == b"data: 2\n\n"
            await running.traffic.drained()
            assert demand(running).replicas == {"leaves": 0, "stays": 0}
