"""A replica goes, and the operator is killed after its writes on the way, or the replica itself: the end is the same.

The pods are stand-ins that say of themselves what the test has them say, and so is the gateway.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from elastic import Elastic
from fault_proxy import FaultProxy, Plan
from operator_process import OperatorProcess, operator
from operator_setup import NAMESPACE as SYSTEM
from operator_setup import Site, prepare
from own_servers import publish, serving
from pods import kill_processes
from stand_ins import STAND_IN, OneGateway, say
from world import JsonObject

NAMESPACE = f"kills-{os.getpid()}"
GATEWAY = "kills-gateway"
KILLS_A_WRITE = 2
"""How often the operator dies after a write of the same object."""
PATIENCE_SECONDS = 240
"""For one operator after the other."""


@dataclass(slots=True)
class Mortals:
    """One operator after the other; each is killed by the writes that it makes once `dies` is set."""

    site: Site
    proxy: FaultProxy
    gateway_port: int
    stack: ExitStack
    dies: bool = False
    killed: Counter[str] = field(default_factory=Counter)
    plan: Plan = field(default_factory=Plan)
    living: OperatorProcess = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Start an operator, and return once it leads or has died."""
        self.living = self.stack.enter_context(
            operator(
                self.site.kubeconfig(server=self.proxy.address),
                self.site.folder / "log",
                identity="mortal",
                options={"gateway-service": GATEWAY, "gateway-admin-port": self.gateway_port},
            )
        )

    def after_write(self, _number: int) -> None:
        """Kill the operator, unless it has died of such a write often enough."""
        with self._lock:
            call = self.plan.calls[-1].partition("?")[0]
            if self.dies and self.is_alive and self.killed[call] < KILLS_A_WRITE:
                self.killed[call] += 1
                self.living.process.kill()
                self.living.process.wait()

    @property
    def is_alive(self) -> bool:
        return self.living.process.poll() is None


@pytest.fixture(scope="module")
def gateway() -> OneGateway:
    return OneGateway(NAMESPACE)


@pytest.fixture(scope="module")
def mortals(gateway: OneGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortals]:
    site = prepare(tmp_path_factory.mktemp("kills"))
    site.world.make_namespace(NAMESPACE)
    with ExitStack() as stack:
        port = stack.enter_context(serving(gateway.answer))
        publish(site.world, SYSTEM, GATEWAY, port)
        proxy = stack.enter_context(FaultProxy(site.upstream()).running())
        found = Mortals(site, proxy, port, stack)
        found.plan = proxy.plan(NAMESPACE, Plan(after_write=found.after_write))
        found.begin()
        yield found
        for collection in ("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", "/api/v1/namespaces/{}/services"):
            site.world.delete(f"{collection.format(SYSTEM)}/{GATEWAY}")
        site.world.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture(scope="module")
def chat(mortals: Mortals) -> Elastic:
    """A service of three replicas."""
    found = Elastic(mortals.site.world, "", NAMESPACE, "chat")
    found.apply(replicas=3, **STAND_IN)
    found.wait(lambda: len(found.ready()) == 3 and found.says("Ready", "True"), "three replicas", within_seconds=120)
    return found


def shrink(chat: Elastic, gateway: OneGateway) -> tuple[JsonObject, list[JsonObject]]:
    """Ask for a replica less than there is, and return the one that has least to lose and a request, and the others."""
    victim, *others = chat.pods()
    say(victim, worth_tokens=50, num_requests=1)
    for number, pod in enumerate(others):
        say(pod, worth_tokens=400 + number)
    gateway.requests = {victim["metadata"]["name"]: 1}
    chat.apply(replicas=len(others), **STAND_IN)
    return victim, others


def is_leaving(chat: Elastic, pod: JsonObject) -> bool:
    """Whether a pod alone was chosen to go, and gets nothing new."""
    chosen = [each["pod"] for each in chat.autoscaling.get("leaving", ())]
    return chosen == chat.cordoned() == [pod["metadata"]["name"]]


def uids(pods: list[JsonObject]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods]


def test_an_operator_that_dies_after_its_writes_takes_nobody_else_and_nobody_too_early(
    mortals: Mortals, chat: Elastic, gateway: OneGateway
) -> None:
    mortals.dies = True
    victim, others = shrink(chat, gateway)

    def another_goes_on(holds: Callable[[], bool]) -> bool:
        if not mortals.is_alive:
            mortals.begin()
        return holds()

    def wait(holds: Callable[[], bool], what: str) -> None:
        chat.wait(lambda: another_goes_on(holds), what, within_seconds=PATIENCE_SECONDS)

    wait(lambda: is_leaving(chat, victim), "a victim")
    assert (chat.asked, len(chat.ready())) == (3, 3), "its request would be cut"
    gateway.requests = {}
    say(victim, worth_tokens=50)
    wait(lambda: chat.is_settled(2), "two replicas")
    assert uids(chat.pods()) == uids(others)
    assert len(chat.notes("ReplicaChosen")) == 1
    assert mortals.killed.total() >= 5, mortals.killed


def test_a_victim_that_dies_is_the_one_that_goes(mortals: Mortals, chat: Elastic, gateway: OneGateway) -> None:
    mortals.dies = False
    if not mortals.is_alive:
        mortals.begin()
    victim, others = shrink(chat, gateway)
    chat.wait(lambda: is_leaving(chat, victim), "a victim", within_seconds=PATIENCE_SECONDS)
    kill_processes(victim["metadata"]["name"])
    gateway.requests = {}  # it was the killed engine's
    chat.wait(lambda: chat.is_settled(1), "one replica", within_seconds=PATIENCE_SECONDS)
    assert uids(chat.pods()) == uids(others)
