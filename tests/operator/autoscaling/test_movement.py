"""The next step of replicas towards the number that is wanted."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from support_replicas import engine_of, leaving_since, uid

from sapwood_contract.http import EngineState
from sapwood_operator.autoscaling.engines import (
    CacheSeen,
    EngineSeen,
    HandOver,
    LoadSeen,
    LookAtCaches,
    LookAtLoad,
    Unanswered,
    Warm,
)
from sapwood_operator.autoscaling.movement import Lost, Movement, move
from sapwood_operator.autoscaling.pods import PodSeen, Seen
from sapwood_operator.autoscaling.values import Demand, NoDemand
from sapwood_operator.autoscaling.victims import Cache, Progress

NOW = 1_000_000.0
SINCE = NOW - 30.0
"""When a pod that leaves was cordoned."""
DRAIN_SECONDS = 600.0
IDLE = Demand(num_waiting=0, num_running=0, idle_seconds=5.0, running={"a": 0, "b": 0})


def a_pod(name: str, progress: Progress = "ready", **fields: Any) -> PodSeen:
    """One that serves, unless ``progress`` says otherwise."""
    is_ready = progress == "ready"
    return PodSeen(
        **{"name": name, "uid": uid(name), "created": 0.0, "progress": progress, "has_served": is_ready, **fields}
    )


def an_engine(
    *blocks: int, worth: float = 100.0, requests: int = 0, at: float = NOW - 0.5, handed: float | None = SINCE
) -> EngineSeen:
    """One that holds ``blocks`` and was asked lately."""
    return EngineSeen(
        load=LoadSeen(at=at, state="ready", num_requests=requests, work_tokens=0.0),
        cache=CacheSeen(at, Cache(("r1", 16), ((array("Q", blocks), worth),))),
        handed_over=handed,
    )


A, B, C = a_pod("a"), a_pod("b"), a_pod("c")
ENGINES = {uid("a"): an_engine(1, worth=10.0), uid("b"): an_engine(2), uid("c"): an_engine(3)}
LEAVES = (leaving_since("a", SINCE),)


def seen(*pods: PodSeen, asked: int | None = None, **fields: Any) -> Seen:
    """A world in which the Deployment has as many pods as it asks for, and everybody has said what there is to say."""
    told = {"engines": ENGINES, "demand": IDLE, "demand_at": NOW - 0.5}
    return Seen(pods=pods, asked=len(pods) if asked is None else asked, **{**told, **fields})


def moved(world: Seen, wanted: int, *, warms: bool = False) -> Movement:
    return move(world, wanted=wanted, drain_seconds=DRAIN_SECONDS, warms=warms, now=NOW)


# --- who goes


def test_nothing_is_done_where_there_are_as_many_as_are_wanted() -> None:
    assert moved(seen(A, B), 2) == Movement(replicas=2)


def test_without_a_deployment_the_number_is_written_and_nothing_else() -> None:
    assert moved(replace(seen(), asked=None), 2) == Movement(replicas=2)


def test_more_are_asked_for_at_once() -> None:
    assert moved(seen(A), 3) == Movement(replicas=3)


def test_pods_that_were_asked_for_and_are_not_there_yet_are_asked_for_no_more() -> None:
    assert moved(seen(A, B, asked=4), 3) == Movement(replicas=3)
    assert moved(seen(A, B, asked=4), 1).replicas == 2


def test_who_holds_least_is_cordoned_and_the_number_stays() -> None:
    movement = moved(seen(A, B, C), 2)
    assert (movement.replicas, movement.cordoned, movement.first_to_go) == (3, ("a",), ())
    assert movement.leaving == (leaving_since("a", NOW),)
    assert movement.news == ("a goes: 10 tokens of worth, 10 of them nowhere else; b would lose 100",)
    assert movement.recheck_seconds == 1.0


@pytest.mark.parametrize("known", [EngineSeen(), an_engine(1, at=NOW - 61.0)])
def test_nobody_is_chosen_before_it_is_known_what_all_hold(known: EngineSeen) -> None:
    movement = moved(seen(A, B, C, engines={**ENGINES, uid("b"): known}), 2)
    assert movement.cordoned == ()
    assert movement.calls == (LookAtCaches((engine_of("b"),)),)
    assert movement.recheck_seconds == 1.0


def test_one_that_does_not_answer_holds_nobody_up() -> None:
    silent = EngineSeen(load=Unanswered(NOW, "away"), cache=Unanswered(NOW, "away"))
    assert moved(seen(A, B, C, engines={**ENGINES, uid("a"): silent}), 2).cordoned == ("b",)


def test_nobody_is_asked_where_all_go() -> None:
    movement = moved(seen(A, B, engines={}), 0)
    assert (movement.cordoned, movement.calls) == (("a", "b"), ())


def test_one_that_is_not_ready_goes_without_a_question() -> None:
    movement = moved(seen(A, B, a_pod("new", "running"), engines={}), 2)
    assert (movement.cordoned, movement.calls) == (("new",), ())


def test_one_that_is_not_ready_goes_in_the_place_of_one_that_was_chosen() -> None:
    movement = moved(seen(A, B, a_pod("new", "running"), leaving=LEAVES), 2)
    assert movement.cordoned == ("new",)
    assert movement.news == ("new goes: it is not ready", "a stays after all: 2 replicas are wanted")


def test_who_was_chosen_stays_chosen_whatever_it_holds() -> None:
    rich = {**ENGINES, uid("a"): an_engine(1, worth=9e9, requests=1)}
    movement = moved(seen(A, B, C, leaving=LEAVES, engines=rich), 2)
    assert (movement.cordoned, movement.leaving, movement.news) == (("a",), LEAVES, ())


def test_several_go_one_after_the_other_so_that_what_both_hold_stays() -> None:
    same = {uid("a"): an_engine(1), uid("b"): an_engine(1), uid("c"): an_engine(3, worth=50.0)}
    assert moved(seen(A, B, C, engines=same), 1).cordoned == ("a", "c")


def test_when_more_are_wanted_the_one_that_holds_most_stays() -> None:
    both = (*LEAVES, leaving_since("b", SINCE))
    movement = moved(seen(A, B, C, leaving=both), 2)
    assert movement.cordoned == ("a",)
    assert movement.news == ("b stays after all: 2 replicas are wanted",)
    assert moved(seen(A, B, C, leaving=both), 3) == Movement(
        replicas=3,
        news=("a stays after all: 3 replicas are wanted", "b stays after all: 3 replicas are wanted"),
    )


# --- until it is empty


def test_its_prefixes_are_handed_over_to_those_that_stay() -> None:
    engines = {**ENGINES, uid("a"): an_engine(1, handed=None)}
    survivors = (engine_of("b"), engine_of("c"))
    movement = moved(seen(A, B, C, leaving=LEAVES, engines=engines), 2)
    assert movement.calls == (HandOver(engine_of("a"), SINCE, survivors),)
    assert movement.first_to_go == ()


def test_a_former_hand_over_counts_for_nothing() -> None:
    engines = {**ENGINES, uid("a"): an_engine(1, handed=SINCE - 100.0)}
    (call,) = moved(seen(A, B, leaving=LEAVES, engines=engines), 1).calls
    assert isinstance(call, HandOver)


BUSY = {**ENGINES, uid("a"): an_engine(1, requests=1)}
STALE = {**ENGINES, uid("a"): an_engine(1, at=SINCE + 3.0)}
SILENT = {**ENGINES, uid("a"): replace(ENGINES[uid("a")], load=Unanswered(NOW, "away"))}


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"engines": BUSY}, id="the engine has requests"),
        pytest.param({"engines": STALE}, id="it was asked before all gateways had heard of the cordon"),
        pytest.param({"engines": SILENT}, id="it does not answer"),
        pytest.param({"demand": replace(IDLE, running={"a": 1})}, id="a gateway has one on its way"),
        pytest.param({"demand": replace(IDLE, is_whole=False)}, id="a gateway does not answer"),
        pytest.param({"demand": NoDemand("away")}, id="no gateway answers"),
        pytest.param({"demand_at": SINCE + 3.0}, id="gateways were asked before all had heard of the cordon"),
    ],
)
def test_it_is_not_empty_while(told: dict[str, Any]) -> None:
    movement = moved(seen(a_pod("a", is_marked=True), B, leaving=LEAVES, **told), 1)
    assert (movement.replicas, movement.cordoned) == (2, ("a",))
    assert moved(seen(A, B, leaving=LEAVES, **told), 1).first_to_go == ()


def test_it_is_asked_every_second_what_it_has_to_do() -> None:
    due = {**ENGINES, uid("a"): an_engine(1, requests=1, at=NOW - 1.0)}
    assert moved(seen(A, B, leaving=LEAVES, engines=due), 1).calls == (LookAtLoad((engine_of("a"),)),)
    assert moved(seen(A, B, leaving=LEAVES, engines=BUSY), 1).calls == ()


def test_when_it_is_empty_those_are_looked_at_that_hold_what_was_handed_over() -> None:
    engines = {**ENGINES, uid("b"): an_engine(2, at=SINCE)}
    movement = moved(seen(A, B, leaving=LEAVES, engines=engines), 1)
    assert (movement.calls, movement.first_to_go) == ((LookAtCaches((engine_of("b"),)),), ())


def test_when_it_is_empty_it_is_marked() -> None:
    movement = moved(seen(A, B, leaving=LEAVES), 1)
    assert (movement.replicas, movement.first_to_go, movement.cordoned) == (2, ("a",), ("a",))


def test_when_its_drain_is_over_it_is_marked_whatever_it_has_to_do() -> None:
    late = (leaving_since("a", NOW - DRAIN_SECONDS),)
    movement = moved(seen(A, B, leaving=late, engines=BUSY, demand=NoDemand("away")), 1)
    assert (movement.first_to_go, movement.calls) == (("a",), ())


def test_one_whose_process_is_gone_has_no_requests() -> None:
    dead = a_pod("a", "running", has_served=True)
    gone = {**ENGINES, uid("a"): EngineSeen(load=Unanswered(NOW, "nobody listens"))}
    assert moved(seen(dead, B, leaving=LEAVES, engines=gone, demand=NoDemand("away")), 1).calls == (
        LookAtCaches((engine_of("a"),)),
    )


# --- until it is gone

MARKED = a_pod("a", is_marked=True)


def test_when_the_mark_is_seen_there_is_one_less_and_what_it_alone_held_is_told() -> None:
    movement = moved(seen(MARKED, B, leaving=LEAVES), 1)
    assert (movement.replicas, movement.first_to_go, movement.cordoned) == (1, ("a",), ("a",))
    assert movement.lost == (Lost(uid("a"), 10.0),)


def test_what_those_have_that_stay_is_not_lost() -> None:
    engines = {**ENGINES, uid("b"): an_engine(1)}
    assert moved(seen(MARKED, B, leaving=LEAVES, engines=engines), 1).lost == (Lost(uid("a"), 0.0),)


def test_nobody_is_shrunk_by_before_it_is_written_down_who_goes() -> None:
    assert moved(seen(a_pod("a", "running", is_marked=True), B), 1).replicas == 2


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(a_pod("b", "running", has_served=True), id="is not ready"),
        pytest.param(a_pod("b", is_marked=True), id="bears a mark still"),
    ],
)
def test_the_number_stays_while_the_controller_would_take_another_one_that(other: PodSeen) -> None:
    assert moved(seen(MARKED, other, C, leaving=LEAVES), 2).replicas == 3


def test_until_the_controller_has_taken_it_it_stays_marked_and_cordoned() -> None:
    movement = moved(seen(MARKED, B, asked=1, leaving=LEAVES, engines={}), 1)
    assert (movement.replicas, movement.cordoned, movement.first_to_go) == (1, ("a",), ("a",))


def test_when_more_are_wanted_than_the_controller_was_told_it_is_told_first() -> None:
    raised = moved(seen(MARKED, B, asked=1, leaving=LEAVES), 2)
    assert (raised.replicas, raised.cordoned, raised.first_to_go) == (2, ("a",), ("a",))
    back = moved(seen(MARKED, B, asked=2, leaving=LEAVES), 2)
    assert (back.replicas, back.cordoned, back.first_to_go) == (2, (), ())


def test_while_it_is_being_deleted_its_name_is_kept() -> None:
    movement = moved(seen(a_pod("a", is_going=True), B, asked=1, leaving=LEAVES), 1)
    assert (movement.cordoned, movement.leaving, movement.recheck_seconds) == (("a",), LEAVES, float("inf"))
    assert moved(seen(B, leaving=LEAVES), 1) == Movement(replicas=1)


def test_two_that_are_empty_go_at_once() -> None:
    both = (*LEAVES, leaving_since("b", SINCE))
    movement = moved(seen(MARKED, a_pod("b", is_marked=True), C, leaving=both), 1)
    assert movement.replicas == 1
    assert movement.lost == (Lost(uid("a"), 10.0), Lost(uid("b"), 100.0))


def test_to_zero_all_go_as_they_get_empty() -> None:
    both = (*LEAVES, leaving_since("b", SINCE))
    engines = {**ENGINES, uid("b"): an_engine(2, requests=1)}
    movement = moved(seen(MARKED, B, leaving=both, engines=engines), 0)
    assert (movement.replicas, movement.cordoned, movement.first_to_go) == (1, ("a", "b"), ("a",))


# --- rollouts


def test_while_a_rollout_is_under_way_nothing_begins_to_leave() -> None:
    assert moved(seen(A, B, C, rollout="moving"), 1) == Movement(replicas=3)


def test_while_a_rollout_is_under_way_those_that_leave_are_taken_first() -> None:
    movement = moved(seen(A, B, C, a_pod("surge", "running"), asked=3, rollout="moving", leaving=LEAVES), 2)
    assert (movement.replicas, movement.cordoned, movement.first_to_go) == (3, ("a",), ("a",))


def test_while_a_rollout_is_under_way_more_are_asked_for_and_the_cordon_is_lifted() -> None:
    movement = moved(seen(A, B, rollout="moving", leaving=LEAVES), 3)
    assert (movement.replicas, movement.cordoned) == (3, ())


def test_to_zero_a_rollout_is_no_hindrance_once_all_are_empty() -> None:
    both = (*LEAVES, leaving_since("b", SINCE))
    waiting = moved(seen(MARKED, B, rollout="moving", leaving=both), 0)
    assert (waiting.replicas, waiting.first_to_go) == (2, ("a", "b"))
    assert moved(seen(MARKED, a_pod("b", is_marked=True), rollout="moving", leaving=both), 0).replicas == 0


def test_a_rollout_that_is_stuck_keeps_nobody() -> None:
    movement = moved(seen(A, B, C, rollout="stuck", leaving=LEAVES), 1)
    assert (movement.replicas, movement.cordoned, movement.first_to_go) == (1, ("a",), ("a",))


# --- new ones

NEW = a_pod("new", "running")


def a_newcomer(state: EngineState, *, warmed: bool = False, at: float = NOW - 0.5) -> dict[str, EngineSeen]:
    load = LoadSeen(at=at, state=state, num_requests=0, work_tokens=0.0)
    return {**ENGINES, uid("new"): EngineSeen(load=load, warmed=warmed)}


@pytest.mark.parametrize("engines", [{}, a_newcomer("loading", at=NOW - 2.0)])
def test_a_new_one_is_asked_whether_it_waits_for_prefixes(engines: dict[str, EngineSeen]) -> None:
    movement = moved(seen(A, NEW, engines=engines), 2, warms=True)
    assert (movement.calls, movement.recheck_seconds) == ((LookAtLoad((engine_of("new"),)),), 2.0)


def test_a_new_one_that_waits_gets_the_prefixes_of_all_that_serve() -> None:
    movement = moved(seen(A, B, NEW, engines=a_newcomer("warming")), 3, warms=True)
    assert movement.calls == (Warm(engine_of("new"), (engine_of("a"), engine_of("b"))),)


def test_a_new_one_that_waits_is_told_that_there_is_nothing() -> None:
    assert moved(seen(NEW, engines=a_newcomer("warming")), 1, warms=True).calls == (Warm(engine_of("new"), ()),)


@pytest.mark.parametrize("engines", [a_newcomer("loading"), a_newcomer("warming", warmed=True)])
def test_a_new_one_gets_prefixes_when_it_waits_for_them_and_once(engines: dict[str, EngineSeen]) -> None:
    assert moved(seen(A, NEW, engines=engines), 2, warms=True).calls == ()


def test_a_new_one_is_left_alone_where_it_waits_for_nothing_or_is_to_go() -> None:
    engines = a_newcomer("warming")
    assert moved(seen(A, NEW, engines=engines), 2).calls == ()
    assert moved(seen(A, NEW, engines=engines), 1, warms=True).calls == ()
    failed = a_pod("new", "running", has_served=True)
    assert moved(seen(A, failed, engines={}), 2, warms=True).calls == ()
