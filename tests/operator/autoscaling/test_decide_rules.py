"""Every rule of a decision, by the reason that it gives."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support_scaling import (
    CAPACITY,
    COST,
    ENOUGH,
    FLAT,
    IDLE,
    LOST,
    NOBODY,
    NOW,
    POLICY,
    PROMISED,
    SLOW,
    SURE,
    ZERO,
    Case,
    changed,
    curve_of,
    latencies,
    no_demand,
    reading,
    replica,
    service,
    straight_curve,
    waits,
)

from sapwood_contract.metrics import SCALING_REASONS, SCALING_SIGNALS
from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.explain import RULES
from sapwood_operator.autoscaling.values import Latencies, State
from sapwood_operator.domain.scaling_policy import Behavior

UNSURE = reading(0.45, ttft=Latencies((0.5, 1.0, math.inf), (23.0, 7.0, 0.0)), curve=FLAT)
"""Nine of ten of them all keep to 0.8 s, and of so few it may as well be 0.6 s."""
HUNG = replica(9, LOST, stage="starting", age=1000.0)


CASES = [
    Case(
        sentence="more prompts than planned want as many replicas as compute them",
        seen=service(reading(0.9, curve=FLAT), reading(0.9, curve=FLAT)),
        desired=3,
        reason="PrefillSpeed",
    ),
    Case(
        sentence="a backlog that would last asks for replicas",
        seen=service(reading(0.7, waiting=9.0, waiting_tokens=400_000.0, curve=FLAT)),
        desired=2,
        reason="TimeToFirstToken",
    ),
    Case(
        sentence="requests that hold too much memory want more of it",
        seen=service(reading(0.1, pinned_tokens=0.9 * CAPACITY)),
        desired=2,
        reason="KvMemory",
    ),
    Case(
        sentence="streams that would be too slow want replicas",
        policy=replace(POLICY, itl_p90_seconds=0.03),
        seen=service(reading(0.3, generation_tokens=400.0, curve=FLAT)),
        desired=2,
        reason="DecodeSpeed",
    ),
    Case(
        sentence="users who wait nearly as long as promised get one more",
        policy=PROMISED,
        seen=service(SLOW, SLOW),
        desired=3,
        reason="PromisedLatency",
    ),
    Case(
        sentence="a further cache that saves a replica's work is added for it",
        policy=replace(POLICY, min_payback=0.3),
        seen=service(*[reading(0.6, curve=straight_curve(0.4, 0.95))] * 2),
        desired=3,
        reason="CacheGain",
    ),
    Case(
        sentence="one fewer that sufficed for the whole window is taken",
        seen=service(SURE, SURE, SURE),
        state=ENOUGH,
        desired=2,
        reason="LoadFell",
    ),
    Case(
        sentence="prompt tokens that cost nothing beside their step let a replica go",
        seen=service(*[reading(0.1, cost=replace(COST, prefill_token=0.0))] * 2),
        state=ENOUGH,
        desired=1,
        reason="LoadFell",
    ),
    Case(
        sentence="a service that nobody used for long goes to none",
        policy=ZERO,
        seen=service(IDLE, demand=NOBODY),
        desired=0,
        reason="Idle",
    ),
    Case(
        sentence="a service without a replica gets one as soon as a request waits",
        policy=ZERO,
        seen=service(demand=waits(100)),
        desired=1,
        reason="Demand",
    ),
    Case(
        sentence="a service that everybody left while it woke goes back",
        policy=ZERO,
        seen=service(others=[replica(0, LOST, stage="starting", age=20.0)], demand=NOBODY),
        state=replace(changed(30.0, 0, 1, "Demand"), waking_since=NOW - 30.0),
        desired=0,
        reason="DemandGone",
    ),
    Case(
        sentence="a replica that starts anew after it was ready is not taken for one that nobody waits for any more",
        policy=ZERO,
        seen=service(others=[replica(0, LOST, stage="starting", age=20.0)], demand=NOBODY),
        state=changed(30_000.0, 0, 1, "Demand"),
        desired=1,
        reason="ReplicasPending",
    ),
    Case(
        sentence="answers that ended just now may be of a replica that is not known to be ready yet",
        policy=ZERO,
        seen=service(others=[replica(0, LOST, stage="starting", age=20.0)], demand=replace(NOBODY, idle_seconds=0.5)),
        state=replace(changed(30.0, 0, 1, "Demand"), waking_since=NOW - 30.0),
        desired=1,
        reason="ReplicasPending",
    ),
    Case(
        sentence="requests that reach the last replica on its way out keep the service",
        policy=ZERO,
        seen=replace(
            service(others=[replica(0, IDLE, stage="leaving", age=2.0)], demand=replace(NOBODY, num_running=7)),
            current=0,
        ),
        state=changed(2.0, 1, 0, "Idle"),
        desired=1,
        reason="Demand",
    ),
    Case(
        sentence="fewer replicas than allowed become as many at once",
        policy=replace(POLICY, min_replicas=3),
        seen=service(SURE),
        desired=3,
        reason="Minimum",
    ),
    Case(
        sentence="more replicas than allowed become as many at once",
        policy=replace(POLICY, max_replicas=2),
        seen=service(*[reading(0.1)] * 5),
        desired=2,
        reason="Maximum",
    ),
    Case(
        sentence="load beyond the most replicas gets the most",
        seen=service(reading(0.9, arrivals=20.0, waiting=50.0, admissions=1.0, curve=FLAT)),
        desired=8,
        reason="Maximum",
    ),
    Case(
        sentence="too few readings for too long raise the number to the fallback",
        policy=replace(POLICY, fallback_replicas=4),
        seen=service(LOST, LOST),
        state=State(desired=2, blind_since=NOW - 300.0),
        desired=4,
        reason="Fallback",
    ),
    Case(
        sentence="the fallback takes nothing away",
        policy=replace(POLICY, fallback_replicas=2),
        seen=service(LOST, LOST, LOST),
        state=State(desired=3, blind_since=NOW - 300.0),
        desired=3,
        reason="Fallback",
    ),
    Case(
        sentence="one fewer that suffices without reserve is not taken",
        seen=service(reading(0.37, curve=FLAT), reading(0.37, curve=FLAT)),
        state=ENOUGH,
        desired=2,
        reason="AsNeeded",
    ),
    Case(
        sentence="one fewer that was tried under such a load is not tried again",
        seen=service(SURE, SURE),
        state=replace(ENOUGH, too_many_tokens=6_000),
        desired=2,
        reason="AsNeeded",
    ),
    Case(
        sentence="too few readings hold the number",
        seen=service(reading(0.0), LOST),
        state=ENOUGH,
        desired=2,
        reason="MetricsMissing",
    ),
    Case(
        sentence="a replica that is missed is a busy one, and none goes while it is missed",
        seen=service(*[SURE] * 4, LOST),
        state=ENOUGH,
        desired=5,
        reason="MetricsMissing",
    ),
    Case(
        sentence="costs that are unknown let no replica go",
        seen=service(reading(0.1, cost=None), reading(0.1, cost=None)),
        state=ENOUGH,
        desired=2,
        reason="MetricsMissing",
    ),
    Case(
        sentence="a service without a replica, of which no gateway speaks, stays so",
        policy=ZERO,
        seen=service(demand=no_demand()),
        desired=0,
        reason="MetricsMissing",
    ),
    Case(
        sentence="one fewer that suffices since lately has to suffice for longer",
        seen=service(SURE, SURE, SURE),
        state=State(fewer_since=NOW - 299.0),
        desired=3,
        reason="Stabilizing",
    ),
    Case(
        sentence="a wish for more has to last as long as the policy says",
        policy=replace(POLICY, up=Behavior(window_seconds=60.0)),
        seen=service(reading(0.9, curve=FLAT)),
        state=State(more_since=NOW - 59.0, more_least=2),
        desired=1,
        reason="Stabilizing",
    ),
    Case(
        sentence="steps of the policy hold a rise",
        policy=replace(POLICY, up=Behavior(window_seconds=0.0, select="Disabled")),
        seen=service(reading(0.9, curve=FLAT)),
        desired=1,
        reason="StepLimit",
    ),
    Case(
        sentence="steps of the policy hold a fall",
        policy=replace(POLICY, down=Behavior(window_seconds=0.0, select="Disabled")),
        seen=service(SURE, SURE, SURE),
        desired=3,
        reason="StepLimit",
    ),
    Case(
        sentence="caches that have not settled keep a replica that goes only if the curve is right",
        policy=replace(POLICY, down=Behavior(window_seconds=0.0)),
        seen=service(*[reading(0.4, curve=FLAT)] * 3),
        state=changed(100.0, 2, 3, "PrefillSpeed"),
        desired=3,
        reason="Settling",
    ),
    Case(
        sentence="caches that have not settled keep no replica that load alone lets go",
        policy=replace(POLICY, down=Behavior(window_seconds=0.0)),
        seen=service(SURE, SURE, SURE),
        state=changed(100.0, 2, 3, "PrefillSpeed"),
        desired=2,
        reason="LoadFell",
    ),
    Case(
        sentence="nothing goes while something is on its way",
        seen=service(SURE, SURE, others=[replica(9, LOST, stage="warming", age=9.0)]),
        state=ENOUGH,
        desired=3,
        reason="ReplicasPending",
    ),
    Case(
        sentence="nothing goes while pods of a former revision are left",
        seen=service(SURE, SURE, SURE, rolling=True),
        state=ENOUGH,
        desired=3,
        reason="ReplicasPending",
    ),
    Case(
        sentence="the next one goes only when the last has gone",
        seen=service(SURE, SURE, SURE, others=[replica(9, SURE, stage="leaving")]),
        state=ENOUGH,
        desired=3,
        reason="ReplicasPending",
    ),
    Case(
        sentence="one overloaded replica beside an idle one is a fault of routing, whatever users wait",
        policy=PROMISED,
        seen=service(reading(0.15, running=30.0, ttft=latencies(0.9)), reading(0.15, running=1.0)),
        state=ENOUGH,
        desired=2,
        reason="RoutingSkew",
    ),
    Case(
        sentence="a replica whose cache is missed too much stays",
        seen=service(*[reading(0.2, curve=straight_curve(0.5, 0.9))] * 2),
        state=ENOUGH,
        desired=2,
        reason="HitLoss",
    ),
    Case(
        sentence="a replica whose cache saves a replica's work stays",
        policy=replace(POLICY, min_payback=0.3, max_hit_loss=1.0),
        seen=service(*[reading(0.35, curve=curve_of([(CAPACITY / 2, 0.2), (CAPACITY, 0.5)], 0.5))] * 2),
        state=ENOUGH,
        desired=2,
        reason="PrefillSpeed",
    ),
    Case(
        sentence="while the cluster has no room for what is asked for no more is asked for",
        seen=service(reading(2.0, curve=FLAT), others=[replica(9, LOST, stage="pending", age=200.0)]),
        desired=2,
        reason="InsufficientCapacity",
    ),
    Case(
        sentence="while replicas hang others are tried one by one",
        seen=service(reading(2.0, curve=FLAT), others=[HUNG, replica(8, LOST, stage="starting", age=9.0)]),
        desired=3,
        reason="ReplicasNotReady",
    ),
    Case(
        sentence="while replicas hang there is one more than the load needs at most",
        seen=service(*[reading(0.7, waiting=9.0, waiting_tokens=9e6, curve=FLAT)] * 2, others=[HUNG]),
        desired=3,
        reason="AsNeeded",
    ),
    Case(
        sentence="users who wait because replicas hang get no other",
        policy=PROMISED,
        seen=service(SLOW, SLOW, others=[HUNG]),
        desired=3,
        reason="PromisedLatency",
    ),
    Case(
        sentence="one of several that hang does not go where one more would be asked for again",
        seen=service(*[SURE] * 3, others=[HUNG, replica(8, LOST, stage="starting", age=1000.0)]),
        state=ENOUGH,
        desired=4,
        reason="LoadFell",
    ),
    Case(
        sentence="users who seem to wait nearly as long as promised get one more if it lasts",
        policy=PROMISED,
        seen=service(UNSURE, UNSURE),
        desired=2,
        reason="Stabilizing",
    ),
    Case(
        sentence="users who have waited nearly as long as promised for ten minutes get one more",
        policy=PROMISED,
        seen=service(UNSURE, UNSURE),
        state=State(more_since=NOW - 600.0, more_least=3),
        desired=3,
        reason="PromisedLatency",
    ),
    Case(
        sentence="a paused policy decides nothing",
        policy=replace(POLICY, mode="Paused"),
        seen=service(reading(0.95)),
        state=State(desired=5),
        desired=1,
        reason="Paused",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_rule(case: Case) -> None:
    decision = decide(case.policy, case.seen, case.state, NOW)
    assert (decision.desired, decision.reason) == (case.desired, case.reason), decision.message
    assert decision.message
    assert decision.state.desired == case.desired


def test_every_reason_has_a_sentence_and_a_case() -> None:
    assert set(RULES) == set(SCALING_REASONS)
    assert {case.reason for case in CASES} == set(SCALING_REASONS)


def test_a_decision_says_what_it_was_made_from() -> None:
    decision = decide(PROMISED, service(SLOW, SLOW), State(), NOW)
    assert set(decision.inputs) <= set(SCALING_SIGNALS)
    assert decision.inputs["hit_ratio"] == pytest.approx(0.5)
    assert decision.inputs["prefill_tokens_per_second"] == pytest.approx(9000)
    assert decision.inputs["ttft_p90_seconds"] == pytest.approx(0.8, rel=0.05)
    assert "itl_p90_seconds" not in decision.inputs
    assert decision.predicted == {1: pytest.approx(0.5), 2: pytest.approx(0.5), 3: pytest.approx(0.5)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_the_numbers_next_to_it_are_rejected_with_a_reason(case: Case) -> None:
    decision = decide(case.policy, case.seen, case.state, NOW)
    numbers = [each.replicas for each in decision.rejected]
    assert decision.desired not in numbers
    assert len(numbers) in (1, 2, 3)
    assert all(each.why for each in decision.rejected)


def test_what_decided_stands_in_the_sentence() -> None:
    decision = decide(POLICY, service(reading(0.9, curve=FLAT)), State(), NOW)
    assert decision.message == "1 replica would use 90 % of their prefill speed, planned are 80 %"
    assert [(each.replicas, each.why) for each in decision.rejected] == [
        (0, "minReplicas is 1"),
        (1, "1 replica would use 90 % of their prefill speed, planned are 80 %"),
    ]
