"""What the sampler remembers, forgets and wakes for, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from support_scrapes import counted, scrape
from support_virtual_time import run_in_virtual_time

from sapwood_contract.http import GatewayDemand, ServiceDemand
from sapwood_operator.adapters.asking import TIMEOUT_SECONDS
from sapwood_operator.adapters.sampler import URGENT_SECONDS, Sampler
from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.demand import GatewaysHeard
from sapwood_operator.autoscaling.scrapes import NoScrape
from sapwood_operator.autoscaling.signals import EnginePod, Heard
from sapwood_operator.autoscaling.values import Demand, NoDemand, NoReading, Reading

CHAT = Watched(
    namespace="team",
    name="chat",
    pods=(EnginePod(uid="a", name="chat-a", url="", after=0.0), EnginePod(uid="b", name="chat-b", url="", after=0.0)),
    scales=True,
    is_urgent=False,
)


@dataclass
class World:
    """Services, pods and gateways, and what a sampler made of them."""

    services: list[Watched] = field(default_factory=lambda: [CHAT])
    now: float = 1000.0
    silent: set[str] = field(default_factory=set)
    """Uids of pods that do not answer."""
    counted: float = 0.0
    """What every counter of each pod stands at."""
    is_broken: bool = False
    waiting: int = 0
    num_routed: int = 0
    """Of which three quarters went by prefix."""
    asked_after: dict[str, float] = field(default_factory=dict)
    num_asked_engines: int = 0
    num_asked_gateways: int = 0
    first_answer: asyncio.Event | None = None
    """Set when gateways may answer the first question; None: they do at once."""
    other_hangs: bool = False
    """Another gateway answers nothing."""
    woken: list[str] = field(default_factory=list)

    def sampler(self) -> Sampler:
        return Sampler(
            lambda: list(self.services), Engines(self), Gateways(self), wake=self.wake, clock=lambda: self.now
        )

    def wake(self, namespace: str, name: str) -> None:
        self.woken.append(f"{namespace}/{name}")


@dataclass
class Engines:
    world: World

    async def ask(self, service: Watched) -> Mapping[str, Heard]:
        if self.world.is_broken:
            raise AssertionError("a mistake of ours")
        self.world.num_asked_engines += 1
        self.world.asked_after |= {pod.uid: pod.after for pod in service.pods}
        return {pod.uid: self.of(pod.uid) for pod in service.pods}

    def of(self, uid: str) -> Heard:
        if uid in self.world.silent:
            return Heard(problem=NoScrape("it does not answer"))
        return Heard((scrape(self.world.now, totals=counted(self.world.counted)),))


@dataclass
class Gateways:
    world: World

    async def ask(self, so_far: Callable[[GatewaysHeard], None]) -> GatewaysHeard:
        if self.world.is_broken:
            raise AssertionError("a mistake of ours")
        self.world.num_asked_gateways += 1
        waiting = self.world.waiting
        if self.world.num_asked_gateways == 1 and self.world.first_answer is not None:
            await self.world.first_answer.wait()
        own = ServiceDemand(
            *("team", "chat", waiting, 0, 9, self.world.now, {}),
            num_routed=self.world.num_routed,
            num_routed_by_prefix=self.world.num_routed * 3 // 4,
        )
        heard = GatewaysHeard(at=self.world.now, answers={"gateway": GatewayDemand("e1", (own,))})
        if not self.world.other_hangs:
            return heard
        so_far(replace(heard, problems={"other": "has not answered yet"}))
        await asyncio.sleep(TIMEOUT_SECONDS)
        return replace(heard, problems={"other": f"does not answer within {TIMEOUT_SECONDS:g} s"})


@pytest.fixture
def world() -> World:
    return World()


async def sampled(world: World, sampler: Sampler, times: int = 1) -> None:
    for _ in range(times):
        world.now += 15.0
        await sampler.sample()


async def test_a_service_is_woken_by_each_sampling_and_two_make_a_reading(world: World) -> None:
    sampler = world.sampler()
    await sampled(world, sampler)
    assert isinstance(sampler.of("team", "chat").reading_of("a"), NoReading)
    await sampled(world, sampler)
    signals = sampler.of("team", "chat")
    assert isinstance(signals.reading_of("a"), Reading)
    assert (signals.at, signals.demand_at, signals.states) == (1030.0, 1030.0, {"a": "ready", "b": "ready"})
    assert world.woken == ["team/chat", "team/chat"]


async def test_pods_are_asked_for_what_is_not_known_yet(world: World) -> None:
    sampler = world.sampler()
    await sampled(world, sampler, times=2)
    assert world.asked_after == {"a": 1015.0, "b": 1015.0}


async def test_g05_a_pod_that_does_not_answer_stays_as_it_was_for_a_while_and_is_unknown_then(world: World) -> None:
    sampler = world.sampler()
    await sampled(world, sampler, times=2)
    world.silent = {"b"}
    await sampled(world, sampler, times=3)
    assert isinstance(sampler.of("team", "chat").reading_of("b"), Reading)
    await sampled(world, sampler)
    signals = sampler.of("team", "chat")
    assert signals.reading_of("b") == NoReading("it was last heard 60 s ago; last, it does not answer")
    assert isinstance(signals.reading_of("a"), Reading)
    assert signals.states == {"a": "ready"}
    world.silent = set()
    await sampled(world, sampler)
    assert isinstance(sampler.of("team", "chat").reading_of("b"), Reading)


async def test_pods_and_services_that_are_gone_are_forgotten(world: World) -> None:
    sampler = world.sampler()
    await sampled(world, sampler, times=2)
    world.services = [replace(CHAT, pods=CHAT.pods[:1])]
    await sampled(world, sampler)
    assert sampler.of("team", "chat").readings.keys() == {"a"}
    world.services = [CHAT]
    await sampled(world, sampler)
    assert isinstance(sampler.of("team", "chat").reading_of("b"), NoReading)
    world.services = []
    await sampled(world, sampler)
    assert sampler.of("team", "chat").readings == {}


async def test_what_a_service_took_is_counted_over_its_pods_and_outlives_them(world: World) -> None:
    sampler = world.sampler()
    for world.counted in (1_000.0, 1_010.0, 1_025.0):
        await sampled(world, sampler)
    world.services = [replace(CHAT, pods=CHAT.pods[:1])]
    world.counted = 1_030.0
    await sampled(world, sampler)
    taken = sampler.of("team", "chat").taken
    assert [(each.at, each.arrivals, each.prompt_tokens) for each in taken] == [
        *((1015.0, 0.0, 0.0), (1030.0, 20.0, 20.0), (1045.0, 50.0, 50.0), (1060.0, 55.0, 55.0)),
    ]
    world.services = []
    await sampled(world, sampler)
    assert sampler.of("team", "chat").taken == ()


async def test_a_pod_that_was_silent_for_long_has_the_count_begin_anew(world: World) -> None:
    sampler = world.sampler()
    world.counted = 100.0
    await sampled(world, sampler, times=2)
    world.silent = {"b"}
    await sampled(world, sampler, times=6)
    assert len(sampler.of("team", "chat").taken) > 2
    world.silent = set()
    await sampled(world, sampler)
    assert [each.arrivals for each in sampler.of("team", "chat").taken] == [0.0]


async def test_when_sampling_stops_everything_becomes_unknown(world: World) -> None:
    sampler = world.sampler()
    await sampled(world, sampler, times=2)
    world.now += 46.0
    signals = sampler.of("team", "chat")
    assert signals.reading_of("a") == NoReading("it was last heard 46 s ago")
    assert signals.demand == NoDemand("the gateways were last asked 46 s ago")
    assert signals.states == {}


async def test_a_mistake_of_ours_leaves_what_was_known_and_says_where_to_look(world: World) -> None:
    sampler = world.sampler()
    await sampled(world, sampler, times=2)
    world.is_broken = True
    await sampled(world, sampler)
    assert isinstance(sampler.of("team", "chat").reading_of("a"), Reading)
    await sampled(world, sampler, times=3)
    assert "see its log" in str(sampler.of("team", "chat").reading_of("a"))


async def test_a_service_that_does_not_scale_is_not_asked_of(world: World) -> None:
    world.services = [replace(CHAT, scales=False)]
    sampler = world.sampler()
    await sampled(world, sampler)
    await sampler.sample_urgent()
    assert (world.asked_after, world.num_asked_gateways, world.woken) == ({}, 0, [])
    assert sampler.of("team", "chat").demand == NoDemand("nobody has asked the gateways yet")


async def test_while_a_service_is_urgent_it_is_woken_as_soon_as_there_is_other_work(world: World) -> None:
    world.services = [replace(CHAT, is_urgent=True)]
    sampler = world.sampler()
    await sampler.sample_urgent()
    world.woken.clear()
    for _ in range(3):
        world.now += 0.5
        await sampler.sample_urgent()
    assert (world.woken, world.num_asked_gateways) == ([], 4)
    world.waiting = 1
    await sampler.sample_urgent()
    assert world.woken == ["team/chat"]
    demand = sampler.of("team", "chat").demand
    assert isinstance(demand, Demand)
    assert demand.num_waiting == 1


def test_a_gateway_that_hangs_makes_nobody_wait_who_waits_at_another() -> None:
    world = World(services=[replace(CHAT, is_urgent=True, scales=False)], other_hangs=True)
    sampler = world.sampler()

    async def until_woken() -> float:
        """Return after how many seconds, counted from a request at an unlucky moment."""
        clock = asyncio.get_running_loop().time
        running = asyncio.create_task(sampler.run())
        await asyncio.sleep(21 * URGENT_SECONDS + 0.01)
        world.woken.clear()
        began, world.waiting = clock(), 1
        while not world.woken:  # noqa: ASYNC110  # time is virtual
            await asyncio.sleep(0.01)
        took, demand = clock() - began, sampler.of("team", "chat").demand
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert isinstance(demand, Demand)
        assert (demand.num_waiting, demand.is_whole) == (1, False)
        return took

    assert run_in_virtual_time(until_woken()) <= URGENT_SECONDS


def test_first_answers_are_forgotten_when_all_have_answered() -> None:
    world = World(services=[replace(CHAT, is_urgent=True)], other_hangs=True, waiting=1)
    sampler = world.sampler()
    run_in_virtual_time(sampler.sample_urgent())
    world.waiting = 0
    run_in_virtual_time(sampler.sample_urgent())
    demand = sampler.of("team", "chat").demand
    assert isinstance(demand, Demand)
    assert demand.num_waiting == 0


async def test_how_many_requests_went_by_prefix_is_known_of_the_last_minute_and_a_half_and_wakes_nobody(
    world: World,
) -> None:
    world.services = [replace(CHAT, is_urgent=True)]
    sampler = world.sampler()

    def share() -> float | None:
        demand = sampler.of("team", "chat").demand
        assert isinstance(demand, Demand)
        return demand.routed_by_prefix

    await sampled(world, sampler)
    assert share() is None
    await sampler.sample_urgent()
    world.woken.clear()
    for _ in range(40):
        world.now += 0.5
        world.num_routed += 4
        await sampler.sample_urgent()
    assert (share(), world.woken) == (0.75, [])
    await sampled(world, sampler, times=7)
    assert share() is None


async def test_an_answer_that_is_overtaken_by_a_later_one_does_not_replace_it(world: World) -> None:
    world.services, world.first_answer = [replace(CHAT, is_urgent=True)], asyncio.Event()
    sampler = world.sampler()
    slow = asyncio.create_task(sampler.sample())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.waiting = 5
    await sampler.sample_urgent()
    world.first_answer.set()
    await slow
    demand = sampler.of("team", "chat").demand
    assert isinstance(demand, Demand)
    assert (demand.num_waiting, world.num_asked_gateways) == (5, 2)


async def test_a_service_that_only_empties_a_replica_has_demand_and_no_readings(world: World) -> None:
    world.services = [replace(CHAT, scales=False, is_urgent=True)]
    sampler = world.sampler()
    await sampler.sample_urgent()
    await sampled(world, sampler)
    signals = sampler.of("team", "chat")
    assert (world.asked_after, signals.readings) == ({}, {})
    assert isinstance(signals.demand, Demand)


@pytest.mark.parametrize(("is_urgent", "num_asked_gateways"), [(False, 5), (True, 5 + 120)])
def test_pods_are_asked_every_15_seconds_and_gateways_every_half_where_it_is_urgent(
    world: World, is_urgent: bool, num_asked_gateways: int
) -> None:
    world.services = [replace(CHAT, is_urgent=is_urgent)]

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(60.25):
                await world.sampler().run()

    run_in_virtual_time(main())
    assert (world.num_asked_engines, world.num_asked_gateways) == (5, num_asked_gateways)
