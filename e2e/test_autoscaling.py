"""Replicas come and go with the load, and nobody who asks for something notices: real engines, the chart's operator and
gateway, and a Prometheus that the operator decides from.

The tests go through the day of two services, each from where the one before it left it. The ``lamp`` has no replica
while nobody asks. The ``chat`` begins with two and has one too many, would need it again and gets it, and has to do
without the Prometheus that tells of its engines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
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
    have,
    hit_ratio_between,
    num_warmed,
    predicted_with_one,
    scrape,
    scrape_settings,
    shared_out,
    tale_of,
    told,
)
from pods import kill_processes
from sapwood_contract.http import ADMIN_LOAD
from sapwood_operator.autoscaling.scrapes import Scrape
from small_engines import MODEL
from subjects import Rounds, subjects
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
    "capacity": {"prefillUtilization": "0.2"},
    "cache": {"minPayback": "100", "maxHitLoss": "1", "settleTime": "5s"},
    "behavior": {"scaleDown": {"stabilizationWindow": "5s"}},
}
NUM_SUBJECTS = 80
SUBJECTS = Rounds(subjects(NUM_SUBJECTS))
BUSY = (4, 4, 4, 4)
"""Tokens of the answers to four clients, who ask without a pause."""
STEADY = (1, 1)
"""So few that every request goes where its subject is."""
ROUNDS = 2
"""Of all subjects, while something is measured."""
BUSY_SECONDS = 300
"""Until so many requests as a test wants are answered, or a decision is made of them."""
WHOLE_SECONDS = 1
"""By so much less than it was, the API server tells when something was."""
LONG = 250
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
def starting_chat(world: World, gateway: str, begin_prometheus: Callable[[], None]) -> Iterator[Elastic]:
    """`chat`, which others need not wait for."""
    found = Elastic(world, gateway, NAMESPACE, "chat")
    found.apply(**ENGINE, autoscaling={**POLICY, "minReplicas": 2})
    yield found
    found.delete()


@pytest.fixture(scope="module")
def chat(starting_chat: Elastic) -> Elastic:
    """A service that scales by what Prometheus says; it begins with the two replicas of a busy time."""
    starting_chat.wait(lambda: starting_chat.says("Ready", "True"), "two ready replicas")
    return starting_chat


@pytest.fixture(scope="module")
def lamp(world: World, gateway: str, starting_chat: Elastic) -> Iterator[Elastic]:
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
    lamp.wait(lambda: is_dark(lamp), "no replica")
    assert lamp.steps() == [(1, 0, "DemandGone"), (0, 1, "Demand")]


def test_the_first_request_is_answered_within_a_second_of_its_replica_being_ready(lamp: Elastic) -> None:
    began = time.time()
    assert answer_to_one(lamp) == 200
    took = time.time() - began
    (pod,) = lamp.ready()
    (ready,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    times = (pod["metadata"]["creationTimestamp"], ready["lastTransitionTime"])
    made, up = (datetime.fromisoformat(text).timestamp() - began for text in times)
    print(f"answered after {took:.1f} s; its pod was made after {made:.0f} s and ready after {up:.0f} s")
    assert lamp.steps()[0] == (0, 1, "Demand")
    assert took < up + WHOLE_SECONDS + 1


def test_the_replica_with_least_to_lose_goes_and_no_stream_is_cut(chat: Elastic) -> None:
    for pod in chat.ready():
        have(chat, pod, SUBJECTS.next())  # else all go to the one that has the beginning of all
    with chat.talking(*STEADY, prompt=SUBJECTS.next) as streams:
        eventually(lambda: len(streams) >= 20, "gateways that know the service", within_seconds=BUSY_SECONDS)
    # Curves are taken to be of equal parts.
    asked_for = shared_out(chat, subjects(3 * NUM_SUBJECTS), NUM_SUBJECTS // 2)
    predicted = predicted_with_one(*scrapes_around_rounds(chat, chat.ready(), asked_for))
    victim, favourite = sorted(chat.ready(), key=lambda pod: scrape(pod).totals.prompt)
    have(chat, favourite, " ".join(f"{number} sheep" for number in range(200)), times=40)
    tales = [tale_of(chat, pod) for pod in (victim, favourite)]
    with chat.talking(LONG, LONG, prompt=lambda client: tales[client]) as streams:
        # Its measurements are of the last 90 seconds: so the quiet time counts sooner.
        chat.apply(**ENGINE, autoscaling={**POLICY, "capacity": {"prefillUtilization": "1"}})
        chat.wait(lambda: chat.autoscaling.get("leaving"), "a victim")
        assert [each["pod"] for each in chat.autoscaling["leaving"]] == [victim["metadata"]["name"]]
        in_flight = told(victim, ADMIN_LOAD)["load"]["num_running"]
        eventually(lambda: len(chat.pods()) == 1, "one pod", within_seconds=BUSY_SECONDS)
        num_before = len(streams)
        eventually(lambda: len(streams) >= num_before + 2, "streams after it", within_seconds=BUSY_SECONDS)
    check_whole(streams, at_least=4)
    assert chat.steps()[0] == (2, 1, "LoadFell")
    assert in_flight >= 1
    chat.apply(**ENGINE, autoscaling={**POLICY, "mode": "Paused"})  # another replica is wanted again
    (before,), (after,) = scrapes_around_rounds(chat, [favourite], asked_for)
    measured = hit_ratio_between(before, after)
    print(f"predicted {predicted:.1%}, measured {measured:.1%}; {chat.notes('ReplicaChosen')[-1]}")
    assert abs(measured - predicted) < 0.05


def test_a_dry_run_says_what_it_would_do_and_does_nothing(chat: Elastic) -> None:
    chat.apply(**ENGINE, autoscaling={**POLICY, "mode": "DryRun"})
    with chat.talking(*BUSY, prompt=SUBJECTS.next) as streams:
        chat.wait(lambda: chat.notes("WouldScale"), "a decision")
    check_whole(streams, at_least=0)  # load of a moment ago may have decided before one of them ended
    assert "prefill" in chat.notes("WouldScale")[0]
    assert (1, 2) in [step[:2] for step in chat.steps()]
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
    assert chat.steps()[0][:2] == (1, 2)
    assert chat.says("AutoscalingActive", "True", "Active")
    assert "prefill" in chat.notes("Scaled")[-1]


@pytest.fixture(scope="module")
def outage(chat: Elastic, lamp: Elastic, harness: Layout) -> None:
    """Prometheus dies after a busy time, and while nobody has used the other service for long."""
    lamp.wait(lambda: is_dark(lamp), "no replica")
    processes.stop(harness, "prometheus", term_seconds=0)


def test_a_hundred_who_ask_at_once_wake_a_service_once(lamp: Elastic, outage: None) -> None:
    before = lamp.steps()
    assert before[0] == (1, 0, "Idle")
    assert answers_to(lamp, 100) == [200] * 100
    assert lamp.steps() == [(0, 1, "Demand"), *before]
    assert len(lamp.pods()) == 1


def test_without_prometheus_the_number_is_held_and_said_to_be(chat: Elastic, outage: None) -> None:
    chat.wait(lambda: chat.says("MetricsAvailable", "False", "MetricsMissing"), "that it is missed")
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
        chat.wait(lambda: chat.autoscaling.get("leaving"), "a victim")
        assert chat.says("MetricsAvailable", "True", "Reported")
        for pod in (operator, killed):
            kill_processes(pod["metadata"]["name"])
        chat.wait_until_settled(1)
    check_whole(streams, at_least=2)
    assert chat.steps()[0] == (2, 1, "LoadFell")


def scrapes_around_rounds(
    chat: Elastic, pods: Sequence[JsonObject], prompts: Sequence[str]
) -> tuple[list[Scrape], list[Scrape]]:
    """Ask for ``prompts`` in rounds, always in the same order; scrape ``pods`` after the first round and at the end.

    So chance is no part of what two times differ by.
    """
    with chat.talking(*STEADY, prompt=Rounds(prompts).next) as streams:
        eventually(lambda: len(streams) >= len(prompts), "every subject", within_seconds=BUSY_SECONDS)
        before = [scrape(pod) for pod in pods]
        num_asked = (1 + ROUNDS) * len(prompts)
        eventually(lambda: len(streams) >= num_asked, f"{ROUNDS} more rounds", within_seconds=BUSY_SECONDS)
        after = [scrape(pod) for pod in pods]
    check_whole(streams, at_least=num_asked)
    return before, after


def programs(world: World, component: str) -> list[JsonObject]:
    """Return the pods of a program of ours."""
    label = f"labelSelector=app.kubernetes.io%2Fcomponent%3D{component}"
    return world.items(f"/api/v1/namespaces/{SYSTEM}/pods?{label}")
