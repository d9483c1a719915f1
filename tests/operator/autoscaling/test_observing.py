"""What a decision looks at, read from live objects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from support_scaling import reading

from sapwood_operator.autoscaling.observing import replicas_of, rollout_of
from sapwood_operator.autoscaling.pods import Leaving, PodSeen, Rollout, pods_seen
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.values import NoReading, Stage
from sapwood_operator.autoscaling.victims import Progress
from sapwood_operator.domain.names import ENGINE_CONTAINER

NOW = 1_796_040_000.0


def ago(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(NOW - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(type_: str, seconds: float) -> dict[str, str]:
    """One that changed so long ago."""
    return {"type": type_, "lastTransitionTime": ago(seconds)}


SCHEDULED = condition("PodScheduled", 300.0)


@pytest.mark.parametrize(
    ("progress", "conditions", "said", "stage", "age"),
    [
        ("unplaced", [], None, "pending", 400.0),
        ("unplaced", [{"type": "PodScheduled"}], None, "pending", 400.0),
        ("waiting", [SCHEDULED], None, "starting", 300.0),
        ("running", [SCHEDULED, condition("Ready", 300.0)], None, "starting", 300.0),
        ("running", [SCHEDULED, condition("Ready", 300.0)], "warming", "warming", 300.0),
        ("running", [SCHEDULED], "draining", "starting", 300.0),
        ("running", [SCHEDULED, condition("Ready", 20.0)], None, "starting", 20.0),
        ("ready", [SCHEDULED, condition("Ready", 100.0)], "ready", "ready", 100.0),
        ("ready", [SCHEDULED], "warming", "ready", 400.0),
        ("ready", [condition("Ready", -5.0)], "ready", "ready", 0.0),
    ],
    ids=[
        "no node takes it",
        "a condition without a time says nothing",
        "it has a node since",
        "it was never ready",
        "it computes prefixes",
        "its engine says something else",
        "it was ready until lately and starts anew",
        "it is ready since",
        "nobody says since when it is ready",
        "its clock is ahead",
    ],
)
def test_how_far_a_replica_is_and_since_when(
    progress: Progress, conditions: list[dict[str, str]], said: Any, stage: Stage, age: float
) -> None:
    seen = PodSeen(name="a", uid="u", created=NOW - 400.0, progress=progress, has_served=False)
    pod = {"metadata": {"uid": "u"}, "status": {"conditions": conditions}}
    signals = ServiceSignals(states={} if said is None else {"u": said})
    (found,) = replicas_of([pod], [seen], (), signals, NOW)
    assert (found.uid, found.name, found.stage, found.age_seconds) == ("u", "a", stage, age)
    assert isinstance(found.reading, NoReading)


def test_a_replica_that_was_chosen_or_is_deleted_leaves() -> None:
    pods = [PodSeen(name=name, uid=name, created=NOW - 400.0, progress="ready", has_served=True) for name in "ab"]
    going = PodSeen(name="c", uid="c", created=NOW - 400.0, progress="ready", has_served=True, is_going=True)
    live = [{"metadata": {"uid": uid}} for uid in "abc"]
    signals = ServiceSignals(readings={"a": reading(0.5)})
    found = replicas_of(live, [*pods, going], [Leaving("b", "b", NOW - 7.0)], signals, NOW)
    assert [(each.stage, each.age_seconds) for each in found] == [
        ("ready", 400.0),
        ("leaving", 7.0),
        ("leaving", 400.0),
    ]
    assert found[0].reading == reading(0.5)


@pytest.mark.parametrize(
    ("name", "has_started", "has_served"),
    [(ENGINE_CONTAINER, True, True), (ENGINE_CONTAINER, False, False), ("sidecar", True, False)],
)
def test_a_pod_has_served_once_its_engine_started(name: str, has_started: bool, has_served: bool) -> None:
    statuses = [{"name": name, "started": has_started}]
    pod = {"metadata": {"name": "a", "uid": "u"}, "spec": {}, "status": {"containerStatuses": statuses}}
    (seen,) = pods_seen([pod])
    assert (seen.has_served, seen.may_have_requests, seen.created) == (has_served, has_served, 0.0)


LATE = {"type": "Progressing", "reason": "ProgressDeadlineExceeded"}


@pytest.mark.parametrize(
    ("deployment", "rollout"),
    [
        (None, "none"),
        ({}, "none"),
        ({"status": None}, "none"),
        ({"status": {"replicas": 2, "updatedReplicas": 2, "conditions": [LATE]}}, "none"),
        ({"status": {"replicas": 2, "updatedReplicas": 1}}, "moving"),
        ({"status": {"replicas": 1}}, "moving"),
        ({"status": {"replicas": 2, "updatedReplicas": 1, "conditions": [{"type": "Available"}, LATE]}}, "stuck"),
        ({"status": {"replicas": 2, "updatedReplicas": 1, "conditions": [{**LATE, "type": "Other"}]}}, "moving"),
        ({"status": {"replicas": 2, "updatedReplicas": 1, "conditions": [{**LATE, "reason": "Seen"}]}}, "moving"),
    ],
)
def test_how_a_deployment_is_with_its_revisions(deployment: Mapping[str, Any] | None, rollout: Rollout) -> None:
    assert rollout_of(deployment) == rollout
