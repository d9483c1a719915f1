"""Every single fault on the way to the API server: the world comes to the same state as without it.

One service a fault, each in a namespace of its own, all at once under one operator; the proxy spoils one call about
that namespace. Then the operator is killed at each of its writes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fault_proxy import FAULTS, Fault, FaultProxy, Plan
from operator_process import OperatorProcess, operator
from operator_setup import prepare
from waiting_services import CHILDREN, NOWHERE
from world import World, condition, eventually

NUM_CALLS = 16
"""Calls that making a service takes at least: each child is looked for and applied, something is told, status."""
NUM_WRITES = 9
CONVERGE_SECONDS = 240.0
UNDISTURBED = f"fault-{os.getpid()}"
"""Namespace of a service whose calls all go well."""
CASES: list[tuple[Fault, int]] = [(fault, number) for fault in FAULTS for number in range(1, NUM_CALLS + 1)]


@dataclass(frozen=True, slots=True)
class Stage:
    """An operator behind a proxy that spoils calls."""

    world: World
    proxy: FaultProxy
    kubeconfig: Path
    log: Path


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
    told = [(event["reason"], event["note"]) for event in world.events(namespace)]
    return {
        "children": {str(key): _essence(child) for key, child in world.children(namespace).items()},
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in service["status"]["conditions"]},
        "observed": service["status"]["observedGeneration"],
        "told twice": len(told) - len(set(told)),
    }


def _essence(child: Mapping[str, Any]) -> object:
    """The spec of a child, without addresses that each object is given anew."""
    if child["kind"] == "Service":
        return {k: v for k, v in child["spec"].items() if k not in ("clusterIP", "clusterIPs")}
    return child.get("spec", "")


def make_all(stage: Stage, namespaces: list[str]) -> None:
    for namespace in namespaces:
        stage.world.make_namespace(namespace)
    for namespace in namespaces:
        stage.world.make_service(namespace, placement=NOWHERE)


def namespace_of(fault: Fault, number: int) -> str:
    return f"{UNDISTURBED}-{fault.replace(' ', '-')}-{number}"


@pytest.fixture(scope="module")
def all_faults(stage: Stage) -> Iterator[Mapping[str, Plan]]:
    """Namespace -> what happened there, once every service has had its fault and settled."""
    plans = {namespace_of(fault, number): Plan(fault_at=number, fault=fault) for fault, number in CASES}
    plans[UNDISTURBED] = Plan()
    for namespace, plan in plans.items():
        stage.proxy.plan(namespace, plan)
    with operator(stage.kubeconfig, stage.log, identity="faulty", options={"workers": 16}) as process:
        process.wait_until_leading()
        make_all(stage, list(plans))
        # It must not lead any more when others are killed; what has not settled by then fails its own test.
        with contextlib.suppress(AssertionError):
            for namespace in plans:
                settled(stage, namespace)
    yield plans
    for namespace in plans:
        stage.world.delete(f"/api/v1/namespaces/{namespace}")


def settled(stage: Stage, namespace: str) -> dict[str, Any]:
    return eventually(
        lambda: state_of(stage.world, namespace), f"a settled {namespace}", within_seconds=CONVERGE_SECONDS
    )


def test_the_table_names_every_call(stage: Stage, all_faults: Mapping[str, Plan]) -> None:
    settled(stage, UNDISTURBED)
    plan = all_faults[UNDISTURBED]
    assert len(plan.calls) >= NUM_CALLS, plan.calls
    assert plan.num_writes >= NUM_WRITES, plan.calls
    applied = [call for call in plan.calls[:NUM_CALLS] if call.startswith("PATCH")]
    assert len(applied) == len(CHILDREN) + 1, "all children and a status"


@pytest.mark.parametrize(("fault", "number"), CASES, ids=lambda value: str(value))
def test_a_service_comes_to_the_same_state_although_one_call_failed(
    stage: Stage, all_faults: Mapping[str, Plan], fault: Fault, number: int
) -> None:
    wanted = settled(stage, UNDISTURBED)
    namespace = namespace_of(fault, number)
    assert settled(stage, namespace) == wanted
    assert all_faults[namespace].struck


@pytest.mark.parametrize("number", range(1, NUM_WRITES + 1))
def test_a_service_comes_to_the_same_state_although_the_operator_was_killed_after_a_write(
    stage: Stage, number: int
) -> None:
    """The API server has done the write; the operator never learns of it."""
    namespace = f"{UNDISTURBED}-killed-{number}"
    died = threading.Event()
    victims: list[OperatorProcess] = []

    def kill(write: int) -> None:
        if write == number and not died.is_set():
            victims[0].process.kill()
            died.set()

    stage.proxy.plan(namespace, Plan(after_write=kill))
    with operator(stage.kubeconfig, stage.log, identity="mortal") as process:
        process.wait_until_leading()
        victims.append(process)
        make_all(stage, [namespace])
        assert died.wait(CONVERGE_SECONDS), "so many writes are never made"
    with operator(stage.kubeconfig, stage.log, identity="mortal") as process:
        process.wait_until_leading()
        twin = f"{namespace}-not"
        make_all(stage, [twin])
        assert settled(stage, namespace) == settled(stage, twin)
    for name in (namespace, twin):
        stage.world.delete(f"/api/v1/namespaces/{name}")
