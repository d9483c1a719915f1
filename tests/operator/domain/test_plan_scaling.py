"""One reconcile, decided, of a service for which scaling wants something: what of it is written, and what is said."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support_operator import HASH, after, changed, conditions_of, converged, message_of, planned, reasons

from sapwood_operator.domain.intent import Intent, ScalingCondition
from sapwood_operator.domain.observed import ApplyProblem, ObjectRef, Observed
from sapwood_operator.domain.plan import Plan, StatusChange
from sapwood_operator.domain.pod_marks import COST_ANNOTATION, FIRST_TO_GO


def meaning(world: Observed, **intent: Any) -> Observed:
    """The world with what scaling wants of it."""
    return replace(world, intent=Intent(**{"replicas": 2, "desired": 2, **intent}))


ONE, TWO = f"chat-engine-{HASH}-0", f"chat-engine-{HASH}-1"
INTENTS: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "as it is": ({}, []),
    "more": ({"replicas": 4, "desired": 4}, [("Deployment", 4)]),
    "fewer": ({"replicas": 1, "desired": 1}, [("Deployment", 1)]),
    "fewer, once one is empty": ({"desired": 1}, []),
    "one is cordoned": ({"desired": 1, "cordoned": (ONE,)}, [("ConfigMap", [ONE])]),
    "one goes first": ({"desired": 1, "first_to_go": (TWO,)}, [("Pod", TWO)]),
    "all of it": (
        {"replicas": 1, "desired": 1, "cordoned": (ONE,), "first_to_go": (ONE,)},
        [("Pod", ONE), ("Deployment", 1), ("ConfigMap", [ONE])],
    ),
}


def written_of(step: Plan) -> list[tuple[str, Any]]:
    """What scaling is about in what is written, in order."""

    def about(document: Mapping[str, Any]) -> Any:
        match document["kind"]:
            case "Deployment":
                return document["spec"]["replicas"]
            case "ConfigMap":
                return json.loads(document["data"]["service.json"])["cordoned"]
        return document["metadata"]["name"]

    return [(document["kind"], about(document)) for document in (*step.marks, *step.applies)]


@pytest.mark.parametrize("name", INTENTS)
def test_what_scaling_wants_is_written_and_nothing_else(name: str) -> None:
    intent, expected = INTENTS[name]
    assert written_of(planned(meaning(converged(2), **intent))) == expected


def test_a_pod_that_goes_first_no_more_loses_its_mark() -> None:
    world = converged(2)
    pods = copy.deepcopy(world.pods)
    pods[0]["metadata"]["annotations"] = {COST_ANNOTATION: FIRST_TO_GO}
    (mark,) = planned(meaning(replace(world, pods=pods))).marks
    assert (mark["metadata"]["name"], mark["metadata"]["annotations"]) == (ONE, {})


def test_the_number_in_a_spec_is_where_it_goes_and_the_deployment_keeps_what_is_not_empty_yet() -> None:
    step = planned(meaning(changed(converged(2), replicas=1), desired=1, cordoned=(ONE,)))
    assert isinstance(step.status, StatusChange)
    assert step.status.status["desiredReplicas"] == 1
    assert conditions_of(step)["Ready"] == ("False", "ReplicasLeaving")
    assert message_of(step, "Serving") == "1 of 1 replicas take requests"
    assert "Scaled" in reasons(step)


def test_what_scaling_says_and_remembers_is_in_the_status_and_goes_with_it() -> None:
    said = ScalingCondition("AutoscalingActive", "True", "Active", "decisions are acted on")
    kept: dict[str, Any] = {"autoscaling": {"desired": 2}, "observed": {"hitRate": "0.61"}}
    step = planned(meaning(converged(2), conditions=(said,), **kept))
    assert isinstance(step.status, StatusChange)
    assert {name: step.status.status[name] for name in kept} == kept
    assert conditions_of(step)["AutoscalingActive"] == ("True", "Active")
    after_that = meaning(after(converged(2), step))
    later = planned(after_that)
    assert isinstance(later.status, StatusChange)
    assert not {"autoscaling", "observed"} & later.status.status.keys()
    assert "AutoscalingActive" not in conditions_of(later)


def test_news_of_single_replicas_are_told_once() -> None:
    world = meaning(converged(2), news=("a goes: it is idle",), autoscaling={"leaving": []}, cordoned=(ONE,))
    step = planned(world)
    assert "ReplicaChosen" in reasons(step)
    assert reasons(planned(after(world, step))) == []


def test_a_service_is_looked_at_again_when_scaling_asks_for_it() -> None:
    assert planned(meaning(converged(2), recheck_seconds=1.0)).requeue_after_seconds == 1.0


def test_a_service_that_wakes_by_itself_holds_requests_although_its_spec_has_no_queue() -> None:
    (route,) = planned(meaning(converged(2), scales_to_zero=True)).applies
    told = json.loads(route["data"]["service.json"])
    assert (told["queue_max_requests"], told["queue_max_wait_seconds"]) == (100, 600.0)
    with_queue = converged(2, routing={"queue": {"maxRequests": 7, "maxWait": "5s"}})
    assert planned(meaning(with_queue, scales_to_zero=True)).applies == ()


def test_what_a_shared_policy_promises_is_what_alerts_hold_the_service_to() -> None:
    world = meaning(converged(2), promised_seconds=0.4)
    (rule,) = planned(world).applies
    assert rule["kind"] == "PrometheusRule"
    assert 'le="0.5"' in json.dumps(rule).replace('\\"', '"')
    after_that = after(world, planned(world))
    assert planned(after_that).applies == ()
    (again,) = planned(meaning(after_that)).applies
    assert 'le="2.0"' in json.dumps(again).replace('\\"', '"')


def test_a_mark_that_the_api_server_refuses_is_told() -> None:
    world = meaning(converged(2), first_to_go=(ONE,))
    problem = ApplyProblem(ObjectRef("v1", "Pod", "team", ONE), "Forbidden", "no right to patch pods")
    assert conditions_of(planned(replace(world, problems=(problem,))))["Degraded"] == ("True", "ApplyRefused")
