"""A service changes while people talk to it: real engines behind the chart's operator and gateway.

One service of two replicas is changed by every test in turn; each begins with the service as it should be. The tests
speak to the gateway's ClusterIP and to pods, so on a cluster of yours they have to run inside its network, and its
nodes need the folder that the engines of a node share.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest
from kubernetes import config

from chart_release import NAMESPACE as RELEASE_NAMESPACE
from chart_release import connect
from sapwood_contract.http import ADMIN_LOAD
from small_engines import MODEL, READY_SECONDS, TWO_ENGINES
from talking import Stream, talking
from world import OWNED, JsonObject, World, condition, eventually, service_path

NAMESPACE = f"rollout-{os.getpid()}"
GONE_SECONDS = 120
LENGTHS = (16, 900) * 4
"""Tokens of the streams of eight clients; the long ones take longer than a leaving pod waits before it begins to
drain."""
SPEC: dict[str, Any] = {
    **TWO_ENGINES,
    # By prefix, all of the long streams may be on one replica, and the other has nothing to finish when it goes.
    "routing": {"policy": "LeastLoad"},
}


@dataclass(frozen=True, slots=True)
class Rolling:
    """The service that is changed, and the gateway in front of it."""

    world: World
    url: str

    @property
    def service(self) -> JsonObject:
        """The InferenceService as it is."""
        found = self.world.service(NAMESPACE)
        assert found is not None
        return found

    @property
    def version(self) -> str:
        """A moment for `conditions_since`."""
        return str(self.service["metadata"]["resourceVersion"])

    def apply(self, **changed: Any) -> None:
        """Apply the service as it should be, with ``changed`` sections of its spec."""
        self.world.make_service(NAMESPACE, **{**SPEC, **changed})

    def is_at(self, type_: str, status: str) -> bool:
        """Whether a condition that is about the present spec has this status."""
        service = self.service
        found = condition(service, type_)
        return (found.get("status"), found.get("observedGeneration")) == (status, service["metadata"]["generation"])

    def wait(self, type_: str, status: str) -> JsonObject:
        """Return a condition, once it is about the present spec and has this status."""
        try:
            eventually(lambda: self.is_at(type_, status), f"{type_} {status}", within_seconds=READY_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.service.get('status'), indent=1)}") from None
        return condition(self.service, type_)

    def pods(self) -> list[JsonObject]:
        """The engines' pods, those that leave too."""
        return self.world.items(f"/api/v1/namespaces/{NAMESPACE}/pods?{OWNED}")

    def num_draining_requests(self) -> int:
        """Requests that engines which were asked to end still compute, all together."""
        leaving = [pod for pod in self.pods() if pod["metadata"].get("deletionTimestamp")]
        return sum(num_requests(pod, while_draining=True) for pod in leaving)

    def num_requests_of_chosen(self) -> int:
        """Requests of replicas that were chosen to go and are asked to end when they have none."""
        chosen = {entry["uid"] for entry in self.service["status"].get("autoscaling", {}).get("leaving", ())}
        return sum(num_requests(pod) for pod in self.pods() if pod["metadata"]["uid"] in chosen)

    def left(self) -> list[str]:
        """KIND/NAME of everything that belongs to the service, of every kind that the cluster has."""
        return [
            f"{kind}/{item['metadata']['name']}"
            for kind, path in self.world.collections(NAMESPACE)
            for item in self.world.items(f"{path}?{OWNED}")
        ]

    def talking(self, *lengths: int) -> contextlib.AbstractContextManager[list[Stream]]:
        """Keep a client for each of ``lengths`` talking through the gateway."""
        return talking(self.url, f"chat.{NAMESPACE}", MODEL, lengths)

    def events(self) -> list[JsonObject]:
        """The Events about it so far."""
        return self.world.events(NAMESPACE)

    def told_since(self, before: list[JsonObject]) -> list[str]:
        """The reasons of the Events that are not in ``before``, in their order."""
        known = {event["metadata"]["name"] for event in before}
        return [e["reason"] for e in self.events() if e["metadata"]["name"] not in known]

    def conditions_since(self, version: str, type_: str) -> list[tuple[str, str]]:
        """Every (status, reason) that a condition has had, each as often as it came."""
        verdicts = [condition(each, type_) for each in self.world.history(service_path(NAMESPACE), version)]
        return [said for said, _ in groupby((verdict["status"], verdict["reason"]) for verdict in verdicts)]


def uids(pods: list[JsonObject]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def num_requests(pod: JsonObject, *, while_draining: bool = False) -> int:
    """Return how many requests an engine computes; 0 for one that is gone, or was not asked to end if it had to be."""
    address = pod["status"].get("podIP", "")
    try:
        with urllib.request.urlopen(f"http://{address}:8001{ADMIN_LOAD}", timeout=5) as answer:
            said = json.load(answer)
    except (OSError, http.client.HTTPException):
        return 0
    return 0 if while_draining and said["state"] != "draining" else int(said["load"]["num_running"])


@pytest.fixture(scope="module")
def release() -> Iterator[Rolling]:
    """Sapwood, installed while this module runs."""
    world = World(config.new_client_from_config())  # type: ignore[no-untyped-call]  # as the library is
    chart = connect(world)
    chart.uninstall()  # what an earlier module left
    chart.install()
    gateway = world.get(f"/api/v1/namespaces/{RELEASE_NAMESPACE}/services/sapwood-gateway")
    assert gateway is not None
    world.make_namespace(NAMESPACE)
    found = Rolling(world, f"http://{gateway['spec']['clusterIP']}")
    yield found
    world.delete(service_path(NAMESPACE))
    eventually(lambda: found.left() == [], "the service's end", within_seconds=GONE_SECONDS)
    world.delete(f"/api/v1/namespaces/{NAMESPACE}")
    chart.uninstall()


@pytest.fixture
def rolling(release: Rolling) -> Rolling:
    """The service as it should be: two replicas, ready."""
    release.apply()
    release.wait("Ready", "True")
    eventually(lambda: len(release.pods()) == SPEC["replicas"], "no pod that leaves", within_seconds=GONE_SECONDS)
    return release


def is_whole(streams: list[Stream], *, at_least: int) -> bool:
    """Whether as many streams ended, and every one as it should."""
    broken = [stream for stream in streams if not stream.is_whole]
    assert broken == []
    return len(streams) >= at_least


def test_a_rolling_change_loses_and_cuts_no_stream_and_tells_its_story(rolling: Rolling) -> None:
    before, version, told = uids(rolling.pods()), rolling.version, rolling.events()
    drained = 0
    with rolling.talking(*LENGTHS) as streams:
        eventually(lambda: is_whole(streams, at_least=2), "the first answers", within_seconds=60)
        rolling.apply(engine={**SPEC["engine"], "scheduler": {"maxRunning": 6}})

        def is_replaced() -> bool:
            nonlocal drained
            drained = max(drained, rolling.num_draining_requests())
            return rolling.is_at("Ready", "True") and before.isdisjoint(uids(rolling.pods()))

        eventually(is_replaced, "pods of the new revision alone", within_seconds=READY_SECONDS)
        num_before = len(streams)
        eventually(lambda: is_whole(streams, at_least=num_before + 8), "answers after it", within_seconds=60)
    assert is_whole(streams, at_least=40)
    assert drained > 0, "no pod had a request to finish: this test shows nothing"
    status = rolling.service["status"]
    assert (status["updatedReplicas"], status["readyReplicas"], status["replicas"]) == (2, 2, 2)
    ready = rolling.conditions_since(version, "Ready")
    assert ready[-1] == ("True", "AllReplicasReady")
    assert ("False", "RolloutInProgress") in ready
    assert {status for status, _ in ready[1:-1]} == {"False"}
    assert rolling.conditions_since(version, "Serving") == [("True", "ReplicasReady")]
    assert {status for status, _ in rolling.conditions_since(version, "Degraded")} == {"False"}
    # Each former pod may drain in its turn.
    assert list(dict.fromkeys(rolling.told_since(told))) == ["RolloutStarted", "Draining", "Ready"]


def check_that_the_rollout_stops_and_heals(rolling: Rolling, **bad: Any) -> tuple[JsonObject, str]:
    """Apply a spec whose pods never get ready, and then the good one, while people talk.

    Returns the condition Degraded of the time between, and what ``kubectl sapwood explain`` says then.
    """
    serving, version = uids(rolling.pods()), rolling.version
    with rolling.talking(16, 16) as streams:
        rolling.apply(**bad)
        degraded = rolling.wait("Degraded", "True")
        ready = condition(rolling.service, "Ready")
        explained = plugin("explain")
        num_before = len(streams)
        eventually(lambda: is_whole(streams, at_least=num_before + 6), "answers meanwhile", within_seconds=60)
        stuck = rolling.pods()
        rolling.apply()
        rolling.wait("Ready", "True")
    assert is_whole(streams, at_least=6)
    (new,) = (pod["metadata"]["name"] for pod in stuck if pod["metadata"]["uid"] not in serving)
    assert new in degraded["message"]
    assert (ready["status"], ready["reason"]) == ("False", degraded["reason"])
    assert "2 replicas of the former revision go on serving" in ready["message"]
    assert explained.startswith("chat is not ready and answers requests.\n")
    assert serving <= uids(rolling.pods())
    assert {status for status, _ in rolling.conditions_since(version, "Serving")} == {"True"}
    return degraded, explained


def check_that_the_story_is_of_a_rollout_that_failed(story: list[str], reason: str) -> None:
    # The way back is a rollout of its own, unless it is over before it is seen.
    assert [told for told in story if told != "RolloutStarted"] == [reason, "Ready"]
    assert story[0] == "RolloutStarted"


def plugin(command: str) -> str:
    argv = [sys.executable, "-m", "sapwood_operator.kubectl.cli", command, "chat", "-n", NAMESPACE]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_bad_image_stops_the_rollout_and_the_old_pods_serve(rolling: Rolling) -> None:
    told = rolling.events()
    image = "sapwood/engine-typo:1"
    degraded, explained = check_that_the_rollout_stops_and_heals(rolling, engine={**SPEC["engine"], "image": image})
    assert degraded["reason"] == "ImagePullFailed"
    assert image in degraded["message"]
    assert f"ImagePullFailed: {degraded['message']}" in explained
    check_that_the_story_is_of_a_rollout_that_failed(rolling.told_since(told), "ImagePullFailed")


def test_a_bad_model_stops_the_rollout_and_the_old_pods_answer_under_its_former_name(rolling: Rolling) -> None:
    told = rolling.events()
    source = {"path": "/nonexistent"}
    degraded, _ = check_that_the_rollout_stops_and_heals(
        rolling, model={**SPEC["model"], "name": "another", "source": source}
    )
    assert degraded["reason"] in ("EngineFailed", "OptionsRefused")
    assert "/nonexistent" in degraded["message"]
    check_that_the_story_is_of_a_rollout_that_failed(rolling.told_since(told), degraded["reason"])


def test_a_replica_that_is_taken_away_finishes_its_streams(rolling: Rolling) -> None:
    told, drained = rolling.events(), 0
    with rolling.talking(*LENGTHS) as streams:
        eventually(lambda: is_whole(streams, at_least=4), "the first answers", within_seconds=60)
        rolling.apply(replicas=1)

        def is_alone() -> bool:
            nonlocal drained
            drained = max(drained, rolling.num_requests_of_chosen())
            return len(rolling.pods()) == 1 and rolling.is_at("Ready", "True")

        eventually(is_alone, "one pod", within_seconds=GONE_SECONDS)
    assert is_whole(streams, at_least=8)
    assert drained > 0, "the pod had no request to finish: this test shows nothing"
    assert rolling.told_since(told) == ["Scaled", "ReplicaChosen", "Draining", "Ready"]


def test_a_service_that_is_deleted_leaves_nothing(rolling: Rolling) -> None:
    assert {"Deployment", "EndpointSlice", "Pod", "Service"} <= {name.partition("/")[0] for name in rolling.left()}
    rolling.world.delete(service_path(NAMESPACE))
    eventually(lambda: rolling.left() == [], "nothing left", within_seconds=GONE_SECONDS)
