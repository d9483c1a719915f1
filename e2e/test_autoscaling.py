"""Replicas come and go with the load, and nobody who asks for something notices: real engines, the chart's operator and
gateway, and a Prometheus that the operator decides from.

The tests go through the day of two services, each from where the one before it left it. The ``lamp`` has no replica
while nobody asks. The ``chat`` begins with two and has one too many, would need it again and gets it, and has to do
without the Prometheus that tells of its engines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from kubernetes import config

from chart_release import NAMESPACE as SYSTEM
from chart_release import Release, connect
from cluster import processes
from cluster.binaries import PROMETHEUS, cached_path
from cluster.extras import PROMETHEUS_PORT, start_prometheus
from cluster.layout import CONTROL_PLANE_ADDRESS, Layout
from elastic import (
    Elastic,
    check_whole,
    flush,
    hit_ratio_between,
    num_warmed,
    predicted_with_one,
    prefer,
    scrape,
    scrape_settings,
    tale_of,
    told,
)
from pods import kill_processes
from sapwood_contract.http import ADMIN_LOAD
from small_engines import MODEL
from subjects import Subjects
from waking import answer_to_one, answers_to, asked
from world import JsonObject, World, eventually

NAMESPACE = f"elastic-{os.getpid()}"
PROMETHEUS_URL = f"http://{CONTROL_PLANE_ADDRESS}:{PROMETHEUS_PORT}"
VALUES: dict[str, Any] = {
    "operator": {"signals": {"source": "Prometheus", "prometheusUrl": PROMETHEUS_URL}},
    # On a busy machine too, prefixes decide where a request goes.
    "gateway": {"drainSeconds": 5, "promptPatienceSeconds": 10},
}
ENGINE: dict[str, Any] = {
    "model": {"name": MODEL, "source": {"builtin": MODEL}, "cache": {"nodePath": "/var/cache/sapwood"}},
    "engine": {
        "device": "CPU",
        "contextLength": 1024,
        "scheduler": {"maxRunning": 8},
        # All subjects are in two such caches together, and not in one of them.
        "extraArgs": ["--threads=1", "--kv-tokens=4096"],
        "kvCache": {"missRatioCurve": {"sampleRate": "1"}},
    },
}
POLICY: dict[str, Any] = {
    "minReplicas": 1,
    "maxReplicas": 2,
    "capacity": {"prefillUtilization": "0.3"},
    "cache": {"minPayback": "100", "maxHitLoss": "1", "settleTime": "5s"},
    "behavior": {"scaleDown": {"stabilizationWindow": "5s"}},
}
SUBJECTS = Subjects(40)
BUSY = (4, 4, 4, 4)
"""Tokens of the answers to four clients, who ask without a pause."""
STEADY = (4, 4)
"""So few that every request goes where its subject is."""
BUSY_SECONDS = 300
"""Until so many requests as a test wants are answered, or a decision is made of them."""
LONG = 400
"""Tokens of an answer that outlasts the time in which gateways hear of a cordon."""


@pytest.fixture(scope="module")
def world(harness: Layout) -> World:
    if not cached_path(PROMETHEUS, os.environ).exists():
        pytest.skip("needs Prometheus: python -m cluster up --with prometheus")
    return World(config.new_client_from_config(str(harness.kubeconfig)))  # type: ignore[no-untyped-call]  # as it is


@pytest.fixture(scope="module")
def release(world: World) -> Iterator[Release]:
    """Sapwood, installed while this module runs."""
    found = connect(world)
    found.uninstall()  # what an earlier module left
    found.install(VALUES)
    world.make_namespace(NAMESPACE)
    yield found
    world.delete(f"/api/v1/namespaces/{NAMESPACE}")
    found.uninstall()


@pytest.fixture(scope="module")
def begin_prometheus(harness: Layout) -> Iterator[Callable[[], None]]:
    """Start a Prometheus that scrapes engines as their PodMonitor has it."""
    settings = scrape_settings(harness, NAMESPACE)

    def begin() -> None:
        assert start_prometheus(harness, settings, os.environ) == PROMETHEUS_URL

    begin()
    yield begin
    processes.stop(harness, "prometheus")


@pytest.fixture(scope="module")
def gateway(world: World, release: Release) -> str:
    """The address of its Service."""
    found = world.call("GET", f"/api/v1/namespaces/{SYSTEM}/services/sapwood-gateway")
    return f"http://{found['spec']['clusterIP']}"


@pytest.fixture(scope="module")
def chat(world: World, gateway: str, begin_prometheus: Callable[[], None]) -> Iterator[Elastic]:
    """A service that scales by what Prometheus says; it begins with the two replicas of a busy time."""
    found = Elastic(world, gateway, NAMESPACE, "chat")
    found.apply(**ENGINE, autoscaling={**POLICY, "minReplicas": 2})
    found.wait(lambda: found.says("Ready", "True"), "two ready replicas")
    yield found
    found.delete()


@pytest.fixture(scope="module")
def lamp(world: World, gateway: str, begin_prometheus: Callable[[], None]) -> Iterator[Elastic]:
    """A service that has no replica while nobody asks."""
    found = Elastic(world, gateway, NAMESPACE, "lamp")
    zero = {"enabled": True, "idleAfter": "5s"}
    found.apply(**ENGINE, autoscaling={"minReplicas": 0, "maxReplicas": 1, "scaleToZero": zero})
    found.wait(lambda: found.says("Serving", "False", "ScaledToZero"), "a service without a replica")
    yield found
    found.delete()


def is_dark(lamp: Elastic) -> bool:
    """Whether it is at zero, and nothing is left of what it was."""
    return lamp.asked == 0 and not lamp.pods() and lamp.says("Serving", "False", "ScaledToZero")


def test_a_service_goes_back_to_zero_where_everybody_leaves_while_it_wakes(lamp: Elastic) -> None:
    with asked(lamp):
        lamp.wait(lambda: lamp.asked == 1, "a replica that is asked for", within_seconds=60)
    lamp.wait(lambda: is_dark(lamp), "no replica", within_seconds=120)
    assert lamp.steps() == [(1, 0, "DemandGone"), (0, 1, "Demand")]


def test_the_first_request_waits_for_a_replica_and_is_answered(lamp: Elastic) -> None:
    began = time.time()
    assert answer_to_one(lamp) == 200
    took = time.time() - began
    (pod,) = lamp.ready()
    (ready,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    times = (pod["metadata"]["creationTimestamp"], ready["lastTransitionTime"])
    made, up = (datetime.fromisoformat(text).timestamp() - began for text in times)
    print(f"answered after {took:.1f} s; its pod was made after {made:.0f} s and ready after {up:.0f} s")
    assert lamp.steps()[0] == (0, 1, "Demand")


def test_the_replica_with_least_to_lose_goes_and_no_stream_is_cut(chat: Elastic) -> None:
    with chat.talking(*STEADY, prompt=SUBJECTS.next) as streams:
        eventually(lambda: len(streams) >= 40, "gateways that know the service", within_seconds=BUSY_SECONDS)
    for pod in chat.ready():
        flush(pod)  # until then load alone decided, and both have the same
    with chat.talking(*STEADY, prompt=SUBJECTS.next) as streams:
        eventually(lambda: len(streams) >= 80, "every subject at least once", within_seconds=BUSY_SECONDS)
        before = [scrape(pod) for pod in chat.ready()]
        eventually(lambda: len(streams) >= 320, "what a curve is made of", within_seconds=BUSY_SECONDS)
        predicted = predicted_with_one(before, [scrape(pod) for pod in chat.ready()])
    victim, favourite = sorted(chat.ready(), key=lambda pod: scrape(pod).totals.prompt)
    prefer(chat, favourite)
    tales = [tale_of(chat, pod) for pod in (victim, favourite)]
    with chat.talking(LONG, LONG, prompt=lambda client: tales[client]) as streams:
        # Its measurements are of the last 90 seconds: so the quiet time counts sooner.
        chat.apply(**ENGINE, autoscaling={**POLICY, "capacity": {"prefillUtilization": "1"}})
        chat.wait(lambda: chat.autoscaling.get("leaving"), "a victim", within_seconds=180)
        assert [each["pod"] for each in chat.autoscaling["leaving"]] == [victim["metadata"]["name"]]
        in_flight = told(victim, ADMIN_LOAD)["load"]["num_running"]
        eventually(lambda: len(chat.pods()) == 1, "one pod", within_seconds=180)
        num_before = len(streams)
        eventually(lambda: len(streams) >= num_before + 2, "streams after it", within_seconds=60)
    check_whole(streams, at_least=4)
    assert chat.steps()[0] == (2, 1, "LoadFell")
    assert in_flight == 1
    # As many requests as one replica can answer: a dry run wants another one.
    chat.apply(**ENGINE, autoscaling={**POLICY, "mode": "DryRun"})
    with chat.talking(*STEADY, prompt=SUBJECTS.next) as streams:
        eventually(lambda: len(streams) >= 80, "a cache that has settled", within_seconds=BUSY_SECONDS)
        begin = scrape(favourite)
        eventually(lambda: len(streams) >= 280, "what hits are counted of", within_seconds=BUSY_SECONDS)
        measured = hit_ratio_between(begin, scrape(favourite))
    print(f"predicted {predicted:.1%}, measured {measured:.1%}")
    assert abs(measured - predicted) < 0.05


def test_a_dry_run_says_what_it_would_do_and_does_nothing(chat: Elastic) -> None:
    chat.apply(**ENGINE, autoscaling={**POLICY, "mode": "DryRun"})
    with chat.talking(*BUSY, prompt=SUBJECTS.next) as streams:
        chat.wait(lambda: chat.notes("WouldScale"), "a decision", within_seconds=BUSY_SECONDS)
    check_whole(streams, at_least=1)
    assert chat.steps()[0] == (1, 2, "PrefillSpeed")
    assert chat.autoscaling["desired"] == 2
    assert chat.says("AutoscalingActive", "False", "DryRun")
    assert chat.asked == 1
    assert len(chat.pods()) == 1


def test_a_replica_is_added_for_the_bound_that_breaks_and_is_warm_before_it_takes_requests(chat: Elastic) -> None:
    chat.apply(**ENGINE, autoscaling=POLICY)
    with chat.talking(*BUSY, prompt=SUBJECTS.next) as streams:
        chat.wait(lambda: len(chat.ready()) == 2, "a second replica")
        _, new = chat.ready()
        num_taken, num_prefixes = scrape(new).totals.admitted, num_warmed(new)
        eventually(lambda: scrape(new).totals.admitted >= num_taken + 8, "requests for it", within_seconds=BUSY_SECONDS)
    check_whole(streams, at_least=20)
    assert num_prefixes > 0
    assert chat.steps()[0] == (1, 2, "PrefillSpeed")
    assert chat.says("AutoscalingActive", "True", "Active")
    assert "prefill" in chat.notes("Scaled")[-1]


@pytest.fixture(scope="module")
def outage(chat: Elastic, lamp: Elastic, harness: Layout) -> None:
    """Prometheus dies after a busy time, and while nobody has used the other service for long."""
    lamp.wait(lambda: is_dark(lamp), "no replica", within_seconds=180)
    processes.stop(harness, "prometheus", term_seconds=0)


def test_a_hundred_who_ask_at_once_wake_a_service_once(lamp: Elastic, outage: None) -> None:
    before = lamp.steps()
    assert before[0] == (1, 0, "Idle")
    assert answers_to(lamp, 100) == [200] * 100
    assert lamp.steps() == [(0, 1, "Demand"), *before]
    assert len(lamp.pods()) == 1


def test_without_prometheus_the_number_is_held_and_said_to_be(chat: Elastic, outage: None) -> None:
    chat.wait(lambda: chat.says("MetricsAvailable", "False", "MetricsMissing"), "that it is missed", within_seconds=180)
    assert (chat.autoscaling["desired"], chat.autoscaling["bound"]) == (2, "MetricsMissing")
    assert (chat.asked, len(chat.ready())) == (2, 2)


def test_prometheus_comes_back_and_a_replica_goes_although_operator_and_a_gateway_are_killed_meanwhile(
    chat: Elastic, outage: None, begin_prometheus: Callable[[], None]
) -> None:
    """The streams go through the other gateway."""
    operator, killed, other = (*programs(chat.world, "operator"), *programs(chat.world, "gateway"))
    (port,) = (each["containerPort"] for each in other["spec"]["containers"][0]["ports"] if each["name"] == "http")
    through = replace(chat, url=f"http://{other['status']['podIP']}:{port}")
    begin_prometheus()
    with through.talking(LONG, LONG) as streams:
        chat.wait(lambda: chat.autoscaling.get("leaving"), "a victim", within_seconds=BUSY_SECONDS)
        assert chat.says("MetricsAvailable", "True", "Reported")
        for pod in (operator, killed):
            kill_processes(pod["metadata"]["name"])
        chat.wait_until_settled(1)
    check_whole(streams, at_least=2)
    assert chat.steps()[0] == (2, 1, "LoadFell")


def programs(world: World, component: str) -> list[JsonObject]:
    """Return the pods of a program of ours."""
    label = f"labelSelector=app.kubernetes.io%2Fcomponent%3D{component}"
    return world.items(f"/api/v1/namespaces/{SYSTEM}/pods?{label}")
