"""Replicas come and go while everybody is killed now and then, and nothing is lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support_replicas import Pod, World

ORDERS = st.permutations(range(3))


class Replicas(RuleBasedStateMachine):
    """Anything may happen in any order, and the operator may be killed between any two of its writes."""

    world: World

    @initialize(replicas=st.integers(0, 4))
    def begin(self, replicas: int) -> None:
        self.world = World(replicas)

    # --- what people and clients do

    @rule(wanted=st.integers(0, 4))
    def want(self, wanted: int) -> None:
        self.world.wanted = wanted

    @rule(gateway=st.sampled_from(["g0", "g1"]), seconds=st.floats(0.5, 20.0))
    def send(self, gateway: str, seconds: float) -> None:
        self.world.send(gateway, seconds)

    @rule(seconds=st.floats(0.1, 5.0))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(rounds=st.integers(1, 20), seconds=st.sampled_from([0.1, 0.5, 2.0]), sends=st.booleans(), kills=st.booleans())
    def go_on(self, rounds: int, seconds: float, sends: bool, kills: bool) -> None:
        """Everybody does what there is to do, again and again; ``kills``: the operator begins anew every other time."""
        for number in range(rounds):
            if sends:
                self.world.send("g0", 3.0)
                self.world.send("g1", 1.0)
            if kills and number % 2:
                self.world.kill_operator()
            self.world.go_on(seconds)

    # --- what the cluster does

    @rule()
    def control(self) -> None:
        self.world.control()

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def advance_pod(self, data: st.DataObject) -> None:
        self.world.advance_pod(self._any_pod(data))

    @rule(gateway=st.sampled_from(["g0", "g1"]))
    def hear(self, gateway: str) -> None:
        self.world.hear(self.world.gateways[gateway])

    # --- what the operator does

    @rule(order=ORDERS)
    def turns(self, order: list[int]) -> None:
        """Two, for a replica is sent requests again once the number is seen that lets it stay."""
        self.world.turn(order=order)
        self.world.turn(order=order)
        ready = [pod for pod in self.world.live if pod.is_ready]
        serving = [pod for pod in ready if pod.name not in self.world.cordoned]
        assert len(serving) >= min(self.world.wanted, len(ready)), "one that is wanted and ready gets no requests"

    @rule(order=ORDERS, num_writes=st.integers(0, 3))
    def turn_cut_short(self, order: list[int], num_writes: int) -> None:
        self.world.turn(num_writes, order)

    @rule()
    def ask(self) -> None:
        self.world.call_engines()
        self.world.ask_gateways()

    # --- who is killed

    @rule()
    def kill_operator(self) -> None:
        self.world.kill_operator()

    @rule(gateway=st.sampled_from(["g0", "g1"]))
    def kill_gateway(self, gateway: str) -> None:
        self.world.kill_gateway(gateway)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def kill_engine(self, data: st.DataObject) -> None:
        self.world.kill_engine(self._any_pod(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def kill_pod(self, data: st.DataObject) -> None:
        self.world.kill_pod(self._any_pod(data))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), answers=st.booleans())
    def fall_silent(self, data: st.DataObject, answers: bool) -> None:
        self._any_pod(data).answers = answers

    # --- what holds

    @invariant()
    def only_who_was_chosen_and_is_done_is_taken(self) -> None:
        assert not self.world.surprises

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle()
        assert len(self.world.pods) == self.world.asked == self.world.wanted
        assert all(pod.is_ready and not pod.is_marked for pod in self.world.pods.values())
        assert self.world.cordoned == ()
        assert self.world.leaving == []
        assert not self.world.surprises

    def _any_pod(self, data: st.DataObject) -> Pod:
        return self.world.pods[data.draw(st.sampled_from(sorted(self.world.pods)))]


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=200, stateful_step_count=40)


def after_a_decrease(kill_after: int) -> tuple[World, int]:
    """Three replicas become two under load; the operator is killed after so many writes, and another one goes on."""
    world = World(3)
    world.wanted = 2
    num_writes = 0
    for _ in range(200):
        for gateway in world.gateways:
            world.send(gateway, 2.0)
        left = kill_after - num_writes
        world.turn(left if 0 <= left < 4 else 100)
        num_writes += 4
        world.control()
        world.call_engines()
        for pod in list(world.pods.values()):
            world.advance_pod(pod)
        world.ask_gateways()
        world.pass_time(0.5)
    assert not world.surprises
    return world, num_writes


def test_whenever_the_operator_is_killed_a_decrease_ends_alike() -> None:
    undisturbed, _ = after_a_decrease(10_000)
    assert undisturbed.taken == ["p0"], "the one that holds least"
    assert len(undisturbed.pods) == 2
    for kill_after in range(120):
        world, _ = after_a_decrease(kill_after)
        assert (world.taken, world.picture()) == (undisturbed.taken, undisturbed.picture())
