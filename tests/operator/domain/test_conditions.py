"""The rules of every condition, a case for each sentence, and the times of transitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support_operator import LATER, NOW

from sapwood_operator.domain.conditions import TABLE, Facts, Verdict, judge, write_conditions
from sapwood_operator.domain.obstacles import Obstacle
from sapwood_operator.domain.workload import Workload

DONE = Workload(
    wanted=2,
    exists=True,
    settled=True,
    total=2,
    updated=2,
    ready=2,
    available=2,
    warming=0,
    draining=0,
    model_loaded=True,
)
CRASH = Obstacle("EngineFailed", "pod p: engine ended", about_model=True)
IMAGE = Obstacle("ImagePullFailed", "pod p cannot pull")


def with_pods(**changes: Any) -> Facts:
    return Facts(workload=replace(DONE, **changes))


CASES: dict[tuple[str, str], tuple[Facts, Verdict]] = {
    ("Ready", "the operator cannot make what the spec asks for"): (
        Facts(workload=DONE, refusal=Obstacle("NameTaken", "somebody else's")),
        Verdict("False", "NameTaken", "somebody else's"),
    ),
    ("Ready", "there is no Deployment yet"): (
        Facts(workload=Workload(wanted=2, exists=False, settled=False)),
        Verdict("False", "Creating", "the Deployment is being made"),
    ),
    ("Ready", "the Deployment is behind the spec, or its controller behind the Deployment"): (
        with_pods(settled=False),
        Verdict("False", "Updating", "the Deployment is being brought to this generation"),
    ),
    ("Ready", "a pod cannot get ready"): (
        with_pods(obstacle=IMAGE, total=3, updated=1),
        Verdict(
            "False",
            "ImagePullFailed",
            "pod p cannot pull. 2 of 2 replicas of the former revision go on serving",
        ),
    ),
    ("Ready", "pods of a former revision are left"): (
        with_pods(total=3, updated=1),
        Verdict("False", "RolloutInProgress", "1 of 2 replicas are of this revision, 2 are older"),
    ),
    ("Ready", "fewer replicas are there, ready or available than wanted"): (
        with_pods(ready=1),
        Verdict("False", "ReplicasStarting", "1 of 2 replicas are ready"),
    ),
    ("Ready", "more replicas are there than wanted"): (
        with_pods(total=3, updated=3, ready=3, available=3),
        Verdict("False", "ReplicasLeaving", "3 replicas are there, 2 are wanted"),
    ),
    ("Ready", "otherwise"): (
        with_pods(),
        Verdict("True", "AllReplicasReady", "all 2 replicas are ready at this generation"),
    ),
    ("Serving", "a replica is ready and not about to go"): (
        with_pods(ready=2, cordoned=1),
        Verdict("True", "ReplicasReady", "1 of 2 replicas take requests"),
    ),
    ("Serving", "no replica is wanted, and the next request wakes one"): (
        Facts(workload=replace(DONE, wanted=0, ready=1, cordoned=1), wakes=True),
        Verdict("False", "ScaledToZero", "nobody asks; the gateway holds the next request until a replica is up"),
    ),
    ("Serving", "no replica is wanted"): (
        with_pods(wanted=0, ready=0),
        Verdict("False", "NoReplicasWanted", "the service is scaled to zero; raise spec.replicas to serve"),
    ),
    ("Serving", "otherwise"): (
        with_pods(ready=0),
        Verdict("False", "NoReplicaReady", "no replica takes requests yet"),
    ),
    ("ModelAvailable", "a pod cannot get at the model"): (
        with_pods(obstacle=CRASH, model_loaded=False),
        Verdict("False", "EngineFailed", "pod p: engine ended"),
    ),
    ("ModelAvailable", "a replica of this revision is ready"): (
        with_pods(obstacle=IMAGE),
        Verdict("True", "Loaded", "a replica of this revision has loaded the model"),
    ),
    ("ModelAvailable", "otherwise"): (
        with_pods(model_loaded=False),
        Verdict("Unknown", "NotLoadedYet", "no replica of this revision is ready"),
    ),
    ("Degraded", "the operator cannot make what the spec asks for"): (
        Facts(workload=replace(DONE, obstacle=IMAGE), refusal=Obstacle("InvalidSpec", "spec.x: …")),
        Verdict("True", "InvalidSpec", "spec.x: …"),
    ),
    ("Degraded", "a pod cannot get ready"): (
        with_pods(obstacle=IMAGE),
        Verdict("True", "ImagePullFailed", "pod p cannot pull"),
    ),
    ("Degraded", "the cluster lacks an API that the spec relies on"): (
        Facts(workload=DONE, missing_api=Obstacle("ApiMissing", "spec.exposure.gateway needs …")),
        Verdict("True", "ApiMissing", "spec.exposure.gateway needs …"),
    ),
    ("Degraded", "otherwise"): (with_pods(), Verdict("False", "AsExpected", "nothing needs attention")),
    ("Draining", "pods finish their requests"): (
        with_pods(draining=1),
        Verdict("True", "FinishingRequests", "replicas that finish their requests before they go: 1"),
    ),
    ("Draining", "otherwise"): (with_pods(), Verdict("False", "NoneLeaving", "no replica is leaving")),
    ("Unsupported", "a field asks for what is not built yet"): (
        Facts(workload=DONE, unsupported=("spec.a", "spec.b")),
        Verdict("True", "NotBuiltYet", "nothing acts on these fields yet: spec.a, spec.b"),
    ),
    ("Unsupported", "otherwise"): (
        with_pods(),
        Verdict("False", "AllSupported", "every field that is given is acted on"),
    ),
}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {(type_, rule.sentence) for type_, rules in TABLE.items() for rule in rules}


@pytest.mark.parametrize(("type_", "sentence"), CASES, ids=lambda value: value)
def test_the_rule_decides(type_: str, sentence: str) -> None:
    facts, verdict = CASES[type_, sentence]
    first = next(rule.sentence for rule in TABLE[type_] if rule.holds(facts))
    assert first == sentence
    assert judge(facts)[type_] == verdict


def test_serving_goes_on_while_nothing_new_can_be_made() -> None:
    verdicts = judge(Facts(workload=DONE, refusal=Obstacle("InvalidSpec", "x")))
    assert (verdicts["Serving"].status, verdicts["Ready"].status) == ("True", "False")


def test_zero_replicas_that_are_wanted_are_all_ready() -> None:
    none = replace(DONE, wanted=0, total=0, updated=0, ready=0, available=0)
    assert judge(Facts(workload=none))["Ready"].status == "True"


def written(facts: Facts, former: list[dict[str, Any]], **when: Any) -> list[dict[str, Any]]:
    return write_conditions(judge(facts), former, **{"generation": 1, "now": NOW, **when})


def test_the_time_of_a_transition_changes_with_the_status_alone() -> None:
    first = written(with_pods(ready=0), [])
    second = written(with_pods(ready=1), first, now=LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in second}
    assert times["Serving"] == "2026-11-30T13:00:00Z"
    assert times["Ready"] == "2026-11-30T12:00:00Z"


def test_equal_facts_give_equal_conditions_however_late_it_is() -> None:
    first = written(with_pods(), [])
    assert written(with_pods(), first, now=LATER) == first


def test_conditions_of_others_stay() -> None:
    other = {"type": "Audited", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert other in written(with_pods(), [other])


def test_a_message_is_bounded() -> None:
    endless = Facts(workload=DONE, refusal=Obstacle("ApplyRefused", "x" * 100_000))
    assert max(len(c["message"]) for c in written(endless, [])) <= 4096
