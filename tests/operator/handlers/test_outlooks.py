"""What the operator answers at its own port about services that scale, over real HTTP and after real turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from support_scaling import reading, straight_curve
from support_small_cluster import SmallCluster
from support_small_operator import Operator, PretendSignals, operating

from sapwood_operator.adapters.health import Health, serve_health
from sapwood_operator.adapters.metrics import OperatorMetrics
from sapwood_operator.autoscaling.values import NoReading, Reading
from sapwood_operator.handlers.outlooks import ServiceOutlooks

LOOPBACK = "127.0.0.1"
STEADY = reading(0.5, curve=straight_curve(0.5, 0.9))
CHAT = "namespace=team&name=chat"


async def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{LOOPBACK}:{port}{path}") as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        return answer.status, await answer.json()


@asynccontextmanager
async def leading(told: Reading | NoReading = STEADY, **spec: Any) -> AsyncIterator[tuple[int, Operator]]:
    """The port of an operator that has just made a service, and the operator."""
    cluster = SmallCluster(reading=told)
    async with operating(cluster) as operator:
        cluster.serve(**(spec or {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}))
        await operator.run(6)
        outlooks = ServiceOutlooks(
            operator.store, observer=operator.reconciler, signals=PretendSignals(cluster), now=lambda: cluster.now
        )
        health = Health("leading", outlooks=outlooks)
        async with serve_health(health, OperatorMetrics(), runbooks="", host=LOOPBACK, port=0) as port:
            yield port, operator


async def test_what_another_number_would_do_is_beside_what_there_is() -> None:
    async with leading() as (port, _):
        status, told = await ask(port, f"/what-if?{CHAT}&replicas=3&memory=1.5")
    assert status == 200
    assert set(told) == {"now", "then", "policy"}
    assert (told["now"]["replicas"], told["now"]["memory_factor"]) == (2, 1.0)
    assert (told["then"]["replicas"], told["then"]["memory_factor"]) == (3, 1.5)
    assert told["now"]["hit_ratio"] == pytest.approx(0.5)
    assert told["then"]["hit_ratio"] == pytest.approx(0.9)
    assert told["then"]["breaks"] is None
    assert (told["policy"]["replicas"], told["policy"]["goes_there"]) == (2, False)


async def test_what_has_no_end_is_still_json() -> None:
    async with leading(reading(0.75, curve=straight_curve(0.5, 0.9))) as (port, _):
        _, told = await ask(port, f"/what-if?{CHAT}&replicas=1")
    assert told["then"]["ttft_p90_seconds"] == "Infinity"
    assert told["then"]["breaks"] == "PrefillSpeed"


async def test_a_decision_is_told_whole() -> None:
    async with leading() as (port, _):
        status, told = await ask(port, f"/autoscaling?{CHAT}")
    assert status == 200
    assert (told["mode"], told["min_replicas"], told["max_replicas"]) == ("Active", 2, 4)
    assert (told["num_ready"], told["num_asked"], told["desired"]) == (2, 2, 2)
    assert told["inputs"]["hit_ratio"] == pytest.approx(0.5)
    assert told["predicted"] == pytest.approx({"1": 0.25, "2": 0.5, "3": 0.75})
    assert {each["replicas"] for each in told["rejected"]} == {1, 3}
    assert {each["type"] for each in told["conditions"]} == {"MetricsAvailable", "AutoscalingActive", "ScalingLimited"}
    assert told["leaving"] == []


async def test_asking_changes_nothing() -> None:
    async with leading() as (port, operator):
        writes, status = list(operator.cluster.writes), operator.cluster.status
        for path in (f"/what-if?{CHAT}&replicas=4", f"/autoscaling?{CHAT}"):
            assert (await ask(port, path))[0] == 200
        await operator.run(2)
        assert operator.cluster.writes == writes
        assert operator.cluster.status == status


async def test_who_leaves_is_among_what_is_told() -> None:
    async with leading() as (port, operator):
        operator.cluster.requests = {"chat-engine-1": 1, "chat-engine-2": 1}
        operator.cluster.serve(autoscaling={"minReplicas": 1, "maxReplicas": 1})
        await operator.run(2)
        _, told = await ask(port, f"/autoscaling?{CHAT}")
    assert told["leaving"] == operator.cluster.route["cordoned"] != []


@pytest.mark.parametrize(
    ("spec", "told", "query", "status", "reason", "words"),
    [
        (
            {},
            STEADY,
            "namespace=team&name=nosuch",
            404,
            "NoSuchService",
            "no InferenceService 'nosuch' in namespace 'team'",
        ),
        ({"replicas": 2}, STEADY, CHAT, 422, "NotScaled", "team/chat is not scaled by a policy (spec.replicas: 2)"),
        (
            {"autoscaling": {"policyRef": {"name": "day"}}},
            STEADY,
            CHAT,
            422,
            "PolicyMissing",
            "no AutoscalingPolicy 'day'",
        ),
        (
            {},
            NoReading("lost"),
            CHAT,
            422,
            "NothingMeasured",
            "0 of 2 replicas reported, which is too few; wait a minute",
        ),
    ],
    ids=["service", "number", "policy", "measurements"],
)
async def test_why_there_is_no_answer_is_said(
    spec: dict[str, Any], told: Reading | NoReading, query: str, status: int, reason: str, words: str
) -> None:
    async with leading(told, **spec) as (port, _):
        found, body = await ask(port, f"/what-if?{query}&replicas=3")
    assert (found, body["reason"]) == (status, reason)
    assert words in body["message"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("name=chat&replicas=3", "namespace: it is missing"),
        ("namespace=team&replicas=3", "name: it is missing"),
        (CHAT, "replicas: it is missing"),
        (f"{CHAT}&replicas=0", "replicas: '0' is no number from 1 to 1000"),
        (f"{CHAT}&replicas=1001", "replicas: '1001' is no number"),
        (f"{CHAT}&replicas=two", "replicas: 'two' is no number"),
        (f"{CHAT}&replicas=3&memory=0.05", "memory: '0.05' is not a factor of the present KV memory from 0.1 to 100"),
        (f"{CHAT}&replicas=3&memory=101", "memory: '101' is not a factor"),
        (f"{CHAT}&replicas=3&memory=nan", "memory: 'nan' is not a factor"),
        (f"{CHAT}&replicas={'9' * 5000}", "…' is no number"),
    ],
)
async def test_a_question_out_of_bounds_names_the_field_and_quotes_the_value(query: str, words: str) -> None:
    async with serve_health(Health(), OperatorMetrics(), runbooks="", host=LOOPBACK, port=0) as port:
        status, body = await ask(port, f"/what-if?{query}")
    assert (status, body["reason"]) == (400, "BadQuery")
    assert words in body["message"]
    assert len(body["message"]) < 200


@pytest.mark.parametrize("path", [f"/what-if?{CHAT}&replicas=3", f"/autoscaling?{CHAT}"])
async def test_an_operator_that_does_not_lead_says_so(path: str) -> None:
    async with serve_health(Health("standby"), OperatorMetrics(), runbooks="", host=LOOPBACK, port=0) as port:
        status, body = await ask(port, path)
    assert (status, body["reason"]) == (503, "NotLeading")
