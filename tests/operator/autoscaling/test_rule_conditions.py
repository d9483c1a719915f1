"""What else a rule asks for beside its bound, one thing at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_scaling import (
    BUSY,
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
    latencies,
    reading,
    replica,
    service,
    straight_curve,
)

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Demand, Observation, State
from sapwood_operator.domain.scaling_policy import Behavior

PAYS = replace(POLICY, min_payback=0.2, max_hit_loss=1.0)
SAVING = reading(0.2, curve=straight_curve(0.5, 0.9))
"""Of two such replicas each saves a quarter of a replica's work by its cache, and a third would too."""
COMING = replica(9, LOST, stage="starting", age=300.0)


def asks(num_waiting: int = 0, num_running: int = 0) -> Demand:
    """What gateways have to do."""
    return Demand(num_waiting=num_waiting, num_running=num_running, idle_seconds=0.0)


def hanging(work: float, *, num_ready: int, num_hung: int) -> Observation:
    """A service that has work for so many replicas, beside some that have not got ready in a quarter of an hour."""
    hung = [replica(9 + number, LOST, stage="starting", age=1000.0) for number in range(num_hung)]
    return service(*[reading(work / num_ready, curve=FLAT)] * num_ready, others=hung)


CASES = [
    Case(
        sentence="of two wishes the larger one counts",
        policy=PROMISED,
        seen=service(reading(2.0, ttft=latencies(0.9), curve=FLAT)),
        desired=3,
        reason="PrefillSpeed",
    ),
    Case(
        sentence="no latency asks for a replica while one is still on its way",
        policy=PROMISED,
        seen=service(SLOW, SLOW, others=[COMING]),
        state=changed(300.0, 2, 3),
        desired=3,
        reason="ReplicasPending",
    ),
    Case(
        sentence="no cache is added for its savings while a replica is on its way in",
        policy=replace(PAYS, min_payback=0.1),
        seen=service(SAVING, SAVING, others=[COMING]),
        desired=3,
        reason="ReplicasPending",
    ),
    Case(
        sentence="nor while one is on its way out",
        policy=PAYS,
        seen=service(SAVING, SAVING, others=[replica(9, SAVING, stage="leaving")]),
        desired=2,
        reason="ReplicasPending",
    ),
    Case(
        sentence="nor while pods of a former revision are left",
        policy=PAYS,
        seen=service(SAVING, SAVING, rolling=True),
        desired=2,
        reason="ReplicasPending",
    ),
    Case(
        sentence="nor for requests that go anywhere",
        policy=PAYS,
        seen=service(SAVING, SAVING, by_prefix=False),
        desired=2,
        reason="Stabilizing",
    ),
    Case(
        sentence="nor where fewer than minAffinity go where their prefix is",
        policy=replace(PAYS, min_payback=0.05),
        seen=service(SAVING, SAVING, demand=replace(BUSY, routed_by_prefix=0.69)),
        desired=2,
        reason="Stabilizing",
    ),
    Case(
        sentence="where as many do it is",
        policy=replace(PAYS, min_payback=0.05),
        seen=service(SAVING, SAVING, demand=replace(BUSY, routed_by_prefix=0.71)),
        desired=3,
        reason="CacheGain",
    ),
    Case(
        sentence="nor while one did not report",
        policy=PAYS,
        seen=service(*[SAVING] * 4, LOST),
        desired=5,
        reason="MetricsMissing",
    ),
    Case(
        sentence="nor before the caches have settled",
        policy=PAYS,
        seen=service(SAVING, SAVING),
        state=changed(119.0, 1, 2),
        desired=2,
        reason="CacheGain",
    ),
    Case(
        sentence="once they have it is",
        policy=PAYS,
        seen=service(SAVING, SAVING),
        state=changed(121.0, 1, 2),
        desired=3,
        reason="CacheGain",
    ),
    Case(
        sentence="nor where nobody knows what a token costs",
        policy=PAYS,
        seen=service(*[replace(SAVING, cost=None)] * 2),
        desired=2,
        reason="MetricsMissing",
    ),
    Case(
        sentence="a cache that saves nothing is not added, however little it has to save",
        policy=replace(POLICY, min_payback=0.0),
        seen=service(SURE, SURE, SURE),
        state=ENOUGH,
        desired=2,
        reason="LoadFell",
    ),
    Case(
        sentence="where no curve was measured caches neither add a replica nor keep one",
        policy=replace(POLICY, min_payback=0.1),
        seen=service(*[reading(0.1)] * 3),
        state=ENOUGH,
        desired=2,
        reason="LoadFell",
    ),
    Case(
        sentence="nor do they have to settle",
        policy=replace(POLICY, down=Behavior(window_seconds=0.0)),
        seen=service(*[reading(0.4)] * 3, by_prefix=False),
        state=changed(100.0, 2, 3),
        desired=2,
        reason="LoadFell",
    ),
    Case(
        sentence="where nobody knows what a token costs a latency asks for a replica all the same",
        policy=PROMISED,
        seen=service(*[replace(SLOW, cost=None)] * 2),
        desired=3,
        reason="PromisedLatency",
    ),
    Case(
        sentence="of several that hang none goes for which one more would be asked for again",
        seen=hanging(2.6, num_ready=3, num_hung=2),
        state=ENOUGH,
        desired=5,
        reason="ReplicasNotReady",
    ),
    Case(
        sentence="one that hangs goes where the others suffice",
        seen=hanging(2.6, num_ready=4, num_hung=1),
        state=ENOUGH,
        desired=4,
        reason="LoadFell",
    ),
    Case(
        sentence="one of several goes where one fewer than are left would suffice",
        seen=hanging(1.9, num_ready=3, num_hung=2),
        state=ENOUGH,
        desired=4,
        reason="LoadFell",
    ),
    Case(
        sentence="nobody goes below minReplicas",
        policy=replace(POLICY, min_replicas=3),
        seen=service(SURE, SURE, SURE),
        state=ENOUGH,
        desired=3,
        reason="Minimum",
    ),
    Case(
        sentence="a backlog of before a change asks for nothing more",
        seen=service(reading(0.35, waiting=9.0, waiting_tokens=900_000.0, curve=FLAT), reading(0.35, curve=FLAT)),
        state=changed(60.0, 1, 2),
        desired=2,
        reason="AsNeeded",
    ),
    Case(
        sentence="one that is still there when the change is past does",
        seen=service(reading(0.35, waiting=9.0, waiting_tokens=900_000.0, curve=FLAT), reading(0.35, curve=FLAT)),
        state=changed(91.0, 1, 2),
        desired=3,
        reason="TimeToFirstToken",
    ),
    Case(
        sentence="in a dry run too",
        policy=replace(POLICY, mode="DryRun"),
        seen=service(reading(0.35, waiting=9.0, waiting_tokens=900_000.0, curve=FLAT), reading(0.35, curve=FLAT)),
        desired=3,
        reason="TimeToFirstToken",
    ),
    Case(
        sentence="an idle service that may not go to none keeps its minimum",
        seen=service(IDLE, demand=NOBODY),
        desired=1,
        reason="Minimum",
    ),
    Case(
        sentence="one request that waits wakes a service",
        policy=ZERO,
        seen=service(demand=asks(num_waiting=1)),
        desired=1,
        reason="Demand",
    ),
    Case(
        sentence="one request that runs keeps a service on its way to none",
        policy=ZERO,
        seen=replace(service(others=[replica(0, IDLE, stage="leaving")], demand=asks(num_running=1)), current=0),
        state=changed(2.0, 1, 0, "Idle"),
        desired=1,
        reason="Demand",
    ),
    Case(
        sentence="one request that waits keeps a service that was idle",
        policy=replace(ZERO, idle_seconds=0.0),
        seen=service(IDLE, demand=asks(num_waiting=1)),
        desired=1,
        reason="Minimum",
    ),
    Case(
        sentence="a service of which one replica got ready just now may be idle all the same",
        policy=ZERO,
        seen=service(IDLE, others=[replica(1, IDLE, age=10.0)], demand=NOBODY),
        desired=0,
        reason="Idle",
    ),
    Case(
        sentence="KV memory that is unknown lets no replica go",
        seen=service(*[replace(SURE, capacity_tokens=0.0)] * 3),
        state=ENOUGH,
        desired=3,
        reason="MetricsMissing",
    ),
    Case(
        sentence="streams that are too slow keep a replica by what is promised of them",
        policy=replace(POLICY, itl_p90_seconds=0.02),
        seen=service(*[reading(0.1, generation_tokens=100.0, itl=latencies(0.0153), curve=FLAT)] * 2),
        state=ENOUGH,
        desired=2,
        reason="PromisedLatency",
    ),
    Case(
        sentence="without a fallback the number is held for ever",
        seen=service(LOST, LOST),
        state=State(desired=2, blind_since=NOW - 50_000.0),
        desired=2,
        reason="MetricsMissing",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_what_a_rule_asks_for(case: Case) -> None:
    decision = decide(case.policy, case.seen, case.state, NOW)
    assert (decision.desired, decision.reason) == (case.desired, case.reason), decision.message
