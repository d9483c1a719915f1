"""Whole scale-ups and scale-downs of a service: turns of the reconciler in a small cluster, whatever goes wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support_operator import a_reading
from support_small_cluster import SmallCluster
from support_small_operator import Killed, Operator, operating

from sapwood_operator.autoscaling.engines import HandOver, Warm
from sapwood_operator.autoscaling.values import NoReading

BUSY, STEADY = a_reading(950.0), a_reading(500.0)


async def made(operator: Operator, **spec: Any) -> None:
    """Let the service come up from nothing."""
    operator.cluster.serve(**spec)
    await operator.run(6)
    assert operator.cluster.said("Ready") == ("True", "AllReplicasReady")


# --- Up


async def test_load_that_rises_brings_replicas_that_are_warmed_before_they_take_traffic() -> None:
    cluster = SmallCluster(reading=STEADY)
    async with operating(cluster) as operator:
        await made(operator, autoscaling={"minReplicas": 2, "maxReplicas": 3})
        former = cluster.names
        cluster.reading = BUSY
        await operator.run()
        assert (cluster.replicas, cluster.status["desiredReplicas"]) == (3, 3)
        (new,) = cluster.names - former
        cluster.reading = STEADY
        await operator.run(4)
    (told,) = [note for note in cluster.told("Scaled") if note.startswith("from 2 to 3")]
    assert "PrefillSpeed" in told
    warmings = [call for call in operator.engines.calls if isinstance(call, Warm) and call.newcomer.pod == new]
    assert {source.pod for source in warmings[0].sources} == former
    assert cluster.said("Ready") == ("True", "AllReplicasReady")
    assert cluster.status["autoscaling"]["decisions"][0]["reason"] == "PrefillSpeed"


async def test_a_converged_service_that_scales_writes_nothing() -> None:
    cluster = SmallCluster(reading=STEADY)
    async with operating(cluster) as operator:
        await made(operator, autoscaling={"minReplicas": 2, "maxReplicas": 3})
        await operator.run(30)
        num_writes = len(cluster.writes)
        for tokens in (495.0, 505.0, 500.0):
            cluster.reading = a_reading(tokens)
            await operator.run(5)
    assert cluster.writes[num_writes:] == []


async def test_a_dry_run_tells_what_it_would_do_and_does_nothing() -> None:
    cluster = SmallCluster(reading=STEADY)
    async with operating(cluster) as operator:
        await made(operator, autoscaling={"minReplicas": 2, "maxReplicas": 3, "mode": "DryRun"})
        cluster.reading = BUSY
        await operator.run(5)
    assert (cluster.replicas, cluster.status["desiredReplicas"], len(cluster.names)) == (2, 2, 2)
    assert cluster.status["autoscaling"]["desired"] == 3
    (told,) = cluster.told("WouldScale")
    assert told.startswith("from 2 to 3 replicas: PrefillSpeed: ")
    assert cluster.told("Scaled") == []


async def test_a_shared_rule_that_is_edited_goes_for_its_services_and_one_that_is_missing_holds_them() -> None:
    cluster = SmallCluster(reading=STEADY)
    async with operating(cluster) as operator:
        cluster.serve(autoscaling={"policyRef": {"name": "day"}})
        await operator.run(4)
        assert cluster.said("AutoscalingActive") == ("False", "PolicyMissing")
        assert cluster.replicas == 1
        cluster.follow(minReplicas=2, maxReplicas=3)
        await operator.run(4)
        assert cluster.said("AutoscalingActive") == ("True", "Active")
        assert cluster.replicas == 2
        cluster.follow(minReplicas=3, maxReplicas=3)
        await operator.run(1)
    assert cluster.replicas == 3


async def test_without_measurements_it_holds_and_says_so_and_recovers() -> None:
    cluster = SmallCluster(reading=STEADY)
    async with operating(cluster) as operator:
        await made(operator, autoscaling={"minReplicas": 1, "maxReplicas": 3})
        cluster.reading = NoReading("it does not answer")
        await operator.run(40)
        assert cluster.said("MetricsAvailable") == ("False", "MetricsMissing")
        assert cluster.replicas == 1
        cluster.reading = STEADY
        await operator.run(2)
    assert cluster.said("MetricsAvailable") == ("True", "Reported")


async def test_a_request_that_waits_wakes_a_service_and_nothing_is_held_up_by_its_queue() -> None:
    cluster = SmallCluster(reading=STEADY)
    to_zero = {"minReplicas": 0, "maxReplicas": 2, "scaleToZero": {"enabled": True}}
    async with operating(cluster) as operator:
        cluster.serve(autoscaling=to_zero)
        await operator.run(5)
        assert cluster.names == set()
        assert cluster.said("Serving") == ("False", "ScaledToZero")
        assert (cluster.route["queue_max_requests"], cluster.route["queue_max_wait_seconds"]) == (100, 600.0)
        cluster.waiting = 7
        await operator.run(1)
        assert cluster.replicas == 1
        await operator.run(2)
        cluster.waiting = 0
        await operator.run(3)
    assert cluster.said("Serving") == ("True", "ReplicasReady")


# --- Down


async def three(operator: Operator) -> None:
    """Three replicas, of which the second has least to lose."""
    await made(operator, replicas=3)
    operator.cluster.worth = {"chat-engine-1": 300.0, "chat-engine-2": 10.0, "chat-engine-3": 200.0}


async def test_the_replica_with_least_to_lose_leaves_when_it_is_empty_and_no_other() -> None:
    cluster = SmallCluster(requests={"chat-engine-2": 1})
    async with operating(cluster) as operator:
        await three(operator)
        cluster.serve(replicas=2)
        await operator.run(10)
        assert cluster.route["cordoned"] == ["chat-engine-2"]
        assert (cluster.replicas, cluster.status["desiredReplicas"], len(cluster.names)) == (3, 2, 3)
        assert cluster.status["drainingReplicas"] == 1
        assert cluster.said("Draining") == ("True", "FinishingRequests")
        assert cluster.marked == set()
        (handed,) = {call.victim.pod for call in operator.engines.calls if isinstance(call, HandOver)}
        assert handed == "chat-engine-2"
        cluster.requests = {}
        await operator.run(8)
    assert cluster.names == {"chat-engine-1", "chat-engine-3"}
    assert (cluster.replicas, cluster.route["cordoned"], cluster.marked) == (2, [], set())
    assert "autoscaling" not in cluster.status
    assert cluster.said("Draining") == ("False", "NoneLeaving")
    assert cluster.told("Scaled") == ["from 3 to 2 replicas"]
    (why,) = cluster.told("ReplicaChosen")
    assert why.startswith("chat-engine-2 goes: 10 tokens of worth")
    assert {lost.tokens for lost in operator.engines.lost} == {10.0}


async def test_a_replica_that_does_not_get_empty_goes_when_its_drain_is_over() -> None:
    cluster = SmallCluster(requests={"chat-engine-2": 1})
    async with operating(cluster) as operator:
        await made(operator, replicas=3, rollout={"drainTimeout": "30s"})
        cluster.worth = {"chat-engine-1": 300.0, "chat-engine-3": 200.0}
        cluster.serve(replicas=2, rollout={"drainTimeout": "30s"})
        await operator.run(12)
        assert cluster.replicas == 3
        await operator.run(10)
    assert cluster.names == {"chat-engine-1", "chat-engine-3"}


async def test_a_replica_that_is_wanted_again_stays_and_loses_its_mark() -> None:
    cluster = SmallCluster()
    async with operating(cluster) as operator:
        await three(operator)
        cluster.serve(replicas=2)
        while not cluster.marked:
            await operator.run()
        cluster.serve(replicas=3)
        await operator.run(3)
    assert cluster.names == {"chat-engine-1", "chat-engine-2", "chat-engine-3"}
    assert (cluster.replicas, cluster.route["cordoned"], cluster.marked) == (3, [], set())
    assert "autoscaling" not in cluster.status


async def test_a_service_that_is_stopped_lets_all_its_replicas_finish() -> None:
    cluster = SmallCluster(requests={"chat-engine-1": 1})
    async with operating(cluster) as operator:
        await made(operator, replicas=2)
        cluster.serve(replicas=0)
        await operator.run(10)
        assert cluster.names == {"chat-engine-1"}
        assert cluster.said("Serving") == ("False", "NoReplicasWanted")
        cluster.requests = {}
        await operator.run(8)
    assert cluster.names == set()
    assert cluster.replicas == 0


# --- Whatever goes wrong


def end_of(cluster: SmallCluster) -> dict[str, Any]:
    """What must be the same whatever went wrong on the way."""
    conditions = {each["type"]: (each["status"], each["reason"]) for each in cluster.status["conditions"]}
    return {
        "pods": cluster.names,
        "replicas": cluster.replicas,
        "route": cluster.route,
        "marked": cluster.marked,
        "conditions": conditions,
        "autoscaling": cluster.status.get("autoscaling"),
        "told": sorted(cluster.events.values()),
    }


SETTLING_TURNS = 16


async def scaled_down(cluster: SmallCluster) -> None:
    """Bring three replicas to two, by as many operators as it takes."""
    while True:
        try:
            async with operating(cluster) as operator:
                await operator.run(SETTLING_TURNS)
                return
        except Killed:
            cluster.last_write = 0


async def before_scale_down() -> SmallCluster:
    cluster = SmallCluster()
    async with operating(cluster) as operator:
        await three(operator)
    cluster.serve(replicas=2)
    cluster.writes = []
    return cluster


NUM_WRITES = 11
"""Of a scale-down that goes well: the route, three events and the status; the mark; the Deployment and the status; the
route, the end as an event, and the status."""


async def test_the_table_of_faults_has_every_write_of_a_scale_down() -> None:
    cluster = await before_scale_down()
    await scaled_down(cluster)
    assert len(cluster.writes) == NUM_WRITES, cluster.writes
    assert end_of(cluster)["pods"] == {"chat-engine-1", "chat-engine-3"}


@pytest.mark.parametrize("number", range(1, NUM_WRITES + 1))
async def test_a_scale_down_ends_the_same_although_the_operator_was_killed_after_a_write(number: int) -> None:
    start = await before_scale_down()
    undisturbed = copy.deepcopy(start)
    await scaled_down(undisturbed)
    start.last_write = number
    await scaled_down(start)
    assert end_of(start) == end_of(undisturbed)


@pytest.mark.parametrize("number", range(1, NUM_WRITES + 1))
async def test_a_scale_down_ends_the_same_although_a_write_failed(number: int) -> None:
    start = await before_scale_down()
    undisturbed = copy.deepcopy(start)
    await scaled_down(undisturbed)
    start.failing_write = number
    await scaled_down(start)
    assert end_of(start) == end_of(undisturbed)
