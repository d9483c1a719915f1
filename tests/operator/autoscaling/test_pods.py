"""Pods and those of them that leave, read from live objects and from the status."""

from __future__ import annotations

from typing import Any

import pytest
from support_operator import STARTED, a_pod

from sapwood_operator.autoscaling.pods import Leaving, PodSeen, leaving_of, leaving_status, pods_seen
from sapwood_operator.domain.pod_marks import COST_ANNOTATION, FIRST_TO_GO

CREATED = "2026-11-30T12:00:00Z"
CREATED_AT = 1_796_040_000.0


def read(pod: dict[str, Any]) -> PodSeen:
    pod["metadata"] |= {"uid": "u1", "creationTimestamp": CREATED}
    (seen,) = pods_seen([pod])
    return seen


def test_a_pod_that_serves_is_read_whole() -> None:
    pod = a_pod("chat-1", ready=True, containers=STARTED)
    pod["metadata"]["annotations"] = {COST_ANNOTATION: FIRST_TO_GO}
    assert read(pod) == PodSeen(
        name="chat-1", uid="u1", created=CREATED_AT, progress="ready", has_served=True, is_marked=True
    )


def test_a_cost_that_somebody_else_gave_it_is_no_mark() -> None:
    pod = a_pod("chat-1", ready=True)
    pod["metadata"]["annotations"] = {COST_ANNOTATION: "-100"}
    assert not read(pod).is_marked


def test_how_far_a_pod_is() -> None:
    placed = a_pod("b", phase="Pending")
    placed["spec"] = {"nodeName": "n1"}
    unplaced = a_pod("a", phase="Pending")
    unplaced["spec"] = {}
    assert [read(unplaced).progress, read(placed).progress, read(a_pod("c")).progress] == [
        "unplaced",
        "waiting",
        "running",
    ]


def test_one_that_failed_since_has_served() -> None:
    assert read(a_pod("a", containers=STARTED)).may_have_requests
    assert not read(a_pod("a")).may_have_requests


def test_one_that_is_being_deleted_is_going_and_one_that_has_ended_is_none() -> None:
    assert read(a_pod("a", ready=True, leaving=True)).is_going
    assert pods_seen([a_pod("a", phase="Succeeded"), a_pod("b", phase="Failed")]) == ()


def test_who_leaves_is_read_as_it_was_written() -> None:
    leaving = (Leaving("chat-1", "u1", CREATED_AT), Leaving("chat-2", "u2", CREATED_AT + 1))
    written = leaving_status(leaving)
    assert written[0] == {"pod": "chat-1", "uid": "u1", "since": CREATED}
    assert leaving_of({"leaving": written}) == leaving


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"leaving": None},
        {"leaving": "chat-1"},
        {"leaving": [None, 3, {}, {"pod": "a"}, {"pod": "a", "uid": "u"}]},
        {"leaving": [{"pod": "a", "uid": 7, "since": CREATED}, {"pod": "a", "uid": "u", "since": "yesterday"}]},
        {"leaving": [{"pod": "a", "uid": "u", "since": "2026-11-30T12:00:00"}, {"pod": "a", "uid": "u", "since": 3}]},
    ],
)
def test_what_nobody_of_ours_wrote_means_that_nobody_leaves(status: dict[str, Any]) -> None:
    assert leaving_of(status) == ()
