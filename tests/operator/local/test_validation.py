"""Documents are judged here as the API server judges them: the cases are those that a real one has judged (e2e)."""

from __future__ import annotations

from typing import Any

import pytest
from support_crd_cases import BOUNDS, CASES, Bound, Case, manifest

from sapwood_operator.domain.unsupported import unsupported_fields
from sapwood_operator.local.definitions import read_definitions
from sapwood_operator.local.documents import judged
from sapwood_operator.local.metadata import metadata_problems
from sapwood_operator.local.problems import Problem

DEFINITIONS = read_definitions()
SERVICE = "InferenceService"


def judge(document: dict[str, Any], before: dict[str, Any] | None = None) -> list[Problem]:
    definition = DEFINITIONS[document["kind"]]
    in_force = None if before is None else judged(before, definition)[0]
    return list(judged(document, definition, in_force)[1])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_accepts_one_object_and_refuses_another(case: Case) -> None:
    before = None if case.before is None else manifest(case.kind, case.before)
    assert judge(manifest(case.kind, case.accepted), before) == []
    (problem,) = judge(manifest(case.kind, case.refused), before)
    assert problem.path == case.field
    assert problem.message.endswith(case.message)


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_the_schema_refuses_a_value_out_of_bounds(bound: Bound) -> None:
    (problem,) = judge(manifest(bound.kind, {bound.field: bound.value}))
    assert problem.path == (bound.place or bound.field)


def test_a_rule_about_changes_is_not_asked_of_a_new_object() -> None:
    (case,) = (case for case in CASES if case.id == "other-source-under-the-same-name")
    assert judge(manifest(case.kind, case.refused)) == []


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"spec.replica": 2}, "spec.replica", "there is no such field; is replicas meant?"),
        ({"spec.rollout": {"x": 1}}, "spec.rollout.x", "there are drainTimeout, maxSurge, maxUnavailable"),
        ({"specs": {}}, "specs", "is spec meant?"),
        ({"spec.replicas": "2"}, "spec.replicas", "'2' cannot be used: give a whole number"),
        ({"spec.replicas": 1.0}, "spec.replicas", "1.0 cannot be used: give a whole number"),
        ({"spec.replicas": True}, "spec.replicas", "True cannot be used: give a whole number"),
        ({"spec.replicas": 1001}, "spec.replicas", "1001 cannot be used: take 1000 or less"),
        ({"spec.engine.device": "GPU"}, "spec.engine.device", "'GPU' cannot be used: take one of Auto, CPU, CUDA"),
        ({"spec.model.name": "my model"}, "spec.model.name", "it does not match"),
        ({"spec.model.name": "model\n"}, "spec.model.name", "it does not match"),
        ({"spec.rollout": {"maxSurge": True}}, "spec.rollout.maxSurge", "give a whole number or a text"),
    ],
)
def test_a_problem_names_the_field_quotes_the_value_and_says_what_to_do(
    changes: dict[str, Any], path: str, message: str
) -> None:
    (problem,) = judge(manifest(SERVICE, changes))
    assert problem.path == path
    assert message in problem.message


def test_everything_that_is_wrong_is_told_at_once() -> None:
    wrong = manifest(SERVICE, {"spec.replica": 2, "spec.engine.device": "GPU", "spec.model.source": None})
    assert {problem.path for problem in judge(wrong)} == {"spec.replica", "spec.engine.device", "spec.model.source"}


def test_defaults_are_those_of_the_schema_and_ask_for_nothing_that_is_not_built() -> None:
    service, _ = judged(manifest(SERVICE, {}), DEFINITIONS[SERVICE])
    assert service["spec"]["rollout"] == {"maxSurge": 1, "maxUnavailable": 0, "drainTimeout": "600s"}
    assert not unsupported_fields(service)


def test_a_null_counts_as_absent_and_a_status_is_dropped() -> None:
    given = manifest(SERVICE, {"spec.replicas": None, "spec.rollout": {"maxSurge": None}, "status": {"replicas": 9}})
    service, problems = judged(given, DEFINITIONS[SERVICE])
    assert not problems
    assert "replicas" not in service["spec"]
    assert service["spec"]["rollout"]["maxSurge"] == 1
    assert "status" not in service


def test_a_pod_template_may_hold_what_the_schema_does_not_know() -> None:
    pod = {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}], "$patch": "merge", "x": None}
    service, problems = judged(manifest(SERVICE, {"spec.podTemplate.spec": pod}), DEFINITIONS[SERVICE])
    assert not problems
    assert service["spec"]["podTemplate"]["spec"] == pod


def test_an_item_that_a_list_may_have_once_is_named_by_its_index() -> None:
    key = {"name": "first", "sha256": "0" * 64}
    (problem,) = judge(manifest("Tenant", {"spec.apiKeys": [key, {"name": "first", "sha256": "1" * 64}]}))
    assert problem.path == "spec.apiKeys[1]"
    (problem,) = judge(manifest("Tenant", {"spec.access": {"models": ["a", "b", "a"]}}))
    assert problem.path == "spec.access.models[2]"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"kind": "Tenant", "metadata": {"name": "a"}}, "apiVersion"),
        ({"apiVersion": "v1", "kind": 4, "metadata": {"name": "a"}}, "kind"),
        ({"apiVersion": "v1", "kind": "Secret"}, "metadata.name"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {}}, "metadata.name"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "A_b"}}, "metadata.name"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "a.b"}}, "metadata.namespace"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": 4}}, "metadata.namespace"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "labels": {"a": 1}}}, "metadata.labels"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "label": {}}}, "metadata.label"),
    ],
)
def test_what_every_object_must_say_of_itself_is_asked_for(document: dict[str, Any], path: str) -> None:
    (problem,) = metadata_problems(document)
    assert problem.path == path
