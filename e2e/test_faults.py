"""Every single fault on the way to the API server: the world comes to the same state as without it.

One service a fault, each in a namespace of its own, all at once under one operator; the proxy spoils one call about
that namespace, of making the service or of changing it. Then the operator is killed at each of its writes.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from fault_proxy import FAULTS, Fault, FaultProxy, Plan
from operator_process import OperatorProcess, operator
from operator_setup import prepare
from sapwood_operator.domain import names
from waiting_services import CHILDREN, NOWHERE
from world import World, condition, eventually

Work = Literal["made", "changed"]
NUM_CALLS: Mapping[Work, int] = {"made": 16, "changed": 5}
"""Calls that it takes at least, however they fall into turns. Made: each child is looked for and applied, something is
told, status. Changed: the three children that differ are applied, the rollout is told, status."""
NUM_WRITES: Mapping[Work, int] = {"made": 9, "changed": 5}
CONVERGE_SECONDS = 240.0
RUN = f"fault-{os.getpid()}"
CHANGE: Mapping[str, Any] = {
    "model": {"name": "other", "source": {"builtin": "smollm2-135m"}},
    "disruption": {"minAvailable": "50%"},
}
"""What a service is changed to: the budget, the pods and the route differ then."""
CASES: list[tuple[Work, Fault, int]] = [
    (work, fault, number) for work, calls in NUM_CALLS.items() for fault in FAULTS for number in range(1, calls + 1)
]
KILLS: list[tuple[Work, int]] = [
    (work, number) for work, writes in NUM_WRITES.items() for number in range(1, writes + 1)
]
_GIVEN_ANEW = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
"""Metadata that no two objects have in common."""


@dataclass(frozen=True, slots=True)
class Stage:
    """An operator behind a proxy that spoils calls."""

    world: World
    proxy: FaultProxy
    kubeconfig: Path
    log: Path

    def make(self, namespace: str) -> None:
        self.world.make_namespace(namespace)
        self.world.make_service(namespace, placement=NOWHERE)

    def change(self, namespace: str) -> None:
        self.world.make_service(namespace, placement=NOWHERE, **CHANGE)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    site = prepare(tmp_path_factory.mktemp("faults"))
    with FaultProxy(site.upstream()).running() as proxy:
        yield Stage(site.world, proxy, site.kubeconfig(server=proxy.address), site.folder / "log")


def state_of(world: World, namespace: str) -> dict[str, Any]:
    """Return what must be the same whatever went wrong on the way; empty while it is not settled."""
    service = world.service(namespace)
    if condition(service, "Degraded").get("reason") != "Unschedulable":
        return {}
    assert service is not None
    if service["status"]["observedGeneration"] != service["metadata"]["generation"]:
        return {}
    told = [(event["reason"], event["note"]) for event in world.events(namespace)]
    return {
        "children": {str(key): _essence(child, service) for key, child in world.children(namespace).items()},
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in service["status"]["conditions"]},
        "generation": service["metadata"]["generation"],
        "told twice": len(told) - len(set(told)),
    }


def _essence(child: Mapping[str, Any], service: Mapping[str, Any]) -> object:
    """All of a child but what each object is given anew; what differs by the namespace is named by its role."""
    metadata = {key: value for key, value in child["metadata"].items() if key not in _GIVEN_ANEW}
    rest = {key: value for key, value in child.items() if key not in ("metadata", "status")}
    if child["kind"] == "Service":
        rest["spec"] = {key: value for key, value in child["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    text = json.dumps({"metadata": metadata, **rest})
    owner = service["metadata"]
    own_words = (owner["uid"], owner["namespace"], child["metadata"]["annotations"][names.APPLIED_ANNOTATION])
    for word, role in zip(own_words, ("its owner", "its namespace", "what was applied"), strict=True):
        text = text.replace(word, role)
    return json.loads(text)


def undisturbed(work: Work) -> str:
    """The namespace of a service whose calls all go well."""
    return f"{RUN}-{work}"


def namespace_of(work: Work, fault: str, number: int) -> str:
    return f"{RUN}-{work}-{fault.replace(' ', '-')}-{number}"


def wait_until_settled(stage: Stage, *namespaces: str) -> None:
    for namespace in namespaces:
        state = partial(state_of, stage.world, namespace)
        eventually(state, f"a settled {namespace}", within_seconds=CONVERGE_SECONDS)


def check_same(stage: Stage, namespace: str, twin: str) -> None:
    """Fail unless ``namespace`` comes to the state of ``twin``, in which nothing went wrong."""
    wait_until_settled(stage, namespace, twin)
    with suppress(AssertionError):  # the comparison below shows what differs
        eventually(lambda: state_of(stage.world, namespace) == state_of(stage.world, twin), "the same state")
    assert state_of(stage.world, namespace) == state_of(stage.world, twin)


@pytest.fixture(scope="module")
def all_faults(stage: Stage) -> Iterator[Mapping[str, Plan]]:
    """Namespace -> what happened there, once every service has had its fault and settled."""
    plans = {namespace_of(*case): Plan(fault_at=case[2], fault=case[1]) for case in CASES}
    plans |= {undisturbed(work): Plan() for work in NUM_CALLS}
    changed = [namespace for namespace in plans if namespace.startswith(undisturbed("changed"))]
    to_be_killed = [namespace_of(work, "killed", number) for work, number in KILLS if work == "changed"]
    with operator(stage.kubeconfig, stage.log, identity="faulty", options={"workers": 16}) as process:
        process.wait_until_leading()
        for namespace in plans:
            if namespace not in changed:
                stage.proxy.plan(namespace, plans[namespace])
        for namespace in (*changed, *plans.keys() - changed, *to_be_killed):
            stage.make(namespace)
        wait_until_settled(stage, *changed)
        for namespace in changed:
            stage.proxy.plan(namespace, plans[namespace])
            stage.change(namespace)
        # It must not lead any more when others are killed; what has not settled by then fails its own test.
        with suppress(AssertionError):
            wait_until_settled(stage, *plans, *to_be_killed)
    yield plans
    for namespace in (*plans, *to_be_killed):
        stage.world.delete(f"/api/v1/namespaces/{namespace}")


@pytest.mark.parametrize("work", NUM_CALLS)
def test_the_table_names_every_call(stage: Stage, all_faults: Mapping[str, Plan], work: Work) -> None:
    plan = all_faults[undisturbed(work)]
    assert len(plan.calls) >= NUM_CALLS[work], plan.calls
    assert plan.num_writes >= NUM_WRITES[work], plan.calls
    applied = {call for call in plan.calls if call.startswith("PATCH")}
    num_children = len(CHILDREN) if work == "made" else 3
    assert len(applied) == num_children + 1, plan.calls  # and a status


@pytest.mark.parametrize(("work", "fault", "number"), CASES, ids=lambda value: str(value))
def test_a_service_comes_to_the_same_state_although_one_call_failed(
    stage: Stage, all_faults: Mapping[str, Plan], work: Work, fault: Fault, number: int
) -> None:
    namespace = namespace_of(work, fault, number)
    check_same(stage, namespace, undisturbed(work))
    assert all_faults[namespace].struck


@dataclass(slots=True)
class Mortals:
    """One operator after the other."""

    stage: Stage
    stack: ExitStack
    living: OperatorProcess

    def succeed(self) -> None:
        """Start an operator in place of the one that died, and return once it leads."""
        self.living = self.stack.enter_context(operator(self.stage.kubeconfig, self.stage.log, identity="mortal"))
        self.living.wait_until_leading()


@pytest.fixture(scope="module")
def mortals(stage: Stage, all_faults: Mapping[str, Plan]) -> Iterator[Mortals]:
    with ExitStack() as stack:
        first = stack.enter_context(operator(stage.kubeconfig, stage.log, identity="mortal"))
        first.wait_until_leading()
        yield Mortals(stage, stack, first)


@pytest.mark.parametrize(("work", "number"), KILLS)
def test_a_service_comes_to_the_same_state_although_the_operator_was_killed_after_a_write(
    stage: Stage, mortals: Mortals, work: Work, number: int
) -> None:
    """The API server has done the write; the operator never learns of it."""
    namespace = namespace_of(work, "killed", number)
    died = threading.Event()

    def kill(write: int) -> None:
        if write == number and not died.is_set():
            mortals.living.process.kill()
            died.set()

    stage.proxy.plan(namespace, Plan(after_write=kill))
    (stage.make if work == "made" else stage.change)(namespace)
    assert died.wait(CONVERGE_SECONDS), "so many writes are never made"
    mortals.succeed()
    check_same(stage, namespace, undisturbed(work))
    stage.world.delete(f"/api/v1/namespaces/{namespace}")
