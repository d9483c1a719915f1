"""What each step of a movement waits for, one thing at a time."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from support_replicas import engine_of, leaving_since, uid

from sapwood_operator.autoscaling.emptying import CORDON_SECONDS
from sapwood_operator.autoscaling.engines import CacheSeen, EngineSeen, LoadSeen, LookAtLoad, Unanswered, Warm
from sapwood_operator.autoscaling.movement import Movement, move
from sapwood_operator.autoscaling.pods import PodSeen, Seen
from sapwood_operator.autoscaling.values import Demand
from sapwood_operator.autoscaling.victims import Cache, Progress

NOW = 1_000_000.0
SINCE = NOW - 30.0
"""When a pod that leaves was cordoned."""
HEARD = SINCE + CORDON_SECONDS
"""By then every gateway has heard of it."""
NOTHING = Demand(num_waiting=0, num_running=0, idle_seconds=5.0)


def a_pod(name: str, progress: Progress = "ready", **fields: Any) -> PodSeen:
    """One that serves, unless ``progress`` says otherwise."""
    is_ready = progress == "ready"
    return PodSeen(
        **{"name": name, "uid": uid(name), "created": 0.0, "progress": progress, "has_served": is_ready, **fields}
    )


def an_engine(block: int, *, at: float = NOW - 0.5, looked_at: float = NOW - 0.5) -> EngineSeen:
    """One that has nothing to do, as it said then."""
    return EngineSeen(
        load=LoadSeen(at=at, state="ready", num_requests=0, work_tokens=0.0),
        cache=CacheSeen(looked_at, Cache(("r1", 16), ((array("Q", [block]), 10.0 * block),))),
        handed_over=SINCE,
    )


A, B = a_pod("a"), a_pod("b")
ENGINES = {uid("a"): an_engine(1), uid("b"): an_engine(2)}
LEAVES = (leaving_since("a", SINCE),)


def moved(*pods: PodSeen, wanted: int, warms: bool = False, **fields: Any) -> Movement:
    """Return the next step where the Deployment has as many pods as it asks for."""
    told = {"engines": ENGINES, "demand": NOTHING, "demand_at": NOW - 0.5, **fields}
    return move(Seen(pods=pods, asked=len(pods), **told), wanted=wanted, drain_seconds=600.0, warms=warms, now=NOW)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({}, id="no gateway names it"),
        pytest.param({"demand_at": HEARD}, id="gateways were asked as soon as all had heard of the cordon"),
        pytest.param({"engines": {**ENGINES, uid("a"): an_engine(1, at=HEARD)}}, id="its engine was"),
        pytest.param({"engines": {**ENGINES, uid("b"): an_engine(2, looked_at=HEARD)}}, id="what stays was looked at"),
    ],
)
def test_it_is_empty_where(told: dict[str, Any]) -> None:
    assert moved(A, B, wanted=1, leaving=LEAVES, **told).first_to_go == ("a",)


def test_where_all_go_nobody_is_handed_anything() -> None:
    kept = {name: replace(engine, handed_over=None) for name, engine in ENGINES.items()}
    both = (*LEAVES, leaving_since("b", SINCE))
    movement = moved(A, B, wanted=0, leaving=both, engines=kept)
    assert (movement.calls, movement.first_to_go) == ((), ("a", "b"))


def test_one_that_never_served_goes_without_being_asked() -> None:
    movement = moved(B, a_pod("a", "running"), wanted=1, leaving=LEAVES, engines={})
    assert (movement.calls, movement.first_to_go) == ((), ("a",))


def test_one_that_is_ready_may_have_requests_before_its_pod_says_that_it_started() -> None:
    ready = a_pod("a", has_served=False)
    assert moved(B, ready, wanted=1, leaving=LEAVES, demand=replace(NOTHING, running={"a": 1})).first_to_go == ()
    assert moved(B, ready, wanted=1, leaving=LEAVES).first_to_go == ("a",)


def test_one_that_served_and_is_not_ready_any_more_is_asked() -> None:
    movement = moved(B, a_pod("a", "running", has_served=True), wanted=1, leaving=LEAVES, engines={})
    assert (movement.calls, movement.first_to_go) == ((LookAtLoad((engine_of("a"),)),), ())


def test_one_that_served_and_whose_engine_is_gone_has_nothing_to_do() -> None:
    silent = replace(ENGINES[uid("a")], load=Unanswered(SINCE, "away"))
    pod = a_pod("a", "running", has_served=True)
    assert moved(B, pod, wanted=1, leaving=LEAVES, engines={**ENGINES, uid("a"): silent}).first_to_go == ("a",)
    older = replace(silent, load=Unanswered(SINCE - 1.0, "away"))
    assert moved(B, pod, wanted=1, leaving=LEAVES, engines={**ENGINES, uid("a"): older}).first_to_go == ()


def test_while_revisions_change_who_goes_is_marked_before_it_is_empty() -> None:
    busy = {
        **ENGINES,
        uid("a"): replace(an_engine(1), load=LoadSeen(at=NOW, state="ready", num_requests=1, work_tokens=9.0)),
    }
    assert moved(A, B, wanted=1, leaving=LEAVES, engines=busy).first_to_go == ()
    assert moved(A, B, wanted=1, leaving=LEAVES, engines=busy, rollout="moving").first_to_go == ("a",)


@pytest.mark.parametrize(
    ("newcomer", "is_asked"),
    [
        (a_pod("n", "unplaced"), False),
        (a_pod("n", "waiting"), False),
        (a_pod("n", "running"), True),
        (a_pod("n", "running", has_served=True), False),
    ],
    ids=["no node takes it", "its engine is not started", "its engine runs", "its engine was ready before"],
)
def test_a_newcomer_is_asked_once_its_engine_runs_for_the_first_time(newcomer: PodSeen, is_asked: bool) -> None:
    movement = moved(A, B, newcomer, wanted=3, warms=True)
    assert movement.calls == ((LookAtLoad((engine_of("n"),)),) if is_asked else ())


@pytest.mark.parametrize(("state", "is_warmed"), [("warming", True), ("loading", False), ("ready", False)])
def test_a_newcomer_is_given_prefixes_while_it_waits_for_them(state: Any, is_warmed: bool) -> None:
    said = EngineSeen(load=LoadSeen(at=NOW, state=state, num_requests=0, work_tokens=0.0))
    movement = moved(A, B, a_pod("n", "running"), wanted=3, warms=True, engines={**ENGINES, uid("n"): said})
    assert movement.calls == ((Warm(engine_of("n"), (engine_of("a"), engine_of("b"))),) if is_warmed else ())
    given = replace(said, warmed=True)
    again = moved(A, B, a_pod("n", "running"), wanted=3, warms=True, engines={**ENGINES, uid("n"): given})
    assert again.calls == ()
