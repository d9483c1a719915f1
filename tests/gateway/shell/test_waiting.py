"""Requests that wait for a replica: when they do, when they are let in, and what they are told otherwise."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from aiohttp.test_utils import make_mocked_request
from support_gateway import (
    BODY,
    CHAT,
    CIRCUIT,
    KNOWS_GATEWAY,
    MODEL,
    PATH,
    Gateway,
    Steps,
    Upstream,
    ask,
    echo,
    gateway,
    metrics_of,
    queueing,
    routes,
    status,
    until,
    upstream,
    waiting,
)

from sapwood_gateway.core.balance import Report
from sapwood_gateway.core.fleet import Fleet, Lease
from sapwood_gateway.core.routes import Replica, Routes
from sapwood_gateway.core.tenants import Tenant
from sapwood_gateway.shell.call import Call
from sapwood_gateway.shell.openai import TooMany
from sapwood_gateway.shell.waiting import Waiting

QUEUED = "sapwood_gateway_queued_requests"
ONE_AT_ONCE = Report("ready", 0, 0, 0, max_running=1, knows_gateway=True)
MOST_ON_ONE = 3
"""Requests on such a replica: one that runs, and two to go on with."""


def num_queued(running: Gateway) -> float:
    return running.series(QUEUED)['{inference_service="team/chat"}']


async def full(running: Gateway, engine: Upstream) -> list[asyncio.Task[tuple[int, bytes]]]:
    """Fill the only replica; returns what runs there."""
    running.fleet.reported("pod", ONE_AT_ONCE)
    asked = [ask(running) for _ in range(MOST_ON_ONE)]
    await until(lambda: engine.num_running == MOST_ON_ONE)
    return asked


async def test_a_request_for_a_service_without_replicas_is_answered_by_the_first_one_that_comes() -> None:
    async with upstream(echo) as engine, gateway(queueing()) as running:
        assert num_queued(running) == 0
        asked = ask(running)
        await waiting(running, 1)
        assert num_queued(running) == 1
        running.fleet.update(queueing(replace(engine.replica("pod"), is_ready=False)))
        assert num_queued(running) == 1
        running.fleet.update(queueing(engine.replica("pod")))
        assert (await asked)[0] == 200
        assert num_queued(running) == 0
        assert running.series("sapwood_gateway_queue_time_seconds_count") == {"": 1}


async def test_a_full_replica_gets_the_next_request_when_one_ends() -> None:
    steps = Steps()
    async with upstream(steps.answer) as engine, gateway(queueing(engine.replica("pod"))) as running:
        asked = [*(await full(running, engine)), ask(running)]
        await waiting(running, 1)
        assert engine.num_running == MOST_ON_ONE
        for _ in asked:
            steps.items.put_nowait(None)
        assert [(await each)[0] for each in asked] == [200] * 4
        assert running.fleet.num_own == 0


async def test_what_others_leave_of_a_replica_is_seen_when_it_reports() -> None:
    async with upstream(echo) as engine, gateway(queueing(engine.replica("pod"))) as running:
        running.fleet.reported("pod", replace(ONE_AT_ONCE, num_requests=3))
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.reported("pod", replace(ONE_AT_ONCE, num_requests=2))
        assert (await asked)[0] == 200


async def test_a_replica_that_can_take_requests_again_gets_those_that_wait() -> None:
    async with upstream(echo) as engine, gateway(queueing(engine.replica("pod"))) as running:
        running.fleet.reported("pod", Report("draining", 0, 0, 0))
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.reported("pod", Report("ready", 0, 0, 0, knows_gateway=True))
        assert (await asked)[0] == 200


async def test_requests_wait_while_every_replica_rests_and_none_is_lost() -> None:
    async with upstream(echo) as engine, gateway(queueing(engine.replica("pod"))) as running:
        for _ in range(CIRCUIT.failures_to_open):
            lease = running.fleet.begin(CHAT, MODEL, tried=(), now=0.0)
            assert isinstance(lease, Lease)
            running.fleet.failed("pod", now=0.0)
            running.fleet.end(lease, now=0.0)
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.succeeded("pod")
        assert (await asked)[0] == 200


async def test_beyond_the_queues_length_a_request_is_refused_at_once() -> None:
    async with gateway(queueing(most=1)) as running:
        asked = ask(running)
        await waiting(running, 1)
        async with running.client.post(PATH, json=BODY) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "5")
            error = (await response.json())["error"]
        assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert "team/chat" in error["message"]
        assert not set(error["message"]) & set("012346789")  # how many others wait is theirs; 5 is Retry-After
        assert running.series("sapwood_gateway_rejected_total")['{reason="overload"}'] == 1
        asked.cancel()


async def test_beyond_the_queues_wait_a_request_is_told_to_come_back() -> None:
    async with gateway(queueing(seconds=0.01)) as running, running.client.post(PATH, json=BODY) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert (await response.json())["error"]["code"] == "queue_timeout"
        assert running.series("sapwood_gateway_rejected_total")['{reason="overload"}'] == 1
        assert running.series("sapwood_gateway_route_total")['{result="none"}'] == 1
        assert num_queued(running) == 0


@pytest.mark.parametrize("after", [Routes({}, {}), routes()], ids=["removed", "no queue"])
async def test_who_waits_for_a_service_that_lets_nobody_wait_any_longer_is_told_at_once(after: Routes) -> None:
    async with gateway(queueing()) as running:
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.update(after)
        code, body = await asked
        assert (code, json.loads(body)["error"]["code"]) == (503, "no_replica_ready")
        assert running.series("sapwood_gateway_route_total")['{result="none"}'] == 1


async def test_who_waits_for_a_service_that_lets_nobody_wait_any_longer_is_sent_as_a_newcomer_is() -> None:
    async with upstream(echo) as engine, gateway(queueing()) as running:
        asked = ask(running)
        await waiting(running, 1)
        running.fleet.update(routes(engine.replica("pod")))
        assert (await asked)[0] == 200


async def test_who_was_let_in_without_a_key_is_not_sent_to_a_service_that_asks_for_one_by_now() -> None:
    async with upstream(echo) as engine, gateway(queueing()) as running:
        asked = ask(running)
        await waiting(running, 1)
        made = queueing(engine.replica("pod"))
        service = replace(made.services[CHAT], authentication="ApiKey")
        running.fleet.update(Routes({CHAT: service}, made.replicas))
        running.fleet.reported("pod", KNOWS_GATEWAY)
        code, body = await asked
        assert (code, json.loads(body)["error"]["code"]) == (503, "service_changed")
        assert (engine.bodies, running.fleet.num_own) == ([], 0)


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue_and_is_never_sent() -> None:
    async with upstream(echo) as engine, gateway(queueing()) as running:
        gone, stays = ask(running, {**BODY, "n": 1}), ask(running, BODY)
        await waiting(running, 2)
        gone.cancel()
        await waiting(running, 1)
        running.fleet.update(queueing(engine.replica("pod")))
        assert (await stays)[0] == 200
        assert engine.bodies == [json.dumps(BODY).encode()]
        await running.traffic.drained()
        assert running.fleet.num_own == 0


async def test_a_gateway_that_stops_ends_those_that_wait_as_those_that_run() -> None:
    async with gateway(queueing()) as running:
        asked = ask(running)
        await waiting(running, 1)
        running.proxy.cut()
        code, body = await asked
        assert (code, json.loads(body)["error"]["code"]) == (503, "gateway_stopping")


async def test_a_request_that_was_let_in_does_not_wait_again_when_it_is_tried_elsewhere() -> None:
    async with upstream(status(503)) as bad, upstream(echo) as good:
        made = queueing(bad.replica("a"), good.replica("b"))
        async with gateway(made) as running:
            running.fleet.reported("b", replace(ONE_AT_ONCE, num_requests=9))
            assert (await ask(running))[0] == 200
            assert (len(bad.bodies), len(good.bodies)) == (1, 1)


async def test_where_nobody_may_wait_a_full_replica_is_asked_all_the_same() -> None:
    async with upstream(echo) as engine, gateway(routes(engine.replica("pod"))) as running:
        running.fleet.reported("pod", replace(ONE_AT_ONCE, num_requests=9))
        assert (await ask(running))[0] == 200
        assert running.series(QUEUED) == {}


# --- in which order, and what is left of those that leave


POD = Replica(id="pod", name="pod", url="http://pod", admin_url="http://pod")


class Door:
    """A service with one replica, and the requests before it."""

    def __init__(self) -> None:
        self.fleet = Fleet(circuit=CIRCUIT)
        self.fleet.update(queueing(POD, most=20))
        self.fleet.reported("pod", ONE_AT_ONCE)
        self.metrics = metrics_of(self.fleet)
        self.waiting = Waiting(self.fleet, metrics=self.metrics, clock=lambda: 0.0)
        self.order: list[str] = []

    def rejected(self) -> float:
        """Return how many were turned away."""
        [line] = [each for each in self.metrics.render().body.decode().splitlines() if 'reason="overload"' in each]
        return float(line.split()[1])

    def come(self, tenant: str, *, share: int = 1, tokens: int = 100) -> asyncio.Task[None]:
        service = self.fleet.routes.services[CHAT]
        call = Call(
            make_mocked_request("POST", PATH),
            b"",
            service,
            MODEL,
            tenant=Tenant(namespace="team", name=tenant, share=share),
            max_answer_tokens=tokens,
        )

        async def coming() -> None:
            lease, _ = await self.waiting.begin(call, {})
            self.order.append(tenant)
            self.waiting.end(lease)

        return asyncio.create_task(coming())


@pytest.fixture
async def door() -> Door:
    return Door()


async def filled(door: Door) -> Callable[[], None]:
    """Fill the replica; what is returned ends all that runs there."""
    leases = [door.fleet.begin(CHAT, MODEL, tried=(), now=0.0) for _ in range(MOST_ON_ONE)]

    def end() -> None:
        for lease in leases:
            door.waiting.end(lease)  # type: ignore[arg-type]

    return end


async def test_the_queue_is_fair_between_tenants_whoever_came_first(door: Door) -> None:
    end = await filled(door)
    tasks = [door.come(tenant) for tenant in (*["many"] * 6, "one")]
    tasks += [door.come("double", share=2) for _ in range(6)]
    await until(lambda: door.waiting.census() == {"team/chat": 13})
    end()
    await asyncio.gather(*tasks)
    assert door.order.index("one") < 4
    assert Counter(door.order[:9]) == {"double": 5, "many": 3, "one": 1}


async def test_a_request_weighs_as_much_as_its_answer_may_be_long(door: Door) -> None:
    end = await filled(door)
    tasks = [door.come(tenant, tokens=tokens) for tenant, tokens in [("long", 300), ("short", 100)] * 6]
    await until(lambda: door.waiting.census() == {"team/chat": 12})
    end()
    await asyncio.gather(*tasks)
    assert Counter(door.order[:8]) == {"short": 6, "long": 2}


async def test_who_fills_the_queue_makes_room_for_others(door: Door) -> None:
    end = await filled(door)
    many = [door.come("many") for _ in range(20)]
    await until(lambda: door.waiting.census() == {"team/chat": 20})
    one = door.come("one")
    with pytest.raises(TooMany, match="team/chat"):
        await many[-1]
    with pytest.raises(TooMany):
        await door.come("many")
    assert door.waiting.census() == {"team/chat": 20}
    assert door.rejected() == 2
    end()
    await asyncio.gather(one, *many[:-1])
    assert door.order.count("one") == 1
    assert door.fleet.num_own == 0


async def test_a_request_that_leaves_in_the_moment_in_which_it_makes_room_is_gone(door: Door) -> None:
    end = await filled(door)
    many = [door.come("many") for _ in range(20)]
    await until(lambda: door.waiting.census() == {"team/chat": 20})
    many[-1].cancel()
    one = door.come("one")
    with pytest.raises(asyncio.CancelledError):
        await many[-1]
    end()
    await asyncio.gather(one, *many[:-1])
    assert door.waiting.census() == {"team/chat": 0}


async def test_a_request_that_leaves_in_the_moment_in_which_it_is_let_in_keeps_no_place(door: Door) -> None:
    end = await filled(door)
    task = door.come("a")
    await until(lambda: door.waiting.census() == {"team/chat": 1})
    end()
    await until(lambda: door.fleet.num_own == 1)  # let in, and not told yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (door.fleet.num_own, door.order) == (0, [])


async def test_a_request_that_has_just_left_is_passed_over(door: Door) -> None:
    end = await filled(door)
    first, second = door.come("a"), door.come("a")
    await until(lambda: door.waiting.census() == {"team/chat": 2})
    end()
    first.cancel()
    await second
    assert (door.fleet.num_own, door.order) == (0, ["a"])


async def test_a_place_that_comes_free_wakes_those_that_wait_however_many_there_are(door: Door) -> None:
    end = await filled(door)
    tasks = [door.come("a") for _ in range(10)]
    await until(lambda: door.waiting.census() == {"team/chat": 10})
    end()
    await asyncio.gather(*tasks)
    assert door.waiting.census() == {"team/chat": 0}
