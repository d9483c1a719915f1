"""What is said of AutoscalingPolicies: whether one can be followed, and how many services do."""

from __future__ import annotations

from typing import Any

import pytest
from support_operator import LATER, NOW, a_service

from sapwood_operator.domain.policies import READY, named_policy, read_policy, status_changes
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.errors import InvalidSpec


def a_policy(name: str = "day", **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "uid": name, "generation": 3}
    return {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "AutoscalingPolicy",
        "metadata": metadata,
        "spec": {"maxReplicas": 4, **spec},
    }


def following(name: str, service: str = "chat") -> dict[str, Any]:
    return a_service(service, autoscaling={"policyRef": {"name": name}})


def told(policy: dict[str, Any], *services: dict[str, Any]) -> dict[str, Any]:
    ((_, status),) = status_changes([policy], services, NOW)
    return dict(status)


CASES = {
    "a field cannot be used": (
        a_policy(minReplicas=5),
        (
            "False",
            "InvalidSpec",
            "spec.maxReplicas: 4 cannot be used: give at least 5; services that name the policy hold their replicas",
        ),
    ),
    "otherwise": (a_policy(), ("True", "Ready", "services that name the policy follow it")),
}


def test_every_rule_has_a_case() -> None:
    assert list(CASES) == [rule.sentence for rule in READY]


@pytest.mark.parametrize("sentence", CASES)
def test_the_rule_decides(sentence: str) -> None:
    policy, said = CASES[sentence]
    (condition,) = told(policy)["conditions"]
    assert (condition["status"], condition["reason"], condition["message"]) == said
    assert told(policy)["observedGeneration"] == 3


def test_the_services_that_name_a_policy_are_counted() -> None:
    leaving = following("day", "gone")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    others = (following("night", "b"), a_service("c", replicas=2), a_service("d", autoscaling={"maxReplicas": 2}))
    assert told(a_policy(), following("day"), following("day", "e"), leaving, *others)["services"] == 2


def test_a_status_that_is_as_it_should_be_is_not_written_however_late_it_is() -> None:
    policy = a_policy()
    policy["status"] = told(policy, following("day"))
    assert status_changes([policy], [following("day")], LATER) == []
    assert len(status_changes([policy], [], LATER)) == 1


def test_a_policy_that_is_being_deleted_gets_no_status() -> None:
    policy = a_policy()
    policy["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert status_changes([policy], [], NOW) == []


def test_a_policy_is_read_with_its_defaults_or_as_what_is_wrong_with_it() -> None:
    assert read_policy(a_policy()) == ScalingPolicy(max_replicas=4)
    assert isinstance(read_policy({"metadata": {}, "spec": []}), InvalidSpec)


@pytest.mark.parametrize("autoscaling", [None, {}, [], {"policyRef": []}, {"policyRef": {"name": 7}}])
def test_a_service_that_names_no_policy_names_none(autoscaling: Any) -> None:
    assert named_policy(a_service(autoscaling=autoscaling)) == ""
