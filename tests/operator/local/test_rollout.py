"""What a Deployment's controller decides: bounded by maxSurge and maxUnavailable, and always at an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood_operator.domain.pod_marks import COST_ANNOTATION, FIRST_TO_GO
from sapwood_operator.local.pod import Pod, Ports, Serving, Starting
from sapwood_operator.local.rollout import Change, change, template_hash
from sapwood_operator.local.world import ServiceKey

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def deployment(
    replicas: int, template: str = "new", surge: int | str = 1, unavailable: int | str = 0
) -> dict[str, Any]:
    return {
        "spec": {
            "replicas": replicas,
            "template": {"is": template},
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        }
    }


def a_pod(
    number: int, template: str = "new", *, ready: bool = True, leaving: bool = False, marked: bool = False
) -> Pod:
    return Pod(
        service=ServiceKey("default", "chat"),
        name=f"p{number}",
        uid=f"u{number}",
        template_hash=template_hash(deployment(1, template)),
        template={},
        number=number,
        ports=Ports(http=1, admin=2),
        created=NOW,
        condition=Serving(is_ready=True, since=NOW) if ready else Starting(),
        is_leaving=leaving,
        annotations={COST_ANNOTATION: FIRST_TO_GO} if marked else {},
    )


@pytest.mark.parametrize(
    ("asked", "pods", "expected"),
    [
        pytest.param(deployment(2), [], Change(num_new=2), id="from-nothing"),
        pytest.param(deployment(2), [a_pod(1), a_pod(2)], Change(), id="as-it-should-be"),
        pytest.param(deployment(0), [a_pod(1)], Change(leaving=("p1",)), id="to-nothing"),
        pytest.param(deployment(1), [a_pod(1), a_pod(2)], Change(leaving=("p2",)), id="the-youngest-goes"),
        pytest.param(
            deployment(1), [a_pod(1, marked=True), a_pod(2)], Change(leaving=("p1",)), id="one-that-is-marked-goes"
        ),
        pytest.param(
            deployment(1),
            [a_pod(1, marked=True), a_pod(2, ready=False)],
            Change(leaving=("p2",)),
            id="not-before-one-that-serves-nobody",
        ),
        pytest.param(
            deployment(1), [a_pod(1, ready=False), a_pod(2)], Change(leaving=("p1",)), id="one-that-serves-nobody-goes"
        ),
        pytest.param(deployment(1), [a_pod(1, leaving=True)], Change(num_new=1), id="one-that-leaves-does-not-count"),
        pytest.param(deployment(2), [a_pod(1, "old"), a_pod(2, "old")], Change(num_new=1), id="surge-first"),
        pytest.param(
            deployment(2),
            [a_pod(1, "old"), a_pod(2, "old"), a_pod(3, ready=False)],
            Change(),
            id="nobody-goes-before-the-new-one-is-ready",
        ),
        pytest.param(
            deployment(2),
            [a_pod(1, "old"), a_pod(2, "old"), a_pod(3)],
            Change(num_new=1, leaving=("p1",)),
            id="an-old-one-makes-room",
        ),
        pytest.param(
            deployment(2),
            [a_pod(1, "old"), a_pod(2, "old", marked=True), a_pod(3)],
            Change(num_new=1, leaving=("p2",)),
            id="of-the-old-ones-the-marked-one-first",
        ),
        pytest.param(
            deployment(2, surge=0, unavailable=1),
            [a_pod(1, "old"), a_pod(2, "old")],
            Change(num_new=1, leaving=("p1",)),
            id="without-surge-one-goes-first",
        ),
        pytest.param(
            deployment(1), [a_pod(1, "old", ready=False)], Change(num_new=1, leaving=("p1",)), id="a-broken-one-goes"
        ),
        pytest.param(
            deployment(4, surge="25%", unavailable="25%"),
            [a_pod(n, "old") for n in range(4)],
            Change(num_new=2, leaving=("p0",)),
            id="shares",
        ),
        pytest.param(
            deployment(1, surge=0, unavailable="25%"),
            [a_pod(1, "old")],
            Change(num_new=1, leaving=("p1",)),
            id="shares-that-come-to-nothing-mean-one-may-be-missing",
        ),
    ],
)
def test_the_next_step(asked: dict[str, Any], pods: list[Pod], expected: Change) -> None:
    assert change(asked, pods) == expected


BOUNDS = st.sampled_from([(1, 0), (0, 1), (2, 1), ("50%", 0), ("30%", "30%"), (0, 0)])


def rollout(asked: dict[str, Any], pods: list[Pod]) -> Iterator[list[Pod]]:
    """Yield the pods that stay after every step, until nothing is left to do; new pods get ready between two steps."""
    for _ in range(100):
        due = change(asked, pods)
        if due == Change():
            return
        kept = [pod for pod in pods if pod.name not in due.leaving]
        begin = max((pod.number for pod in pods), default=0) + 1
        pods = kept + [a_pod(begin + index, ready=False) for index in range(due.num_new)]
        yield pods
        pods = [replace(pod, condition=Serving(is_ready=True, since=NOW)) for pod in pods]
    raise AssertionError("it comes to no end")


@given(wanted=st.integers(0, 6), bounds=BOUNDS, old=st.lists(st.booleans(), max_size=6))
def test_a_rollout_ends_within_its_bounds(wanted: int, bounds: tuple[Any, Any], old: list[bool]) -> None:
    asked = deployment(wanted, surge=bounds[0], unavailable=bounds[1])
    pods = [a_pod(number, "old", ready=ready) for number, ready in enumerate(old)]
    most = max(
        wanted + (int(bounds[0].removesuffix("%")) * wanted + 99) // 100
        if isinstance(bounds[0], str)
        else wanted + bounds[0],
        len(pods),
    )
    missing = max(1, wanted) if isinstance(bounds[1], str) or bounds == (0, 0) else bounds[1]
    least = min(wanted - missing, sum(old))
    last = pods
    for last in rollout(asked, pods):
        assert len(last) <= most
        assert sum(pod.is_ready for pod in last) >= least
    assert len(last) == wanted
    assert {pod.template_hash for pod in last} <= {template_hash(asked)}
