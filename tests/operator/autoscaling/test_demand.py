"""What gateways have to do is added up, and what one of them does not say is never nothing (case G11)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sapwood_contract.http import GatewayDemand, ServiceDemand
from sapwood_operator.autoscaling.demand import Gateway, GatewaysHeard, demand_of, gateways_in, is_sane
from sapwood_operator.autoscaling.values import Demand, NoDemand


def told(
    *,
    waiting: int = 0,
    running: int = 0,
    idle: float = 0.0,
    service: str = "chat",
    replicas: dict[str, int] | None = None,
) -> GatewayDemand:
    own = ServiceDemand("team", service, waiting, running, 9, idle, replicas or {})
    return GatewayDemand("e1", (ServiceDemand("other", service, 70, 70, 70, 0.0, {"chat-a": 70}), own))


def heard(*answers: GatewayDemand, problems: dict[str, str] | None = None) -> GatewaysHeard:
    names = {f"gateway-{number}": each for number, each in enumerate(answers)}
    return GatewaysHeard(at=7.0, answers=names, problems=problems or {})


def test_g11_each_gateway_has_a_part_of_the_requests_and_the_sum_counts() -> None:
    first = told(waiting=1, running=3, idle=0.0, replicas={"chat-a": 2, "chat-b": 1})
    second = told(waiting=0, running=2, idle=0.0, replicas={"chat-b": 2, "chat-c": 0})
    assert demand_of(heard(first, second), "team", "chat") == Demand(
        num_waiting=1, num_running=5, idle_seconds=0.0, running={"chat-a": 2, "chat-b": 3, "chat-c": 0}
    )


def test_g11_idle_is_what_is_idle_at_every_gateway() -> None:
    found = demand_of(heard(told(idle=900.0), told(idle=3.0)), "team", "chat")
    assert isinstance(found, Demand)
    assert (found.idle_seconds, found.is_whole) == (3.0, True)


@pytest.mark.parametrize(
    "partly",
    [
        heard(told(idle=900.0, waiting=2), problems={"gateway-9": "answers 500"}),
        heard(told(idle=900.0, waiting=2), GatewayDemand("e2", ())),
    ],
    ids=["one is away", "one has begun anew and knows no service"],
)
def test_a_gateway_that_did_not_say_leaves_the_least_that_there_is_and_nothing_idle(partly: GatewaysHeard) -> None:
    found = demand_of(partly, "team", "chat")
    assert isinstance(found, Demand)
    assert (found.num_waiting, found.idle_seconds, found.is_whole) == (2, 0.0, False)


@pytest.mark.parametrize(
    ("nothing", "why"),
    [
        (heard(), "there is no gateway"),
        (heard(told(service="another")), "no gateway knows the service yet"),
        (heard(problems={"gateway-1": "answers 500"}), "gateway gateway-1 answers 500"),
        (heard(problems={"a": "answers 500", "b": "is slow"}), "gateway a answers 500; 1 others do not say it either"),
        (GatewaysHeard(at=7.0, nobody_asked="the API server is away"), "the API server is away"),
    ],
)
def test_what_no_gateway_says_is_unknown_and_told_why(nothing: GatewaysHeard, why: str) -> None:
    assert demand_of(nothing, "team", "chat") == NoDemand(why)


def routed(at: float, **gateways: tuple[str, int, int]) -> GatewaysHeard:
    """Gateways as their epoch, how many requests they gave to replicas, and how many of them by prefix."""
    answers = {
        name: GatewayDemand(epoch, (ServiceDemand("team", "chat", 0, 0, num, 0.0, {}, num, by_prefix),))
        for name, (epoch, num, by_prefix) in gateways.items()
    }
    return GatewaysHeard(at=at, answers=answers)


@pytest.mark.parametrize(
    ("former", "share"),
    [
        ([], None),
        ([routed(60.0, a=("e1", 100, 100), b=("e2", 0, 0))], 0.75),
        ([routed(60.0, a=("e1", 100, 100), b=("e2", 0, 0)), routed(80.0, a=("e1", 130, 100))], 0.75),
        ([routed(5.0, a=("e1", 0, 0)), routed(60.0, a=("e1", 100, 100), b=("e2", 0, 0))], 0.75),
        ([routed(60.0, a=("e1", 100, 100))], 0.6),
        ([routed(60.0, a=("e0", 0, 0), b=("e2", 0, 0))], 0.9),
        ([routed(60.0, a=("e1", 185, 140))], None),
        ([routed(60.0, a=("e1", 900, 900))], None),
        ([routed(5.0, a=("e1", 0, 0))], None),
        ([routed(100.0, a=("e1", 0, 0))], None),
    ],
    ids=[
        *("heard once", "both", "the oldest counts", "what is too old does not", "a gateway that is new does not"),
        *("one that began anew does not", "too few", "counts that fell", "nothing young", "the clock was set back"),
    ],
)
def test_the_share_that_went_by_prefix_is_that_of_the_last_minute_and_a_half(
    former: list[GatewaysHeard], share: float | None
) -> None:
    present = routed(100.0, a=("e1", 200, 160), b=("e2", 100, 90))
    found = demand_of(present, "team", "chat", former=former)
    assert isinstance(found, Demand)
    assert found.routed_by_prefix == share


@pytest.mark.parametrize(
    "wrong",
    [
        *(told(waiting=-1), told(running=-1), told(replicas={"chat-a": -2})),
        *(told(idle=-1.0), told(idle=math.nan), told(idle=math.inf)),
        GatewayDemand("e1", (ServiceDemand("team", "chat", 0, 0, 9, 0.0, {}, 3, 4),)),
    ],
)
def test_an_answer_that_cannot_be_true_is_none(wrong: GatewayDemand) -> None:
    assert is_sane(told(waiting=1, running=2, idle=3.0, replicas={"chat-a": 2}))
    assert is_sane(told())
    assert not is_sane(wrong)


def slice_of(family: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    return {"addressType": family, "endpoints": list(endpoints)}


def test_gateways_are_found_once_each_ready_or_not() -> None:
    ready = {"addresses": ["127.0.0.1"], "targetRef": {"name": "gateway-a"}, "conditions": {"ready": True}}
    draining = {"addresses": ["127.0.0.1"], "targetRef": {"name": "gateway-b"}, "conditions": {"ready": False}}
    again = {"addresses": ["fd00::1"], "targetRef": {"name": "gateway-a"}}
    unnamed = {"addresses": ["fd00::3"]}
    slices = [slice_of("IPv6", again, unnamed), slice_of("IPv4", draining, ready), {"addressType": "IPv4"}]
    assert gateways_in(slices, admin_port=8081) == (
        Gateway("fd00::3", "http://[fd00::3]:8081"),
        Gateway("gateway-a", "http://127.0.0.1:8081"),
        Gateway("gateway-b", "http://127.0.0.1:8081"),
    )
