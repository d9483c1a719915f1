"""One turn's scaling: who decides the number, what is held where nobody can, and what is written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from support_crds import problems
from support_operator import (
    DEPLOYMENT,
    HASH,
    NOW,
    SETTINGS,
    a_pod,
    a_reading,
    a_service,
    carried_out,
    changed,
    converged,
    rolled_out,
    seen,
)
from support_scaling import straight_curve

from sapwood_operator.autoscaling.recorded import VERDICTS
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.turn import Scaling, scaling_turn
from sapwood_operator.autoscaling.values import Decision, Demand, NoReading, Reading
from sapwood_operator.domain.intent import NO_INTENT, Intent
from sapwood_operator.domain.observed import Observed
from sapwood_operator.domain.plan import StatusChange, plan

UNIX = NOW.timestamp()


def signals(world: Observed, reading: Reading | NoReading, **rest: Any) -> ServiceSignals:
    """What the sampler knows if every replica says the same."""
    demand = Demand(num_waiting=0, num_running=1, idle_seconds=0.0)
    readings = {pod["metadata"]["uid"]: reading for pod in world.pods}
    return ServiceSignals(readings=readings, demand=demand, demand_at=UNIX, at=UNIX, **rest)


def scaled(replicas: int = 2, **autoscaling: Any) -> Observed:
    """A service that scales, all of whose replicas have been ready for long."""
    return rolled_by(converged(replicas), {"maxReplicas": 4, **autoscaling})


def rolled_by(world: Observed, autoscaling: Mapping[str, Any]) -> Observed:
    world = changed(world, autoscaling=autoscaling)
    del dict(world.service["spec"])["replicas"]
    spec = {name: value for name, value in world.service["spec"].items() if name != "replicas"}
    return dataclasses.replace(world, service={**world.service, "spec": spec})


def turn(
    world: Observed, reading: Reading | NoReading, policies: Mapping[str, Any] | None = None, *, now: float = UNIX
) -> Scaling:
    return scaling_turn(world, policies or {}, signals(world, reading), {}, now)


def intent_of(scaling: Scaling) -> Intent:
    assert isinstance(scaling.intent, Intent)
    return scaling.intent


def said(scaling: Scaling) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in intent_of(scaling).conditions}


BUSY, QUIET = a_reading(950.0), a_reading(10.0)
CURVED = dataclasses.replace(BUSY, cached_tokens=475.0, curve=straight_curve(0.5, 0.9))


def test_a_number_in_the_spec_holds_whatever_is_measured() -> None:
    found = turn(converged(3), BUSY)
    assert intent_of(found) == Intent(replicas=3, desired=3, observed=intent_of(found).observed)
    assert not isinstance(found.decision, Decision)


def test_a_service_that_needs_more_gets_more_at_once_with_the_reason_written_down() -> None:
    intent = intent_of(turn(scaled(2), BUSY))
    assert intent.replicas == intent.desired > 2
    assert intent.autoscaling["desired"] == intent.desired
    assert intent.autoscaling["bound"] == "PrefillSpeed"
    (change,) = intent.autoscaling["decisions"]
    assert (change["from"], change["to"], change["reason"]) == (2, intent.desired, "PrefillSpeed")
    assert intent.autoscaling["inputs"]["prompt_tokens_per_second"] == "1900"
    assert {each["replicas"] for each in intent.autoscaling["rejected"]} >= {1, 2}
    assert "predicted" not in intent.autoscaling


def test_hit_ratios_that_the_curve_predicts_are_written_down() -> None:
    predicted = intent_of(turn(scaled(2), CURVED)).autoscaling["predicted"]
    assert predicted == {"1": "0.25", "2": "0.5", "3": "0.75"}


def test_a_policy_in_dry_run_is_recorded_and_not_acted_on() -> None:
    found = turn(scaled(2, mode="DryRun"), BUSY)
    intent = intent_of(found)
    assert (intent.replicas, intent.desired) == (2, 2)
    assert intent.autoscaling["desired"] > 2
    assert said(found)["AutoscalingActive"] == ("False", "DryRun")


def test_without_measurements_the_number_is_held_and_that_is_told() -> None:
    found = turn(scaled(3), NoReading("it does not answer"))
    assert intent_of(found).desired == 3
    assert said(found)["MetricsAvailable"] == ("False", "MetricsMissing")


def test_a_new_service_begins_with_its_minimum() -> None:
    intent = intent_of(turn(seen(a_service(autoscaling={"minReplicas": 2, "maxReplicas": 4})), QUIET))
    assert (intent.replicas, intent.desired) == (2, 2)


# --- The rule


def a_policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "day", "namespace": "team"}, "spec": {"maxReplicas": 4, **spec}}


BY_POLICY = {"policyRef": {"name": "day"}}


def test_a_shared_rule_is_followed_as_it_is_now() -> None:
    world = rolled_by(converged(2), BY_POLICY)
    assert intent_of(turn(world, BUSY, {"day": a_policy()})).desired > 2
    assert intent_of(turn(world, BUSY, {"day": a_policy(maxReplicas=2)})).desired == 2
    assert intent_of(turn(world, QUIET, {"day": a_policy(minReplicas=3)})).desired == 3


@pytest.mark.parametrize(
    ("policies", "reason", "message"),
    [
        ({"night": a_policy()}, "PolicyMissing", "no AutoscalingPolicy 'day': make it, or name another one"),
        (
            {"day": a_policy(minReplicas=9)},
            "InvalidSpec",
            "AutoscalingPolicy 'day': spec.maxReplicas: 4 cannot be used",
        ),
    ],
    ids=["missing", "wrong"],
)
def test_a_rule_that_cannot_be_followed_holds_the_number_and_says_what_to_do(
    policies: dict[str, Any], reason: str, message: str
) -> None:
    world = rolled_by(converged(3), BY_POLICY)
    found = turn(world, BUSY, policies)
    assert (intent_of(found).replicas, intent_of(found).desired) == (3, 3)
    (condition,) = intent_of(found).conditions
    assert (condition.type, condition.status, condition.reason) == ("AutoscalingActive", "False", reason)
    assert message in condition.message


def test_a_rule_that_is_gone_forgets_nothing_that_was_decided() -> None:
    world = rolled_by(converged(3), BY_POLICY)
    remembered = {"desired": 3, "lastScaleTime": "2026-11-30T11:00:00Z"}
    service = {**world.service, "status": {**world.service["status"], "autoscaling": remembered}}
    assert intent_of(turn(dataclasses.replace(world, service=service), BUSY)).autoscaling == remembered


def test_a_spec_that_cannot_be_used_leaves_everything_as_it_is() -> None:
    world = changed(scaled(3), engine={"contextLength": "many"})
    found = turn(world, BUSY)
    assert (intent_of(found).replicas, intent_of(found).desired) == (3, 3)
    assert said(found) == {"AutoscalingActive": ("False", "InvalidSpec")}


def test_a_service_that_is_being_deleted_scales_no_more() -> None:
    world = scaled(3)
    leaving = {**world.service["metadata"], "deletionTimestamp": "2026-11-30T12:00:00Z"}
    assert turn(dataclasses.replace(world, service={**world.service, "metadata": leaving}), BUSY).intent == NO_INTENT


# --- Faults of ours


def broken(world: Observed) -> Observed:
    """A pod that the API server would never give, in place of whatever a mistake of ours stumbles over."""
    pod = a_pod("broken", ready=True)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"}]
    return dataclasses.replace(world, pods=(*world.pods, pod))


def test_a_fault_in_scaling_holds_the_number_and_is_told_and_logged() -> None:
    found = turn(broken(scaled(3)), BUSY)
    assert (intent_of(found).replicas, intent_of(found).desired) == (3, 3)
    assert said(found) == {"AutoscalingActive": ("False", "DecisionFailed")}
    assert not isinstance(found.decision, Decision)
    assert "ValueError" in found.decision.problem


def test_a_fault_in_scaling_lets_a_number_in_the_spec_hold() -> None:
    found = turn(broken(converged(3)), BUSY)
    assert found.intent == NO_INTENT
    assert not isinstance(found.decision, Decision)
    assert found.decision.problem


# --- What is said

WORLDS: list[tuple[Observed, Reading | NoReading]] = [
    (scaled(2), BUSY),
    (scaled(2), CURVED),
    (scaled(2, maxReplicas=2), BUSY),
    (scaled(2, mode="DryRun"), BUSY),
    (scaled(2, mode="Paused"), BUSY),
    (scaled(2, slo={"ttftP90": "1ms"}), QUIET),
    (scaled(2), NoReading("it does not answer")),
    (seen(a_service(autoscaling={"maxReplicas": 2})), QUIET),
    (rolled_by(converged(1), {"policyRef": {"name": "day"}}), QUIET),
    (changed(scaled(2), engine=[]), QUIET),
]


def test_every_condition_that_is_said_stands_in_the_table_with_its_status() -> None:
    told = {each for world, reading in WORLDS for each in intent_of(turn(world, reading)).conditions}
    assert len({(each.type, each.reason) for each in told}) > 8
    for each in told:
        assert VERDICTS[each.type, each.reason][0] == each.status, each


@pytest.mark.parametrize(("world", "reading"), WORLDS, ids=range(len(WORLDS)))
def test_what_is_written_is_what_the_schema_allows(world: Observed, reading: Reading | NoReading) -> None:
    intended = dataclasses.replace(world, intent=intent_of(turn(world, reading)))
    step = plan(intended, SETTINGS, NOW)
    if isinstance(step.status, StatusChange):
        assert problems({**a_service(), "status": step.status.status}) == []


# --- What goes on from before


def test_an_operator_that_starts_anew_goes_on_where_the_service_was_going() -> None:
    """G09: 7 replicas stay 7, though nothing was measured yet."""
    world = scaled(7, maxReplicas=8)
    for known in (signals(world, QUIET), ServiceSignals()):
        assert intent_of(scaling_turn(world, {}, known, {}, UNIX)).desired == 7


def test_who_scales_the_deployment_beside_the_operator_is_overruled() -> None:
    world = scaled(2)
    live: Any = {**world.children[DEPLOYMENT], "spec": {**world.children[DEPLOYMENT]["spec"], "replicas": 4}}
    assert (
        intent_of(turn(dataclasses.replace(world, children={**world.children, DEPLOYMENT: live}), QUIET)).desired == 2
    )


def test_fewer_replicas_are_reached_by_way_of_one_that_leaves() -> None:
    world = changed(converged(3), replicas=2)
    intent = intent_of(turn(world, BUSY))
    assert (intent.replicas, intent.desired) == (3, 2)


def test_one_that_is_not_ready_goes_first_and_at_once() -> None:
    world = changed(converged(3), replicas=2)
    pods = (*world.pods[:2], a_pod(f"chat-engine-{HASH}-2", phase="Pending"))
    intent = intent_of(turn(dataclasses.replace(world, pods=pods), BUSY))
    assert intent.cordoned == (f"chat-engine-{HASH}-2",)
    assert intent.autoscaling == {
        "leaving": [
            {"pod": pods[2]["metadata"]["name"], "uid": pods[2]["metadata"]["uid"], "since": "2026-11-30T12:00:00Z"}
        ]
    }


def test_a_service_that_may_go_to_zero_holds_requests() -> None:
    to_zero = {"minReplicas": 0, "scaleToZero": {"enabled": True}}
    assert intent_of(turn(scaled(1, **to_zero), BUSY)).scales_to_zero
    assert not intent_of(turn(scaled(1), BUSY)).scales_to_zero


@pytest.mark.parametrize("mode", ["DryRun", "Paused"])
def test_a_service_that_nobody_would_wake_holds_none(mode: str) -> None:
    to_zero = {"minReplicas": 0, "mode": mode, "scaleToZero": {"enabled": True}}
    assert not intent_of(turn(scaled(1, **to_zero), BUSY)).scales_to_zero


def test_a_request_that_waits_wakes_a_service_at_zero() -> None:
    world = rolled_by(
        carried_out(rolled_out(converged(0), 0)), {"minReplicas": 0, "maxReplicas": 2, "scaleToZero": {"enabled": True}}
    )
    waiting = ServiceSignals(demand=Demand(num_waiting=3, num_running=0, idle_seconds=0.0), demand_at=UNIX, at=UNIX)
    intent = intent_of(scaling_turn(world, {}, waiting, {}, UNIX))
    assert (intent.replicas, intent.autoscaling["bound"]) == (1, "Demand")


@pytest.mark.parametrize("ttft", ["1s", "4s"])
def test_what_a_shared_policy_promises_is_told_with_what_is_wanted(ttft: str) -> None:
    policy = {"spec": {"maxReplicas": 4, "slo": {"ttftP90": ttft}}}
    found = turn(rolled_by(converged(2), BY_POLICY), QUIET, {"day": policy})
    assert intent_of(found).promised_seconds == float(ttft[:-1])
    assert intent_of(turn(rolled_by(converged(2), BY_POLICY), QUIET)).promised_seconds is None


def at_zero(num_waiting: int, *decided: tuple[int, int], pods: int = 0) -> Scaling:
    """A service whose policy is gone, after these changes, the latest last, with pods that are not ready."""
    world = rolled_by(carried_out(rolled_out(converged(0), 0)), {"policyRef": {"name": "gone"}})
    decisions = [
        {"time": "2026-11-30T11:00:00Z", "from": before, "to": after, "reason": "Idle", "message": ""}
        for before, after in reversed(decided)
    ]
    status = {**world.service["status"], "desiredReplicas": pods, "autoscaling": {"decisions": decisions}}
    starting = tuple(a_pod(f"chat-engine-{HASH}-{number}", phase="Pending") for number in range(pods))
    world = dataclasses.replace(world, service={**world.service, "status": status}, pods=starting)
    demand = Demand(num_waiting=num_waiting, num_running=0, idle_seconds=0.0)
    return scaling_turn(world, {}, ServiceSignals(demand=demand, demand_at=UNIX, at=UNIX), {}, UNIX)


def test_a_service_at_zero_without_a_policy_holds_requests_and_gets_a_replica_for_them() -> None:
    quiet, asked = (at_zero(num_waiting, (1, 0)) for num_waiting in (0, 2))
    assert [(intent_of(each).desired, intent_of(each).scales_to_zero) for each in (quiet, asked)] == [
        (0, True),
        (1, True),
    ]
    assert said(asked)["AutoscalingActive"] == ("False", "PolicyMissing")


@pytest.mark.parametrize(
    ("decided", "holds"),
    [
        (((1, 0),), True),
        (((1, 0), (0, 1)), True),
        (((2, 1), (1, 0)), True),
        (((0, 1), (1, 2), (2, 1)), False),
        ((), False),
    ],
)
def test_what_waits_is_held_until_that_replica_is_ready(decided: tuple[tuple[int, int], ...], holds: bool) -> None:
    intent = intent_of(at_zero(0, *decided, pods=1))
    assert (intent.desired, intent.scales_to_zero) == (1, holds)


def test_what_a_dry_run_wanted_is_decided_anew_once_decisions_are_acted_on() -> None:
    dry = intent_of(turn(scaled(2, mode="DryRun"), BUSY))
    assert dry.autoscaling["desired"] > 2
    world = scaled(2)
    status = {
        **world.service["status"],
        "desiredReplicas": dry.desired,
        "autoscaling": dry.autoscaling,
        "conditions": [dataclasses.asdict(each) for each in dry.conditions],
    }
    world = dataclasses.replace(world, service={**world.service, "status": status})
    quiet, busy = intent_of(turn(world, QUIET)), intent_of(turn(world, BUSY))
    assert (quiet.desired, quiet.autoscaling.get("decisions", ())) == (2, ())
    (change,) = busy.autoscaling["decisions"]
    assert (change["from"], change["to"], change["reason"]) == (2, busy.desired, "PrefillSpeed")


def test_steady_load_changes_nothing_that_is_written() -> None:
    world = scaled(2)
    first = intent_of(turn(world, a_reading(500.0)))
    status = {
        **world.service["status"],
        "desiredReplicas": first.desired,
        "autoscaling": first.autoscaling,
        "observed": first.observed,
        "conditions": [dataclasses.asdict(each) for each in first.conditions],
    }
    later = dataclasses.replace(world, service={**world.service, "status": status})
    for seconds in (15.0, 300.0, 3600.0):
        again = intent_of(turn(later, a_reading(505.0), now=UNIX + seconds))
        assert again == dataclasses.replace(first, recheck_seconds=again.recheck_seconds)
