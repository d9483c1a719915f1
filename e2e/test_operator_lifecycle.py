"""Operators that come and go, and lose sight of the cluster: the services are looked after all the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from support_leases import LEASE_STORE_RULES

from fault_proxy import FaultProxy, Plan
from operator_process import operator
from operator_setup import NAMESPACE, Site, prepare
from sapwood_operator.adapters.lease import ClusterLease, LeaseStore
from waiting_services import NOWHERE, make, wait_until_settled
from world import World, child_path, eventually

_numbers = count(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return prepare(tmp_path_factory.mktemp("lifecycle"))


@pytest.fixture(scope="module")
def world(site: Site) -> World:
    return site.world


@pytest.fixture
def namespace(world: World) -> Iterator[str]:
    name = world.make_namespace(f"lifecycle-{os.getpid()}-{next(_numbers)}")
    yield name
    world.delete(f"/api/v1/namespaces/{name}")


def test_the_api_server_may_be_restarted(
    world: World, site: Site, namespace: str, restart_api_server: Callable[[], None], tmp_path: Path
) -> None:
    with operator(site.kubeconfig(), tmp_path / "log", identity="outlives") as process:
        process.wait_until_leading()
        make(world, namespace)
        restart_api_server()
        world.make_service(namespace, placement=NOWHERE, replicas=2)
        deployment = child_path(namespace, "Deployment", "chat-engine")
        eventually(lambda: world.call("GET", deployment)["spec"]["replicas"] == 2, "two replicas", within_seconds=60)
        assert process.process.poll() is None


def test_what_happened_while_a_watch_was_too_old_is_made_good(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    """The words of a deletion are lost, and kopf, which has to list anew, does not tell what is not there any more."""
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(site.upstream()).running())
        kubeconfig = site.kubeconfig(server=proxy.address)
        options = {"resync-seconds": 3600}
        process = stack.enter_context(operator(kubeconfig, tmp_path / "log", identity="behind", options=options))
        process.wait_until_leading()
        make(world, namespace)
        make(world, world.make_namespace(f"{namespace}-other"))
        proxy.lose_events()
        world.delete(child_path(namespace, "PodDisruptionBudget", "chat-engine"))
        eventually(lambda: world.get(child_path(namespace, "PodDisruptionBudget", "chat-engine")) is None, "no budget")
        proxy.expire_watches()
        wait_until_settled(world, namespace)
        world.delete(f"/api/v1/namespaces/{namespace}-other")


def test_watches_that_break_off_for_good_are_begun_anew(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(site.upstream()).running())
        kubeconfig = site.kubeconfig(server=proxy.address)
        process = stack.enter_context(operator(kubeconfig, tmp_path / "log", identity="blind"))
        process.wait_until_leading()
        make(world, namespace)
        proxy.refuse_watches(10_000)  # until it has been seen: which of its watches kopf gives up for is its own affair
        proxy.expire_watches()
        broke_off = "the watches broke off"
        eventually(lambda: broke_off in process.log.read_text(encoding="utf-8"), broke_off, within_seconds=120)
        proxy.refuse_watches(0)
        world.make_service(namespace, placement=NOWHERE, replicas=2)
        deployment = child_path(namespace, "Deployment", "chat-engine")
        eventually(lambda: world.call("GET", deployment)["spec"]["replicas"] == 2, "two replicas", within_seconds=60)


def test_an_edit_that_is_first_seen_in_the_answer_to_a_write_is_acted_on(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    """The answer to the status write has the new spec; what the watch tells later is no news by then."""
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(site.upstream()).running())
        options = {"resync-seconds": 3600}
        kubeconfig = site.kubeconfig(server=proxy.address)
        process = stack.enter_context(operator(kubeconfig, tmp_path / "log", identity="answered", options=options))
        process.wait_until_leading()

        make(world, namespace)

        def edit(number_of_write: int) -> None:
            if number_of_write == 1:  # the Deployment's; the turn was planned before, its status is written after
                proxy.lose_events()
                world.make_service(namespace, placement=NOWHERE, replicas=3)

        proxy.plan(namespace, Plan(after_write=edit))
        world.make_service(namespace, placement=NOWHERE, replicas=2)
        deployment = child_path(namespace, "Deployment", "chat-engine")
        eventually(lambda: world.call("GET", deployment)["spec"]["replicas"] == 3, "three replicas")


def holder(world: World) -> str:
    lease = world.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/sapwood-operator")
    return str(lease["spec"].get("holderIdentity") or "") if lease else ""


def test_of_two_operators_one_leads_and_the_other_follows_it(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(
                operator(site.kubeconfig(), tmp_path / name, identity=name, options={"lease-seconds": 10})
            )
            for name in ("one", "two")
        )
        eventually(lambda: one.leads() or two.leads(), "a leader", within_seconds=60)
        leader, follower = (one, two) if one.leads() else (two, one)
        eventually(lambda: follower.get("/readyz").strip() == "standby", "one that waits")
        assert [leader.metric("sapwood_operator_leader"), follower.metric("sapwood_operator_leader")] == [1, 0]
        leader.kill()
        make(world, namespace)
        assert follower.leads()


def test_an_operator_that_is_asked_to_end_lets_the_next_one_lead_at_once(
    world: World, site: Site, namespace: str, tmp_path: Path
) -> None:
    with operator(site.kubeconfig(), tmp_path / "log", identity="goes", options={"lease-seconds": 600}) as process:
        process.wait_until_leading()
        assert holder(world) == "goes"
        assert process.stop() == 0
    assert holder(world) == ""
    with operator(site.kubeconfig(), tmp_path / "log", identity="comes") as process:
        process.wait_until_leading()
        make(world, namespace)


@pytest.mark.parametrize("rule", LEASE_STORE_RULES, ids=lambda rule: rule.__name__)
def test_a_lease_of_the_cluster_keeps_the_rules(site: Site, namespace: str, rule: Callable[[LeaseStore], None]) -> None:
    client = site.access.client(connections=1)
    rule(ClusterLease(client, namespace=namespace, name="a-lease", request_timeout_seconds=10))
