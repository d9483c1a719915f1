"""Which replica takes a request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sapwood_contract.routing import RoutingPolicy
from sapwood_gateway.core.balance import (
    NO_REPORT,
    Fitness,
    NoReplica,
    Report,
    Standing,
    able,
    by_load,
    fitness,
    pick,
    with_room,
)
from sapwood_gateway.core.circuit import Closed, HalfOpen, Open
from sapwood_gateway.core.routes import Replica, Service, ServiceKey

SERVICE = Service(ServiceKey("team", "chat"), ("base", "adapter"))


def standing(id_: str, *, own: int = 0, requests: int = 0, own_then: int = 0, waiting_tokens: int = 0) -> Standing:
    replica = Replica(id=id_, name=id_, url=f"http://{id_}", admin_url=f"http://{id_}")
    report = Report("ready", requests, waiting_tokens, own_then)
    return Standing(replica, own, report, Closed())


def least(*standings: Standing, turn: int = 0) -> str:
    picked = pick(standings, SERVICE, "base", tried=(), now=0.0, turn=turn)
    assert isinstance(picked, Replica)
    return picked.id


def test_the_replica_with_the_fewest_requests_takes_it() -> None:
    assert least(standing("a", own=50), standing("b", own=0)) == "b"


def test_what_others_send_counts_as_the_replica_reports_it() -> None:
    assert least(standing("a", requests=6), standing("b", own=2)) == "b"


def test_our_own_requests_are_not_counted_twice() -> None:
    # b had 5 requests at its report, all of them ours; 2 of those are left.
    assert standing("b", own=2, requests=5, own_then=5).num_requests == 2
    assert standing("b", own=7, requests=9, own_then=5).num_requests == 11


def test_a_burst_since_the_last_report_counts_at_once() -> None:
    assert least(standing("a", requests=1), standing("b", requests=0, own=4)) == "a"


def test_among_equally_many_requests_the_fewest_waiting_tokens_decide() -> None:
    assert least(standing("a", requests=2, waiting_tokens=9_000), standing("b", requests=2, waiting_tokens=40)) == "b"


def test_equal_replicas_take_turns() -> None:
    equal = [standing(id_) for id_ in "abc"]
    assert [least(*equal, turn=turn) for turn in range(5)] == ["a", "b", "c", "a", "b"]


def test_round_robin_looks_at_no_load() -> None:
    standings = [standing("a", own=99), standing("b")]
    service = replace(SERVICE, policy="RoundRobin")
    picked = [pick(standings, service, "base", tried=(), now=0.0, turn=turn) for turn in range(3)]
    assert [each.id for each in picked if isinstance(each, Replica)] == ["a", "b", "a"]


WELL = standing("a")


@pytest.mark.parametrize(
    ("seen", "fate"),
    [
        (WELL, "fit"),
        (replace(WELL, replica=replace(WELL.replica, is_terminating=True)), "terminating"),
        (replace(WELL, replica=replace(WELL.replica, is_ready=False)), "not_ready"),
        (replace(WELL, report=replace(NO_REPORT, state="draining")), "draining"),
        (replace(WELL, replica=replace(WELL.replica, is_cordoned=True)), "cordoned"),
        (replace(WELL, replica=replace(WELL.replica, is_cordoned=True, is_terminating=True)), "terminating"),
        (replace(WELL, report=replace(NO_REPORT, state="warming")), "fit"),  # old news: the cluster says ready
        (replace(WELL, circuit=Open(until=5.1, num_rests=1)), "resting"),
        (replace(WELL, circuit=Open(until=5.0, num_rests=1)), "fit"),
        (replace(WELL, circuit=HalfOpen(num_rests=1)), "resting"),
    ],
)
def test_a_replica_that_cannot_take_a_request_is_never_picked(seen: Standing, fate: Fitness) -> None:
    assert fitness(seen, tried=(), now=5.0) == fate
    idle, busy = seen, standing("b", own=100)
    picked = pick([idle, busy], SERVICE, "base", tried=(), now=5.0, turn=0)
    assert isinstance(picked, Replica)
    assert picked.id == ("a" if fate == "fit" else "b")


def test_no_replica_is_asked_twice_for_one_request() -> None:
    assert fitness(WELL, tried={"a"}, now=0.0) == "tried"


@pytest.mark.parametrize(
    ("said", "model", "takes_it"),
    [
        ("base", "base", True),
        ("base", "adapter", True),
        ("", "adapter", True),
        ("former", "base", False),
        ("former", "adapter", False),
        ("former", "former", True),
        ("base", "former", False),
    ],
)
def test_a_replica_answers_to_the_names_of_its_service_and_one_of_a_former_revision_to_its_own(
    said: str, model: str, takes_it: bool
) -> None:
    seen = replace(WELL, report=replace(NO_REPORT, model=said))
    picked = pick([seen], SERVICE, model, tried=(), now=0.0, turn=0)
    assert picked == (seen.replica if takes_it else NoReplica(("of_another_model",)))


@pytest.mark.parametrize("says", [True, False])
def test_a_replica_that_knows_no_gateway_takes_nothing_of_a_service_that_asks_for_keys(says: bool) -> None:
    seen = replace(WELL, report=replace(WELL.report, knows_gateway=says))
    locked = replace(SERVICE, authentication="ApiKey")
    assert isinstance(able([seen], SERVICE, "base", tried=(), now=0.0), list)
    assert able([seen], locked, "base", tried=(), now=0.0) == ([seen] if says else NoReplica(("knows_no_gateway",)))


def test_a_replica_that_has_said_nothing_yet_takes_nothing_of_a_service_that_asks_for_keys() -> None:
    silent = replace(WELL, report=NO_REPORT)
    locked = replace(SERVICE, authentication="ApiKey")
    assert able([silent], SERVICE, "base", tried=(), now=0.0) == [silent]
    assert able([silent], locked, "base", tried=(), now=0.0) == NoReplica(("not_heard_from",))
    gone = replace(silent, replica=replace(silent.replica, is_terminating=True))
    assert able([gone], locked, "base", tried=(), now=0.0) == NoReplica(("terminating",))


CORDONED = replace(WELL, replica=replace(WELL.replica, is_cordoned=True))
LOCKED = replace(SERVICE, authentication="ApiKey")
BUSY = standing("b", own=100)


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        ([CORDONED, BUSY], ["b"]),
        ([CORDONED, replace(BUSY, replica=replace(BUSY.replica, is_ready=False))], ["a"]),
        ([CORDONED, replace(BUSY, circuit=Open(until=9.0, num_rests=1))], ["a"]),
        ([CORDONED, replace(BUSY, replica=replace(BUSY.replica, is_cordoned=True))], ["a", "b"]),
    ],
)
def test_a_cordoned_replica_takes_a_request_only_where_no_other_one_can(seen: list[Standing], taken: list[str]) -> None:
    fit = able(seen, SERVICE, "base", tried=(), now=0.0)
    assert isinstance(fit, list)
    assert [each.replica.id for each in fit] == taken


@pytest.mark.parametrize(
    ("seen", "service", "model", "tried", "why"),
    [
        (CORDONED, SERVICE, "base", {"a"}, "cordoned"),
        (replace(CORDONED, circuit=HalfOpen(num_rests=1)), SERVICE, "base", (), "cordoned"),
        (replace(CORDONED, report=replace(NO_REPORT, state="draining")), SERVICE, "base", (), "draining"),
        (CORDONED, SERVICE, "former", (), "of_another_model"),
        (CORDONED, LOCKED, "base", (), "knows_no_gateway"),
        (replace(CORDONED, report=NO_REPORT), LOCKED, "base", (), "not_heard_from"),
    ],
)
def test_a_cordoned_replica_that_could_not_take_it_otherwise_is_no_last_resort(
    seen: Standing, service: Service, model: str, tried: set[str], why: Fitness
) -> None:
    assert able([seen], service, model, tried=tried, now=0.0) == NoReplica((why,))


@pytest.mark.parametrize(
    ("reasons", "holds"),
    [
        ((), True),
        (("not_ready",), True),
        (("cordoned", "terminating", "draining"), True),
        (("cordoned", "tried"), False),
        (("resting",), False),
        (("full",), False),
        (("of_another_model",), False),
    ],
)
def test_a_service_whose_replicas_all_leave_or_are_not_ready_is_one_that_another_comes_to(
    reasons: tuple[Fitness, ...], holds: bool
) -> None:
    assert NoReplica(reasons).until_another_comes == holds


@pytest.mark.parametrize("policy", ["LeastLoad", "RoundRobin", "PrefixAffinity"])
def test_idle_replicas_and_a_newcomer_share_as_it_counts(policy: RoutingPolicy) -> None:
    equal = [standing(id_) for id_ in "abcd"]
    picked = Counter(by_load(equal, policy, turn, {"b": 0.5}).replica.id for turn in range(3_500))
    assert picked["b"] == pytest.approx(500, abs=2)
    assert all(picked[id_] == pytest.approx(1_000, rel=0.02) for id_ in "acd")


def test_a_newcomer_without_load_takes_no_more_than_its_turns_beside_busy_ones() -> None:
    fleet = [standing("a", own=20), standing("b", own=21), standing("new")]
    picked = Counter(by_load(fleet, "LeastLoad", turn, {"new": 0.1}).replica.id for turn in range(2_100))
    assert picked["new"] == pytest.approx(100, abs=2)
    assert picked["b"] == 0


def test_a_newcomer_that_has_more_to_do_than_others_gives_its_turn_away() -> None:
    fleet = [standing("a", own=2), standing("new", own=3)]
    assert {by_load(fleet, "LeastLoad", turn, {"new": 0.5}).replica.id for turn in range(50)} == {"a"}
    assert {by_load(fleet, "RoundRobin", turn, {"new": 0.5}).replica.id for turn in range(50)} == {"a", "new"}


def test_newcomers_among_themselves_are_chosen_as_any_others() -> None:
    fleet = [standing("a", own=2), standing("b", own=1)]
    assert {by_load(fleet, "LeastLoad", turn, {"a": 0.9, "b": 0.1}).replica.id for turn in range(50)} == {"b"}


def test_where_none_can_take_it_each_one_has_a_reason() -> None:
    gone = replace(WELL, replica=replace(WELL.replica, is_terminating=True))
    refused = pick([gone, WELL], SERVICE, "base", tried={"a"}, now=0.0, turn=0)
    assert refused == NoReplica(("terminating", "tried"))
    assert pick([], SERVICE, "base", tried=(), now=0.0, turn=0) == NoReplica(())


@pytest.mark.parametrize(
    ("max_running", "requests", "is_full"),
    [
        (0, 9_999, False),  # it has not said how many it runs
        (1, 2, False),
        (1, 3, True),
        (64, 71, False),
        (64, 72, True),  # an eighth more than it runs, so that none of its places stays empty
    ],
)
def test_a_replica_is_full_that_has_all_it_can_run_and_some_to_go_on_with(
    max_running: int, requests: int, is_full: bool
) -> None:
    seen = standing("a", own=requests)
    assert Standing(seen.replica, seen.num_own, replace(seen.report, max_running=max_running), Closed()).is_full == (
        is_full
    )


def test_where_all_are_full_none_has_room() -> None:
    seen = standing("a", own=9)
    full = Standing(seen.replica, 9, replace(seen.report, max_running=4), Closed())
    assert with_room([full, seen]) == [seen]
    assert with_room([full, full]) == NoReplica(("full", "full"))
