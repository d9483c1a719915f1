"""Which changes are told as Events, a case for each sentence, and the story of a rollout in order."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_operator.domain.events import RULES, Event, events


def status(
    desired: int = 2, *, older: int = 0, decision: tuple[int, int, str] | None = None, **conditions: Any
) -> dict[str, Any]:
    """A status; ``conditions``: type -> ``(status, reason)`` or ``(status, reason, message)``; ``decision``: the
    autoscaler's last: from, to, why.
    """
    quiet = {
        "Ready": ("True", "AllReplicasReady"),
        "Serving": ("True", "ReplicasReady"),
        "Degraded": ("False", "AsExpected"),
        "Draining": ("False", "NoneLeaving"),
        "Unsupported": ("False", "AllSupported"),
    }
    return {
        "desiredReplicas": desired,
        "replicas": desired + older,
        "updatedReplicas": desired,
        **({} if decision is None else {"autoscaling": {"decisions": [decided(*decision)]}}),
        "conditions": [
            {"type": type_, "status": said[0], "reason": said[1], "message": said[2] if len(said) > 2 else "…"}
            for type_, said in {**quiet, **conditions}.items()
        ],
    }


def decided(before: int, after: int, reason: str) -> dict[str, Any]:
    return {"time": "2026-11-30T12:00:00Z", "from": before, "to": after, "reason": reason, "message": "as measured"}


NOT_READY = ("False", "ReplicasStarting")
NOT_SERVING = ("False", "NoReplicaReady")
NEWS = ("a goes: it is not ready, so nothing is lost with it", "b stays after all: 3 replicas are wanted")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Event]] = {
    "the service is seen for the first time and can be made": (
        {},
        status(Ready=("False", "Creating"), Serving=NOT_SERVING),
        Event("Normal", "Created", "replicas to make: 2"),
    ),
    "other fields than before are not acted on": (
        status(Unsupported=("True", "NotBuiltYet", "spec.a")),
        status(Unsupported=("True", "NotBuiltYet", "spec.a, spec.b")),
        Event("Warning", "NotBuiltYet", "spec.a, spec.b"),
    ),
    "another number of replicas is wanted": (
        status(1, Ready=NOT_READY),
        status(3, Ready=NOT_READY),
        Event("Normal", "Scaled", "from 1 to 3 replicas"),
    ),
    "another number would be wanted, were decisions acted on": (
        status(2, AutoscalingActive=("True", "DryRun")),
        status(2, AutoscalingActive=("True", "DryRun"), decision=(2, 4, "PrefillSpeed")),
        Event("Normal", "WouldScale", "from 2 to 4 replicas: PrefillSpeed: as measured"),
    ),
    "a replica is chosen to go, or stays after all": (
        status(),
        status(),
        Event("Normal", "ReplicaChosen", "; ".join(NEWS)),
    ),
    "pods of a new revision begin to replace the former ones": (
        status(Ready=("False", "Updating")),
        status(Ready=("False", "RolloutInProgress"), older=1),
        Event("Normal", "RolloutStarted", "2 of 2 replicas are of this revision, 1 are older"),
    ),
    "replicas begin to finish their requests": (
        status(),
        status(Draining=("True", "FinishingRequests", "leaving: 1")),
        Event("Normal", "Draining", "leaving: 1"),
    ),
    "something needs attention, or something else than before": (
        status(Ready=NOT_READY, Degraded=("True", "Unschedulable")),
        status(Ready=NOT_READY, Degraded=("True", "ImagePullFailed", "pod p")),
        Event("Warning", "ImagePullFailed", "pod p"),
    ),
    "the service serves, and not everything of it is ready": (
        status(Ready=NOT_READY, Serving=NOT_SERVING),
        status(Ready=NOT_READY, Serving=("True", "ReplicasReady", "1 of 2")),
        Event("Normal", "Serving", "1 of 2"),
    ),
    "no replica takes requests any more although some should": (
        status(Ready=NOT_READY),
        status(Ready=NOT_READY, Serving=("False", "NoReplicaReady", "none")),
        Event("Warning", "NotServing", "none"),
    ),
    "everything is ready": (
        status(Ready=NOT_READY),
        status(Ready=("True", "AllReplicasReady", "all 2")),
        Event("Normal", "Ready", "all 2"),
    ),
}


def test_every_rule_has_a_case() -> None:
    assert list(CASES) == [rule.sentence for rule in RULES]


@pytest.mark.parametrize("sentence", CASES)
def test_the_change_is_told_once(sentence: str) -> None:
    before, after, event = CASES[sentence]
    news = NEWS if event.reason == "ReplicaChosen" else ()
    assert events(before, after, news) == (event,)
    assert events(after, after) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (status(), status(Serving=("True", "ReplicasReady", "another count"))),
        (status(Ready=NOT_READY, Serving=NOT_SERVING), status(Ready=NOT_READY, Serving=("False", "Other"))),
        (status(1), status(1, Draining=("False", "Other"))),
    ],
)
def test_a_change_of_words_is_not_told(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert events(before, after) == ()


STUCK: dict[str, Any] = {"Ready": ("False", "ImagePullFailed"), "Degraded": ("True", "ImagePullFailed")}


def test_a_rollout_whose_first_pod_is_in_trouble_at_once_is_told_to_have_started_first() -> None:
    told = events(status(Ready=("False", "Updating")), status(older=2, **STUCK))
    assert [e.reason for e in told] == ["RolloutStarted", "ImagePullFailed"]


def test_a_rollout_that_gets_out_of_trouble_does_not_start_again() -> None:
    assert events(status(older=2, **STUCK), status(older=1, Ready=("False", "RolloutInProgress"))) == ()


def test_another_change_in_the_middle_of_a_rollout_starts_another_one() -> None:
    updating = status(older=1, Ready=("False", "Updating"))
    assert events(status(older=1, Ready=("False", "RolloutInProgress")), updating) == ()
    told = events(updating, status(older=1, Ready=("False", "RolloutInProgress")))
    assert [e.reason for e in told] == ["RolloutStarted"]


def test_a_change_that_the_autoscaler_decided_is_told_with_its_reason() -> None:
    told = events(status(1, Ready=NOT_READY), status(3, Ready=NOT_READY, decision=(1, 3, "PrefillSpeed")))
    assert told == (Event("Normal", "Scaled", "from 1 to 3 replicas: PrefillSpeed: as measured"),)


def test_a_change_that_a_dry_run_wanted_in_the_same_second_is_told_with_its_reason() -> None:
    wanted = (1, 3, "PrefillSpeed")
    told = events(status(1, Ready=NOT_READY, decision=wanted), status(3, Ready=NOT_READY, decision=wanted))
    assert told == (Event("Normal", "Scaled", "from 1 to 3 replicas: PrefillSpeed: as measured"),)


def test_an_old_decision_is_no_reason_for_another_number() -> None:
    before = status(3, Ready=NOT_READY, decision=(1, 3, "PrefillSpeed"))
    told = events(before, status(2, Ready=NOT_READY, decision=(1, 3, "PrefillSpeed")))
    assert told == (Event("Normal", "Scaled", "from 3 to 2 replicas"),)


def test_the_last_replica_of_a_service_that_is_scaled_to_zero_gives_no_warning() -> None:
    assert [e.reason for e in events(status(1), status(0, Serving=("False", "NoReplicasWanted")))] == ["Scaled"]


def test_a_replica_that_gets_ready_on_its_way_to_zero_is_not_told_serving() -> None:
    leaving = ("False", "ReplicasLeaving")
    before = status(0, Ready=leaving, Serving=NOT_SERVING, Draining=("True", "FinishingRequests"))
    after = status(0, Ready=leaving, Draining=("True", "FinishingRequests"))
    assert events(before, after) == ()


def test_a_service_of_one_replica_is_told_ready_without_serving() -> None:
    starting = status(1, Ready=NOT_READY, Serving=NOT_SERVING)
    assert [e.reason for e in events(starting, status(1))] == ["Ready"]


def test_a_service_that_cannot_be_made_is_not_told_created() -> None:
    refused = status(0, Ready=("False", "InvalidSpec"), Serving=NOT_SERVING, Degraded=("True", "InvalidSpec"))
    assert [e.reason for e in events({}, refused)] == ["InvalidSpec"]


def test_a_service_whose_pods_are_in_trouble_at_once_is_told_created_first() -> None:
    stuck = status(1, Ready=("False", "Unschedulable"), Serving=NOT_SERVING, Degraded=("True", "Unschedulable"))
    assert [e.reason for e in events({}, stuck)] == ["Created", "Unschedulable"]
