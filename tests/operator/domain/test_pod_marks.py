"""Which pods are marked as the first to go, and which lose the mark."""

from __future__ import annotations

from typing import Any

from support_operator import a_pod

from sapwood_operator.domain.pod_marks import COST_ANNOTATION, FIRST_TO_GO, due_marks, is_first_to_go


def marked(name: str, cost: str = FIRST_TO_GO, **rest: Any) -> dict[str, Any]:
    pod = a_pod(name, **rest)
    pod["metadata"]["annotations"] = {COST_ANNOTATION: cost, "other": "stays"}
    return pod


def changes(*pods: dict[str, Any], first_to_go: tuple[str, ...] = ()) -> list[tuple[str, dict[str, str]]]:
    return [(mark["metadata"]["name"], mark["metadata"]["annotations"]) for mark in due_marks(pods, first_to_go)]


def test_a_pod_that_is_to_go_first_gets_the_mark_and_nothing_else_of_it_is_written() -> None:
    (mark,) = due_marks((a_pod("a"), a_pod("b")), ("b",))
    about = {"namespace": "team", "name": "b", "uid": "uid-of-b", "annotations": {COST_ANNOTATION: FIRST_TO_GO}}
    assert mark == {"apiVersion": "v1", "kind": "Pod", "metadata": about}


def test_a_pod_that_stays_after_all_loses_it() -> None:
    assert changes(marked("a"), marked("b"), first_to_go=("b",)) == [("a", {})]


def test_what_is_as_it_should_be_is_not_written() -> None:
    assert changes(a_pod("a"), marked("b"), first_to_go=("b",)) == []


def test_a_cost_that_somebody_else_gave_a_pod_is_theirs() -> None:
    pod = marked("a", "5")
    assert not is_first_to_go(pod)
    assert changes(pod) == []


def test_a_pod_that_is_being_deleted_is_past_this() -> None:
    assert changes(marked("a", leaving=True), a_pod("b", leaving=True), first_to_go=("b",)) == []


def test_the_mark_is_a_number_that_kubernetes_takes() -> None:
    assert -(2**31) <= int(FIRST_TO_GO) < 0
