"""What Prometheus answers is joined on the pods that live, and a point that is none is no scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_scrapes import samples

from sapwood_operator.autoscaling.prometheus_answers import UNREADABLE, query, read_answer
from sapwood_operator.autoscaling.readings import reading
from sapwood_operator.autoscaling.scrapes import NAMES
from sapwood_operator.autoscaling.signals import EnginePod, Heard
from sapwood_operator.autoscaling.values import NoReading, Reading

POD = EnginePod(uid="uid-a", name="chat-a", url="", after=100.0)


def series(
    times: Iterable[float] = (115.0, 130.0),
    *,
    pod: str = "chat-a",
    instance: str = "10.0.0.1:8001",
    values: dict[str, float] | None = None,
    last: Any = None,
) -> list[dict[str, Any]]:
    """All series of one pod; ``last``: what stands in place of the last value of sapwood_requests_running."""
    moments, found = list(times), list[dict[str, Any]]()
    for sample in samples(**(values or {})):
        labels = {**dict(sample.labels), "pod": pod, "job": "sapwood", "instance": instance, "namespace": "team"}
        points: list[list[Any]] = [[at, repr(sample.value)] for at in moments]
        if last is not None and sample.name == "sapwood_requests_running":
            points[-1][1] = last
        found.append({"metric": {"__name__": sample.name, **labels}, "values": points})
    return found


def answer(result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def heard(result: Any) -> Heard:
    return read_answer(answer(result), [POD])[POD.uid]


def times(told: Heard) -> list[float]:
    return [each.at for each in told.scrapes]


def test_the_query_asks_for_every_name_of_one_service_alone() -> None:
    asked = query("team", "chat")
    assert asked.endswith('",namespace="team",inference_service="chat"}[90s]')
    assert all(name in asked for name in NAMES)


def test_each_moment_at_which_prometheus_scraped_is_a_scrape() -> None:
    told = heard(series())
    assert times(told) == [115.0, 130.0]
    assert told.problem is None
    assert isinstance(reading(told.scrapes, 130.0), Reading)


def test_the_series_of_dead_pods_and_of_former_ones_of_the_name_move_nothing() -> None:
    dead = series(pod="chat-dead", values={"sapwood_requests_running": 900.0})
    former = series([70.0, 85.0], values={"sapwood_requests_running": 900.0})
    alive = series()
    joined = [{**each, "values": old["values"] + each["values"]} for each, old in zip(alive, former, strict=True)]
    assert heard(dead + joined) == heard(alive)


def test_a_pod_that_is_scraped_twice_counts_once() -> None:
    twice = series([114.0, 129.0], instance="10.0.0.1:9999") + series()
    assert heard(twice) == heard(series())


def test_a_pod_without_series_is_told_of() -> None:
    told = heard(series(pod="another"))
    assert told.scrapes == ()
    assert told.problem is not None
    assert "inference_service" in told.problem.why


def test_a_pod_of_which_nothing_is_new_has_no_problem() -> None:
    assert heard(series([70.0, 100.0])) == Heard()


# --- G01


@pytest.mark.parametrize("last", ["NaN", "+Inf", "-1", "", "many", False, 7, [], {}])
def test_g01_a_last_point_that_is_none_is_not_0_and_leaves_the_former_ones(last: Any) -> None:
    told = heard(series(last=last))
    assert times(told) == [115.0]
    assert told.problem is not None
    assert "sapwood_requests_running" in told.problem.why
    assert isinstance(reading(told.scrapes, 130.0, problem=told.problem), NoReading)


def test_g01_a_null_point_is_none_too() -> None:
    result = series()
    for each in result:
        each["values"][-1][1] = None
    assert times(heard(result)) == [115.0]


def test_g01_an_empty_vector_is_unknown() -> None:
    told = heard([])
    assert reading(told.scrapes, 130.0, problem=told.problem) == NoReading(told.problem.why if told.problem else "")


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 7, "", [], {}, {"status": "error", "error": "down"}, {"status": "success"}),
        *(answer(None), answer(7), answer([None]), answer([{}]), answer([{"metric": None}])),
        answer([{"metric": {"pod": "chat-a"}}]),
        answer([{"metric": {"pod": "chat-a"}, "values": [[120.0, "1"]]}]),
        answer([{"metric": {"pod": "chat-a", "__name__": "up"}, "values": [["now", "1"]]}]),
        answer([{"metric": {"pod": "chat-a", "__name__": "up"}, "values": [[float("nan"), "1"]]}]),
        answer([{"metric": {"pod": "chat-a", "__name__": "up"}, "values": [7]}]),
        {"status": "success", "data": {"resultType": "scalar", "result": [120.0, "1"]}},
    ],
)
def test_g01_an_answer_that_is_not_understood_is_unknown(wrong: Any) -> None:
    assert read_answer(wrong, [POD]) == {POD.uid: Heard(problem=UNREADABLE)}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["status", "data", "result", "metric"]), inner),
    max_leaves=10,
)


@given(JSON | JSON.map(answer))
def test_whatever_is_answered_each_pod_has_something(told: Any) -> None:
    assert read_answer(told, [POD])[POD.uid].scrapes == ()
