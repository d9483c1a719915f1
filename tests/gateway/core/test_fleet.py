"""What the gateway keeps of its replicas, whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.balance import NoReplica, Report, fitness
from sapwood_gateway.core.block_names import CacheFacts, Naming, PromptSpace, prompt_of
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.fleet import Fleet, Lease
from sapwood_gateway.core.routes import Replica, Routes, Service, ServiceKey

CHAT = ServiceKey("team", "chat")
SETTINGS = CircuitSettings(failures_to_open=3, rest_seconds=1.0)


def replica(id_: str) -> Replica:
    return Replica(id=id_, name=id_, url=f"http://{id_}", admin_url=f"http://{id_}")


def routes(*ids: str) -> Routes:
    return Routes({CHAT: Service(CHAT, ("m",))}, {CHAT: tuple(replica(id_) for id_ in ids)})


def fleet(*ids: str) -> Fleet:
    made = Fleet(circuit=SETTINGS)
    made.update(routes(*ids))
    return made


def begin(fleet: Fleet, *, now: float = 0.0, tried: tuple[str, ...] = ()) -> Lease:
    lease = fleet.begin(CHAT, "m", tried=tried, now=now)
    assert isinstance(lease, Lease)
    return lease


def test_requests_spread_while_none_has_ended() -> None:
    both = fleet("a", "b")
    assert Counter(begin(both).replica.id for _ in range(10)) == {"a": 5, "b": 5}


def test_a_report_does_not_change_the_count_of_our_own_requests() -> None:
    one = fleet("a")
    for _ in range(40):
        begin(one)
    one.reported("a", Report("ready", num_requests=0, num_waiting_tokens=0, num_own=40))
    one.update(routes("a"))
    assert one.num_own_on("a") == 40
    assert one.standing(replica("a")).num_requests == 40


def test_a_replica_that_went_away_is_not_picked_and_its_requests_still_end() -> None:
    pair = fleet("a", "b")
    leases = [begin(pair), begin(pair)]
    pair.update(routes("b"))
    assert begin(pair).replica.id == "b"
    for lease in leases:
        pair.end(lease, now=1.0)
    assert pair.num_own == 1


def test_a_replica_that_comes_back_under_a_new_id_has_no_past() -> None:
    one = fleet("a")
    for _ in range(3):
        one.failed(begin(one).replica.id, now=0.0)
    assert isinstance(one.begin(CHAT, "m", tried=(), now=0.1), NoReplica)
    one.update(routes("a2"))
    assert begin(one, now=0.1).replica.id == "a2"


def test_after_its_rest_one_request_tries_a_replica_and_the_others_go_elsewhere() -> None:
    pair = fleet("a", "b")
    for _ in range(3):
        lease = begin(pair, tried=("b",))
        pair.failed("a", now=0.0)
        pair.end(lease, now=0.0)
    assert {begin(pair, now=0.5).replica.id for _ in range(4)} == {"b"}
    trial = begin(pair, now=2.0)
    assert (trial.replica.id, trial.is_trial) == ("a", True)
    assert begin(pair, now=2.0).replica.id == "b"
    pair.succeeded("a")
    assert begin(pair, now=2.0).replica.id == "a"


def test_a_trial_whose_client_left_does_not_close_the_replica_for_ever() -> None:
    one = fleet("a")
    for _ in range(3):
        lease = begin(one)
        one.failed("a", now=0.0)
        one.end(lease, now=0.0)
    one.end(begin(one, now=2.0), now=2.1)
    assert begin(one, now=2.1).is_trial


def test_a_service_that_is_not_known_has_no_replica() -> None:
    assert fleet("a").begin(ServiceKey("team", "other"), "m", tried=(), now=0.0) == NoReplica(())


def changed(pair: Fleet) -> Fleet:
    """``a`` and ``b`` serve m; now the service is to serve n."""
    for id_ in ("a", "b"):
        pair.reported(id_, Report("ready", 0, 0, 0, model="m"))
    pair.update(Routes({CHAT: Service(CHAT, ("n",))}, pair.routes.replicas))
    return pair


def test_while_a_service_changes_its_model_the_former_one_is_answered_by_the_replicas_that_have_it() -> None:
    pair = changed(fleet("a", "b"))
    assert pair.routes.services[CHAT].former_models == ("m",)
    assert {begin(pair).replica.id for _ in range(4)} == {"a", "b"}
    assert pair.begin(CHAT, "n", tried=(), now=0.0) == NoReplica(("of_another_model", "of_another_model"))


def test_a_former_model_is_known_as_long_as_a_replica_of_it_takes_requests() -> None:
    pair = changed(fleet("a", "b"))
    leaving = tuple(replace(each, is_terminating=True) for each in pair.routes.of(CHAT))
    pair.update(Routes(pair.routes.services, {CHAT: (leaving[0], *pair.routes.of(CHAT)[1:])}))
    assert pair.routes.services[CHAT].former_models == ("m",)
    pair.update(Routes(pair.routes.services, {CHAT: leaving}))
    assert pair.routes.services[CHAT].former_models == ()


def test_a_replica_that_begins_to_serve_another_model_is_heard_at_once() -> None:
    one = fleet("a")
    one.reported("a", Report("ready", 0, 0, 0, model="former"))
    assert one.routes.services[CHAT].former_models == ("former",)
    one.reported("a", Report("ready", 0, 0, 0, model="m"))
    assert one.routes.services[CHAT].former_models == ()


def test_the_census_counts_every_replica_once() -> None:
    three = fleet("a", "b", "c")
    terminating = replace(replica("b"), is_terminating=True)
    three.update(Routes(three.routes.services, {CHAT: (replica("a"), terminating, replica("c"))}))
    three.reported("c", Report("draining", 1, 0, 0))
    assert three.census(0.0) == {"fit": 1, "terminating": 1, "draining": 1}


CACHE = CacheFacts(Naming("r", 4), 100, None)


def by_prefix(*ids: str) -> Fleet:
    made = Fleet(circuit=SETTINGS)
    made.update(Routes({CHAT: Service(CHAT, ("m",), "PrefixAffinity")}, {CHAT: tuple(replica(id_) for id_ in ids)}))
    for id_ in ids:
        made.reported(id_, Report("ready", 0, 0, 0, cache=CACHE))
    return made


def asked(fleet: Fleet, *tokens: int, tried: tuple[str, ...] = ()) -> Lease:
    prompts = {naming: prompt_of(tokens * 4, naming, PromptSpace(), None) for naming in fleet.prefixes.namings(CHAT)}
    lease = fleet.begin(CHAT, "m", tried=tried, now=0.0, prompts=prompts)
    assert isinstance(lease, Lease)
    return lease


def test_a_service_routed_by_prefix_sends_a_prompt_where_it_was_before() -> None:
    three = by_prefix("a", "b", "c")
    first = asked(three, 1, 2)
    for _ in range(4):
        again = asked(three, 1, 2)
        assert (again.replica.id, again.reason) == (first.replica.id, "prefix")
        three.end(again, now=0.0)


def test_a_prompt_goes_by_prefix_where_it_was_or_where_nobody_has_any_of_it_and_a_spill_does_not() -> None:
    pair = by_prefix("a", "b")
    new = asked(pair, 1, 2)
    assert (new.reason, new.is_by_prefix) == ("least_load", True)
    pair.end(new, now=0.0)
    holds = [asked(pair, 1, 2) for _ in range(40)]
    assert {(each.reason, each.is_by_prefix) for each in holds} == {("prefix", True), ("spill", False)}
    assert not begin(pair).is_by_prefix


def test_a_service_says_on_how_many_replicas_a_hot_beginning_is_kept() -> None:
    for least, holders in ((1, 1), (3, 3)):
        made = by_prefix("a", "b", "c", "d")
        routes = made.routes
        services = {key: replace(service, hot_prefix_replicas=(least, 4)) for key, service in routes.services.items()}
        made.update(replace(routes, services=services))
        for id_ in "abcd":
            made.reported(id_, Report("ready", 0, 0, 0, cache=replace(CACHE, capacity_blocks=10_000)))
        replicas = set()
        for number in range(14):
            lease = asked(made, *range(100), number)
            made.end(lease, now=0.0)
            replicas.add(lease.replica.id)
        assert len(replicas) == holders


def test_a_replica_that_cannot_take_it_does_not_get_it_for_its_prefix() -> None:
    pair = by_prefix("a", "b")
    first = asked(pair, 1, 2).replica.id
    other = asked(pair, 1, 2, tried=(first,))
    assert other.replica.id != first
    assert other.reason == "least_load"


def test_what_cannot_be_read_is_routed_by_load() -> None:
    pair = by_prefix("a", "b")
    leases = [begin(pair) for _ in range(4)]
    assert Counter(each.replica.id for each in leases) == {"a": 2, "b": 2}
    assert {(each.reason, each.placed) for each in leases} == {("least_load", None)}


def test_what_an_engine_held_that_nobody_reaches_any_more_is_forgotten() -> None:
    one = by_prefix("a")
    asked(one, 1, 2)
    assert one.prefixes.num_blocks == 2
    one.unreachable("a")
    one.unreachable("nobody")
    assert one.prefixes.num_blocks == 0


def test_blocks_are_kept_for_services_alone_that_are_routed_by_prefix() -> None:
    one = by_prefix("a")
    asked(one, 1, 2)
    one.update(routes("a"))
    assert one.prefixes.num_blocks == 0
    assert one.prefixes.namings(CHAT) == ()


def with_queue(one: Fleet) -> Fleet:
    """``one``, whose service lets requests wait."""
    services = {CHAT: replace(one.routes.services[CHAT], queue_max_requests=5)}
    one.update(Routes(services, one.routes.replicas))
    return one


def test_a_full_replica_takes_no_request_where_requests_can_wait() -> None:
    pair = with_queue(fleet("a", "b"))
    for id_ in ("a", "b"):
        pair.reported(id_, Report("ready", 0, 0, 0, max_running=1))
    assert Counter(begin(pair).replica.id for _ in range(6)) == {"a": 3, "b": 3}
    assert pair.begin(CHAT, "m", tried=(), now=0.0) == NoReplica(("full", "full"))


def test_where_requests_cannot_wait_the_engine_says_itself_that_it_is_full() -> None:
    one = fleet("a")
    one.reported("a", Report("ready", 0, 0, 0, max_running=1))
    assert {begin(one).replica.id for _ in range(9)} == {"a"}


def test_a_request_that_one_replica_has_refused_goes_to_a_full_one_too() -> None:
    pair = with_queue(fleet("a", "b"))
    pair.reported("b", Report("ready", 9, 0, 0, max_running=1))
    assert begin(pair, tried=("a",)).replica.id == "b"


def test_whatever_may_let_a_request_in_is_told() -> None:
    one = fleet("a")
    told: list[int] = []
    one.watch(lambda: told.append(one.num_own))
    lease = begin(one)
    assert told == []
    one.end(lease, now=0.0)
    one.reported("a", Report("ready", 0, 0, 0))
    one.succeeded("a")
    one.update(routes("a", "b"))
    assert told == [0, 0, 0, 0]


# --- who is about to leave


def cordoned(one: Fleet, *ids: str) -> Fleet:
    """``one``, whose replicas with these ids are cordoned and no other is."""
    replicas = tuple(replace(each, is_cordoned=each.id in ids) for each in one.routes.of(CHAT))
    one.update(replace(one.routes, replicas={CHAT: replicas}))
    return one


def test_a_cordoned_replica_gets_no_new_request_and_keeps_those_that_it_has() -> None:
    pair = fleet("a", "b")
    lease = begin(pair, tried=("b",))
    cordoned(pair, "a")
    assert {begin(pair).replica.id for _ in range(9)} == {"b"}
    assert pair.num_own_by_name(CHAT) == {"a": 1, "b": 9}
    pair.succeeded(lease.replica.id)
    pair.end(lease, now=0.0)
    assert pair.num_own_by_name(CHAT) == {"a": 0, "b": 9}
    assert pair.census(0.0) == {"cordoned": 1, "fit": 1}


def test_a_replica_that_is_cordoned_no_longer_gets_requests_again() -> None:
    pair = cordoned(cordoned(fleet("a", "b"), "a"))
    assert {begin(pair).replica.id for _ in range(4)} == {"a", "b"}


def test_where_all_are_cordoned_a_request_is_served_all_the_same() -> None:
    pair = with_queue(cordoned(fleet("a", "b"), "a", "b"))
    assert {begin(pair).replica.id for _ in range(4)} == {"a", "b"}
    assert pair.can_begin(CHAT, "m", now=0.0)


def test_a_full_replica_is_waited_for_rather_than_a_cordoned_one_used() -> None:
    pair = with_queue(cordoned(fleet("a", "b"), "a"))
    pair.reported("b", Report("ready", 9, 0, 0, max_running=1))
    assert pair.begin(CHAT, "m", tried=(), now=0.0) == NoReplica(("full",))


def session(fleet: Fleet, number: int) -> Lease:
    """A request of one session whose prompt nobody has seen before."""
    prompts = {naming: prompt_of([number] * 8, naming, PromptSpace(), "s") for naming in fleet.prefixes.namings(CHAT)}
    lease = fleet.begin(CHAT, "m", tried=(), now=0.0, prompts=prompts)
    assert isinstance(lease, Lease)
    return lease


def test_prefixes_and_sessions_move_on_from_a_cordoned_replica_and_its_blocks_stay_known_until_it_has_gone() -> None:
    three = by_prefix("a", "b", "c")
    first = asked(three, 1, 2).replica.id
    stuck = session(three, 1).replica.id
    held = three.prefixes.num_blocks_of(first)
    cordoned(three, first, stuck)
    moved, moved_session = asked(three, 1, 2), session(three, 2)
    assert {moved.replica.id, moved_session.replica.id}.isdisjoint({first, stuck})
    assert (moved.placed.decision.matched_tokens if moved.placed else None) == 0
    assert asked(three, 1, 2).replica.id == moved.replica.id
    assert session(three, 3).replica.id == moved_session.replica.id
    assert three.prefixes.num_blocks_of(first) == held
    three.update(routes_by_prefix(*({"a", "b", "c"} - {first})))
    assert three.prefixes.num_blocks_of(first) is None


def routes_by_prefix(*ids: str) -> Routes:
    return Routes({CHAT: Service(CHAT, ("m",), "PrefixAffinity")}, {CHAT: tuple(replica(id_) for id_ in sorted(ids))})


def test_a_replica_of_a_name_that_was_there_before_is_another_one() -> None:
    one = by_prefix("a")
    asked(one, 1, 2)
    for _ in range(3):
        one.failed("a", now=0.0)
    again = replace(replica("a of today"), name="a")
    one.update(Routes(one.routes.services, {CHAT: (again,)}))
    one.reported(again.id, Report("ready", 0, 0, 0, cache=CACHE))
    assert one.standing(again).num_own == 0
    assert one.prefixes.num_blocks == 0
    assert one.num_own_by_name(CHAT) == {"a": 1}  # of the former one, which has not ended
    assert asked(one, 1, 2).replica.id == again.id


def test_requests_on_a_replica_that_has_gone_are_told_of_by_its_name_until_they_end() -> None:
    pair = fleet("a", "b")
    lease = begin(pair, tried=("b",))
    pair.update(routes("b"))
    assert pair.num_own_by_name(CHAT) == {"a": 1, "b": 0}
    pair.end(lease, now=0.0)
    assert pair.num_own_by_name(CHAT) == {"b": 0}


# --- who has just come


REQUESTS_PER_SECOND = 60


def shares_over_time(policy: RoutingPolicy, *, seconds_each: float) -> list[float]:
    """Return a newcomer's share of all requests, beside three others, in each of seven times 5 seconds.

    ``seconds_each``: how long one takes.
    """
    made = Fleet(circuit=SETTINGS)
    for ids in ("abc", "abcn"):
        service = Service(CHAT, ("m",), policy)
        made.update(Routes({CHAT: service}, {CHAT: tuple(replica(id_) for id_ in ids)}))
        for id_ in ids:
            made.reported(id_, Report("ready", 0, 0, 0, cache=replace(CACHE, capacity_blocks=4_000)))
    counts = [Counter[str]() for _ in range(7)]
    running: deque[tuple[float, Lease]] = deque()
    for number in range(35 * REQUESTS_PER_SECOND):
        now = number / REQUESTS_PER_SECOND
        while running and running[0][0] <= now:
            made.end(running.popleft()[1], now=now)
        prompt = prompt_of([number] * 64, CACHE.naming, PromptSpace(), None)
        lease = made.begin(CHAT, "m", tried=(), now=now, prompts={CACHE.naming: prompt})
        assert isinstance(lease, Lease)
        running.append((now + seconds_each, lease))
        counts[int(now // 5)][lease.replica.id] += 1
    return [count["n"] / count.total() for count in counts]


@pytest.mark.parametrize("seconds_each", [0.0, 1.0], ids=["idle", "busy"])
@pytest.mark.parametrize("policy", get_args(RoutingPolicy))
def test_a_replica_that_has_just_become_ready_comes_to_its_share_little_by_little(
    policy: RoutingPolicy, seconds_each: float
) -> None:
    shares = shares_over_time(policy, seconds_each=seconds_each)
    growing = [(seconds + 2.5) / 30 for seconds in range(0, 30, 5)]
    expected = [*(share / (3 + share) for share in growing), 0.25]
    assert shares == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("policy", get_args(RoutingPolicy))
def test_the_only_replica_that_can_take_requests_takes_them_however_new_it_is(policy: RoutingPolicy) -> None:
    made = cordoned(fleet("a"))
    made.update(routes("a", "b"))
    cordoned(made, "a")
    assert {begin(made).replica.id for _ in range(9)} == {"b"}


def test_while_all_others_are_full_a_newcomer_takes_what_it_can() -> None:
    made = fleet("a")
    made.update(routes("a", "b"))
    made.reported("a", Report("ready", 30, 0, 0, max_running=8))
    assert {begin(made).replica.id for _ in range(9)} == {"b"}


class FleetMachine(RuleBasedStateMachine):
    """Against a naive model: the number of our requests on each replica."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(circuit=SETTINGS)
        self.now = 0.0
        self.present: set[str] = set()
        self.cordoned: set[str] = set()
        self.leases: list[Lease] = []

    @rule(ids=st.sets(st.sampled_from("abcd")), leaving=st.sets(st.sampled_from("abcd")))
    def discover(self, ids: set[str], leaving: set[str]) -> None:
        self.present, self.cordoned = ids, leaving & ids
        cordoned(self.fleet, *leaving)
        self.fleet.update(routes(*sorted(ids)))
        cordoned(self.fleet, *leaving)

    @rule(tried=st.sets(st.sampled_from("abcd"), max_size=2))
    def request(self, tried: set[str]) -> None:
        lease = self.fleet.begin(CHAT, "m", tried=tried, now=self.now)
        if isinstance(lease, Lease):
            assert lease.replica.id in self.present - tried
            if lease.replica.id in self.cordoned:  # a last resort: each of the others rests, or was tried
                others = [
                    each for each in self.fleet.routes.of(CHAT) if each.id in self.present - self.cordoned - tried
                ]
                assert all(fitness(self.fleet.standing(each), tried=(), now=self.now) == "resting" for each in others)
            self.leases.append(lease)

    @rule(data=st.data(), how=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def end(self, data: st.DataObject, how: str) -> None:
        if self.leases:
            lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
            if how == "succeeded":
                self.fleet.succeeded(lease.replica.id)
            elif how == "failed":
                self.fleet.failed(lease.replica.id, now=self.now)
            self.fleet.end(lease, now=self.now)

    @rule(id_=st.sampled_from("abcd"), num=st.integers(0, 5))
    def report(self, id_: str, num: int) -> None:
        self.fleet.reported(id_, Report("ready", num, 0, self.fleet.num_own_on(id_)))

    @rule(seconds=st.floats(0.0, 40.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        assert self.fleet.check_invariants() == []
        assert self.fleet.num_own == len(self.leases)
        counts = Counter(lease.replica.id for lease in self.leases)
        assert all(self.fleet.num_own_on(id_) == counts[id_] for id_ in "abcd")
        assert self.fleet.num_own_by_name(CHAT) == {id_: counts[id_] for id_ in self.present | counts.keys()}

    def teardown(self) -> None:
        """Once all has ended and every rest is over, each replica that is there can be reached."""
        while self.leases:
            self.fleet.end(self.leases.pop(), now=self.now)
        self.now += 60.0
        reached: set[str] = set()
        while isinstance(lease := self.fleet.begin(CHAT, "m", tried=reached, now=self.now), Lease):
            reached.add(lease.replica.id)
        assert reached == self.present


TestFleetMachine = FleetMachine.TestCase
