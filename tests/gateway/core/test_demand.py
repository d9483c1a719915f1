"""What there is to do for each service, whatever comes, waits and ends in whatever order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sapwood_contract.http import ServiceDemand
from sapwood_gateway.core.demand import Demand
from sapwood_gateway.core.routes import ServiceKey

CHAT, CODE = ServiceKey("team", "chat"), ServiceKey("lab", "code")


def known(*services: ServiceKey, now: float = 0.0) -> Demand:
    made = Demand()
    made.know(services, now=now)
    return made


def test_a_service_that_nobody_asked_for_is_idle_since_it_is_known() -> None:
    demand = known(CHAT, now=5.0)
    assert demand.of(CHAT, {"p": 0}, now=12.0) == ServiceDemand("team", "chat", 0, 0, 0, 7.0, {"p": 0})
    demand.know((CHAT, CODE), now=20.0)
    assert [demand.of(key, {}, now=21.0).idle_seconds for key in (CHAT, CODE)] == [16.0, 1.0]


def test_while_a_request_waits_or_is_under_way_nothing_is_idle_and_then_it_is_since_its_end() -> None:
    demand = known(CHAT)
    demand.arrived(CHAT, now=10.0)
    demand.waits(CHAT)
    assert demand.of(CHAT, {}, now=50.0) == ServiceDemand("team", "chat", 1, 0, 1, 0.0, {})
    demand.waits_no_longer(CHAT)
    assert demand.of(CHAT, {}, now=50.0) == ServiceDemand("team", "chat", 0, 1, 1, 0.0, {})
    demand.ended(CHAT, now=60.0)
    assert demand.of(CHAT, {}, now=61.5) == ServiceDemand("team", "chat", 0, 0, 1, 1.5, {})


def test_a_service_that_has_gone_is_told_of_until_its_last_request_has_ended() -> None:
    demand = known(CHAT, CODE)
    demand.arrived(CHAT, now=0.0)
    demand.know((), now=1.0)
    assert demand.services == (CHAT,)
    demand.ended(CHAT, now=2.0)
    assert not demand.services


def test_what_replicas_were_chosen_for_is_counted() -> None:
    demand = known(CHAT, CODE)
    for by_prefix in (True, False, True):
        demand.arrived(CHAT, now=1.0)
        demand.routed(CHAT, by_prefix=by_prefix)
    counts = [
        (told.num_routed, told.num_routed_by_prefix) for told in (demand.of(key, {}, now=1.0) for key in (CHAT, CODE))
    ]
    assert counts == [(3, 2), (0, 0)]
    assert demand.check_invariants() == []


class DemandMachine(RuleBasedStateMachine):
    """Against a naive model: a list of requests, each with its service and whether it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.demand = Demand()
        self.now = 0.0
        self.there: set[ServiceKey] = set()
        self.open: list[tuple[ServiceKey, bool]] = []

    @rule(services=st.sets(st.sampled_from([CHAT, CODE])), seconds=st.floats(0.0, 9.0))
    def discover(self, services: set[ServiceKey], seconds: float) -> None:
        self.now += seconds
        self.there = services
        self.demand.know(frozenset(services), now=self.now)

    @rule(service=st.sampled_from([CHAT, CODE]))
    def arrive(self, service: ServiceKey) -> None:
        self.demand.arrived(service, now=self.now)
        self.open.append((service, False))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ends=st.booleans())
    def go_on(self, data: st.DataObject, ends: bool) -> None:
        service, waits = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if waits:
            self.demand.waits_no_longer(service)
        if ends:
            self.demand.ended(service, now=self.now)
            return
        if not waits:
            self.demand.waits(service)
        self.open.append((service, not waits))

    @invariant()
    def counts_agree(self) -> None:
        assert self.demand.check_invariants() == []
        assert set(self.demand.services) == self.there | {service for service, _ in self.open}
        for key in self.demand.services:
            told = self.demand.of(key, {}, now=self.now)
            assert told.num_waiting == self.demand.num_waiting(key) == self.open.count((key, True))
            assert told.num_running == self.open.count((key, False))
            assert (told.idle_seconds == 0.0) or told.num_waiting + told.num_running == 0


TestDemandMachine = DemandMachine.TestCase
