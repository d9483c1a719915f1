"""What the plugin says of services that were recorded from a real cluster: one that is ready, one stuck in a rollout.

The recordings are what `read_picture` read, but for ``managedFields``.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sapwood_operator.kubectl.explain import render_explain
from sapwood_operator.kubectl.picture import Picture
from sapwood_operator.kubectl.status import render_status
from sapwood_operator.kubectl.tree import render_tree

RECORDED = Path(__file__).with_name("recorded")
NOW = datetime(2026, 11, 30, 9, 56, 0, tzinfo=UTC)
OLD_POD, NEW_POD = "chat-engine-f885f5cdd-kvnb8", "chat-engine-5c88c9bd46-4c7z7"
CAUSE = f"pod {NEW_POD} cannot pull the image 'sapwood/engine-typo:1'"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return found


def a_picture(parts: dict[str, Any]) -> Picture:
    return Picture(parts["service"], tuple(parts["objects"]), tuple(parts["events"]))


@pytest.fixture
def ready() -> Picture:
    return a_picture(recorded("ready"))


@pytest.fixture
def stuck() -> Picture:
    return a_picture(recorded("stuck_rollout"))


def an_unseen_picture() -> Picture:
    service = copy.deepcopy(recorded("ready")["service"])
    del service["status"]
    return Picture(service)


def test_status_has_a_line_for_each_condition_and_the_counts_and_the_address(ready: Picture) -> None:
    assert render_status(ready) == (
        "team/chat  generation 1\n"
        "\n"
        "  Ready           True   AllReplicasReady: all 1 replicas are ready at this generation\n"
        "  Serving         True   ReplicasReady: 1 of 1 replicas take requests\n"
        "  ModelAvailable  True   Loaded: a replica of this revision has loaded the model\n"
        "  Degraded        False  AsExpected: nothing needs attention\n"
        "  Draining        False  NoneLeaving: no replica is leaving\n"
        "  Unsupported     False  AllSupported: every field that is given is acted on\n"
        "\n"
        "  replicas  1 desired, 1 ready, 1 updated, 0 warming, 0 draining\n"
        "  address   http://chat.team.svc.cluster.local\n"
        "  routing   LeastLoad\n"
        "  callers   whoever reaches the gateway\n"
        "  watched   no PodMonitor or PrometheusRule seen\n"
    )


def a_tenant(name: str, *, status: str = "True", reason: str = "Ready", message: str = "key") -> dict[str, Any]:
    verdict = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return {"kind": "Tenant", "metadata": {"name": name}, "status": {"conditions": [verdict]}}


def test_where_keys_are_asked_for_the_tenants_are_counted_and_those_in_trouble_are_explained(ready: Picture) -> None:
    spec = {
        **ready.service["spec"],
        "tenancy": {"authentication": "ApiKey"},
        "routing": {"policy": "PrefixAffinity", "queue": {"maxRequests": 100, "maxWait": "30s"}},
    }
    refused = a_tenant("zeta", status="False", reason="KeyConflict", message="ci with acme")
    unseen = {"kind": "Tenant", "metadata": {"name": "new"}}
    picture = replace(ready, service={**ready.service, "spec": spec}, tenants=(a_tenant("acme"), refused, unseen))
    assert "  routing   PrefixAffinity; 100 requests may wait 30s for a replica\n" in render_status(picture)
    assert "  callers   Tenants with an API key; seen: 1 ready, 2 not\n" in render_status(picture)
    text = render_explain(picture, now=NOW)
    assert "Tenants\n  zeta  KeyConflict: ci with acme\n  new   NotSeenYet\n" in text
    assert "Tenants" not in render_explain(ready, now=NOW)


def test_who_watches_a_service_is_told(ready: Picture) -> None:
    made = [{"kind": kind, "metadata": {"name": "chat-engine"}} for kind in ("PodMonitor", "PrometheusRule")]
    tracing = {"observability": {"tracing": {"endpoint": "http://collector.tracing.svc:4318"}}}
    service = {**ready.service, "spec": {**ready.service["spec"], **tracing}}
    text = render_status(replace(ready, service=service, objects=(*ready.objects, *made)))
    assert "  watched   by PodMonitor and PrometheusRule; traces go to http://collector.tracing.svc:4318\n" in text


def test_a_cause_that_two_conditions_share_is_told_once(stuck: Picture) -> None:
    text = render_status(stuck)
    assert text.count(CAUSE) == 1
    assert "  Degraded        True     ImagePullFailed: as above\n" in text


def test_what_is_about_an_older_spec_says_so() -> None:
    parts = recorded("ready")
    parts["service"]["metadata"]["generation"] = 2
    behind = "the operator has seen generation 1 of 2"
    assert render_status(a_picture(parts)).startswith(f"team/chat  generation 2 ({behind})\n")
    assert f"\nThis is about an older spec: {behind}.\n" in render_explain(a_picture(parts), now=NOW)


def test_a_service_that_no_operator_has_seen_says_what_to_look_for() -> None:
    picture = an_unseen_picture()
    for text in (render_status(picture), render_explain(picture, now=NOW)):
        assert "does one run, and does it watch this namespace?" in text
    assert render_tree(picture, now=NOW) == "InferenceService/chat  not seen by an operator yet\n"


def test_a_ready_service_is_explained_in_a_sentence(ready: Picture) -> None:
    text = render_explain(ready, now=NOW)
    assert text.startswith("chat is ready: all 1 replicas are ready at this generation.\n")
    assert "Conditions" not in text


def test_a_stuck_rollout_is_explained_by_pod_and_cause_and_says_that_the_old_pods_serve(stuck: Picture) -> None:
    headline, reason, *_ = render_explain(stuck, now=NOW).splitlines()
    assert headline == "chat is not ready and answers requests."
    assert reason.startswith(f"ImagePullFailed: {CAUSE}")
    assert "correct the image's name" in reason
    assert reason.endswith("1 of 1 replicas of the former revision go on serving")


def test_each_revision_with_pods_has_a_line_the_newest_first(stuck: Picture) -> None:
    text = render_explain(stuck, now=NOW)
    assert (
        "Rollout\n"
        "  revision 2 (current)  0 of 1 ready  chat-engine-5c88c9bd46\n"
        "  revision 1            1 of 1 ready  chat-engine-f885f5cdd\n"
    ) in text


def test_each_pod_has_a_line_that_does_not_repeat_the_headline(stuck: Picture) -> None:
    assert (f"Pods\n  {NEW_POD}  not ready: ImagePullFailed\n  {OLD_POD}   ready\n") in render_explain(stuck, now=NOW)


def test_a_pod_with_another_obstacle_than_the_headlines_tells_it_whole() -> None:
    parts = recorded("stuck_rollout")
    other = copy.deepcopy(next(o for o in parts["objects"] if o["metadata"]["name"] == NEW_POD))
    other["metadata"]["name"] = "another-pod"
    parts["objects"].append(other)
    assert "another-pod                   not ready: ImagePullFailed: pod another-pod cannot pull" in render_explain(
        a_picture(parts), now=NOW
    )


def test_a_pod_that_leaves_is_not_called_broken(ready: Picture) -> None:
    parts = recorded("ready")
    pod = next(o for o in parts["objects"] if o["kind"] == "Pod")
    pod["metadata"]["deletionTimestamp"] = "2026-11-30T09:55:00Z"
    assert f"{OLD_POD}  finishes its requests and leaves" in render_explain(a_picture(parts), now=NOW)


@pytest.mark.parametrize(
    ("status", "started", "words"),
    [
        ({"Ready": "False", "ContainersReady": "False"}, False, "loading the model"),
        ({"Ready": "False", "ContainersReady": "False"}, True, "its engine was ready and is not any more"),
        ({"Ready": "False"}, True, "NodeLost: node node-1 of pod"),
    ],
)
def test_a_pod_that_runs_and_is_not_ready_says_what_it_waits_for(
    status: dict[str, str], started: bool, words: str
) -> None:
    parts = recorded("ready")
    pod = next(o for o in parts["objects"] if o["kind"] == "Pod")
    for condition in pod["status"]["conditions"]:
        condition["status"] = status.get(condition["type"], condition["status"])
    pod["status"]["containerStatuses"][0]["started"] = started
    assert f"{OLD_POD}  not ready: {words}" in render_explain(a_picture(parts), now=NOW)


def test_a_pod_that_waits_for_its_volumes_says_so_at_once() -> None:
    parts = recorded("ready")
    status = next(o for o in parts["objects"] if o["kind"] == "Pod")["status"]
    status["phase"] = "Pending"
    for condition in status["conditions"]:
        condition |= {"status": "False", "lastTransitionTime": "2026-11-30T09:55:59Z"}
    text = render_explain(a_picture(parts), now=NOW)
    assert f"{OLD_POD}  not ready: waiting for its volumes and its network" in text


def test_the_last_events_come_in_their_order_with_their_ages(stuck: Picture) -> None:
    told = render_explain(stuck, now=NOW).partition("Events\n")[2].splitlines()
    assert [line.split()[:3] for line in told] == [
        ["3m", "Normal", "Created"],
        ["13s", "Normal", "Ready"],
        ["9s", "Warning", "ImagePullFailed"],
    ]


def test_the_tree_goes_from_the_service_to_the_pods(stuck: Picture) -> None:
    assert render_tree(stuck, now=NOW) == (
        "InferenceService/chat                         not ready: ImagePullFailed\n"
        "├── ConfigMap/chat-routing\n"
        "├── Deployment/chat-engine                    1 of 1 ready\n"
        "│   ├── ReplicaSet/chat-engine-5c88c9bd46     0 of 1 ready\n"
        f"│   │   └── Pod/{NEW_POD}  not ready: ImagePullFailed on node-1\n"
        "│   └── ReplicaSet/chat-engine-f885f5cdd      1 of 1 ready\n"
        f"│       └── Pod/{OLD_POD}   ready on node-1\n"
        "├── NetworkPolicy/chat-engine\n"
        "├── PodDisruptionBudget/chat-engine\n"
        "├── Service/chat\n"
        "├── Service/chat-engine\n"
        "└── ServiceAccount/chat-engine\n"
    )


def test_the_tree_leaves_out_what_only_has_the_label(stuck: Picture) -> None:
    stranger = {"kind": "ConfigMap", "metadata": {"name": "stranger", "uid": "x"}}
    picture = Picture(stuck.service, (*stuck.objects, stranger), stuck.events)
    assert "stranger" not in render_tree(picture, now=NOW)
