"""What an answer of the API server means: each rule has a row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_operator import a_service

from sapwood_contract.shallow import LEVELS
from sapwood_operator.adapters.outcomes import (
    API_GONE,
    MAX_MESSAGE,
    NAMESPACE_LEAVING,
    Absent,
    Done,
    Outcome,
    Refused,
    Retry,
    judge,
    unreachable,
)
from sapwood_operator.domain.spec import read
from sapwood_operator.errors import InvalidSpec


def status(code: int, reason: str = "", message: str = "", **details: Any) -> bytes:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return json.dumps(body).encode()


RULES: list[tuple[str, int, bytes, str | None, Outcome]] = [
    ("an object is the answer", 200, b'{"kind": "Pod"}', None, Done({"kind": "Pod"})),
    ("an object was created", 201, b'{"kind": "Pod"}', None, Done({"kind": "Pod"})),
    (
        "an object that is not there is absent",
        404,
        status(404, "NotFound", 'deployments.apps "x" not found', name="x", kind="deployments", group="apps"),
        None,
        Absent(),
    ),
    (
        "a namespace that is not there refuses",
        404,
        status(404, "NotFound", 'namespaces "team" not found', name="team", kind="namespaces"),
        None,
        Refused(404, "NotFound", 'namespaces "team" not found'),
    ),
    (
        "a kind that is not there refuses",
        404,
        b"404 page not found\n",
        None,
        Refused(404, API_GONE, "404 page not found\n"),
    ),
    (
        "a kind that has just gone refuses, in the words of a server that still knows its group",
        404,
        status(404, "NotFound", "the server could not find the requested resource"),
        None,
        Refused(404, API_GONE, "the server could not find the requested resource"),
    ),
    (
        "a kind that is going takes nothing new",
        403,
        status(403, "Forbidden", "create not allowed while custom resource definition is terminating"),
        None,
        Refused(403, API_GONE, "create not allowed while custom resource definition is terminating"),
    ),
    (
        "no right, a quota or Pod Security refuses",
        403,
        status(403, "Forbidden", "exceeded quota: gpus"),
        None,
        Refused(403, "Forbidden", "exceeded quota: gpus"),
    ),
    ("a wrong object refuses", 422, status(422, "Invalid", "spec: no"), None, Refused(422, "Invalid", "spec: no")),
    ("a bad request refuses", 400, status(400, "BadRequest", "no"), None, Refused(400, "BadRequest", "no")),
    (
        "a namespace on its way out is a matter of time",
        403,
        status(403, "Forbidden", "being terminated", causes=[{"reason": "NamespaceTerminating"}]),
        None,
        Retry(NAMESPACE_LEAVING, "being terminated"),
    ),
    ("a token may have been replaced", 401, status(401, "Unauthorized", "no"), None, Retry("Unauthorized", "no")),
    ("another write came first", 409, status(409, "Conflict", "changed"), None, Retry("Conflict", "changed")),
    (
        "a busy server says when",
        429,
        status(429, "TooManyRequests", "later"),
        "7",
        Retry("TooManyRequests", "later", 7.0),
    ),
    ("a broken server mends", 500, status(500, "InternalError", "oops"), None, Retry("InternalError", "oops")),
    (
        "an object that is nested too deeply is cut and stops nothing",
        200,
        b'{"deep":' * 5000 + b"1" + b"}" * 5000,
        None,
        Done(json.loads('{"deep":' * LEVELS + "null" + "}" * LEVELS)),
    ),
    ("a proxy's page is no answer", 503, b"<html>", None, Retry("Status503", "<html>")),
    (
        "somebody's webhook that is down must be seen",
        500,
        status(500, "InternalError", 'failed calling webhook "v.example"'),
        None,
        Refused(500, "WebhookFailed", 'failed calling webhook "v.example"'),
    ),
    (
        "a field that the kind does not have stays unknown, although the server calls it its own error",
        500,
        status(500, "", "failed to create typed patch object (…): .spec.x: field not declared in schema"),
        None,
        Refused(500, "Invalid", "failed to create typed patch object (…): .spec.x: field not declared in schema"),
    ),
    (
        "a value that the field cannot have stays wrong, although the server calls it its own error",
        500,
        status(500, "", "failed to convert new object (…) to smd typed: cannot convert float64 to int64"),
        None,
        Refused(500, "Invalid", "failed to convert new object (…) to smd typed: cannot convert float64 to int64"),
    ),
    ("a date as Retry-After is left", 503, b"", "Wed, 21 Oct", Retry("Status503", "")),
]


@pytest.mark.parametrize(("rule", "code", "body", "retry_after", "outcome"), RULES, ids=[rule[0] for rule in RULES])
def test_an_answer_is_judged(rule: str, code: int, body: bytes, retry_after: str | None, outcome: Outcome) -> None:
    assert judge(code, body, retry_after) == outcome


def test_no_answer_is_worth_another_try() -> None:
    assert unreachable(TimeoutError("read timed out")) == Retry("Unreachable", "TimeoutError: read timed out")


def test_a_long_refusal_is_cut_to_what_a_condition_holds() -> None:
    outcome = judge(422, status(422, "Invalid", "x" * 5000), None)
    assert isinstance(outcome, Refused)
    assert len(outcome.message) == MAX_MESSAGE


def test_a_service_that_was_cut_is_still_too_deep_to_be_used() -> None:
    deep = '{"spec":' * 5000 + "1" + "}" * 5000
    text = json.dumps({"items": [a_service(podTemplate="deep")]}).replace('"deep"', deep)
    answer = judge(200, text.encode(), None)
    assert isinstance(answer, Done)
    with pytest.raises(InvalidSpec, match=r"spec\.podTemplate: .* nested more than 64 levels deep"):
        read(answer.body["items"][0])
