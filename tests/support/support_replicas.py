"""A world in which replicas come and go: pods, the controller that makes and takes them, gateways, an operator.

Everything that the API server keeps survives the operator; what it remembers beside that goes with it. Gateways hear of
a cordon later than it is written, and send requests wherever they know of no reason not to.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sapwood_contract.http import EngineState
from sapwood_operator.autoscaling.engines import (
    NOTHING_SEEN,
    CacheSeen,
    Engine,
    EngineCall,
    EngineSeen,
    HandOver,
    LoadSeen,
    LookAtCaches,
    LookAtLoad,
    Unanswered,
    Warm,
)
from sapwood_operator.autoscaling.movement import Movement, move
from sapwood_operator.autoscaling.pods import Leaving, PodSeen, Rollout, Seen, leaving_of, leaving_status
from sapwood_operator.autoscaling.values import Demand, NoDemand
from sapwood_operator.autoscaling.victims import PROGRESS, Cache, Progress

DRAIN_SECONDS = 60.0
HEAR_SECONDS = 3.0
"""A gateway hears of a cordon by then."""
TRANSIT_SECONDS = 1.0
"""A request needs so long from its gateway to its engine."""
TURN_SECONDS = 0.5


@dataclass
class Pod:
    """One replica and its engine."""

    name: str
    created: float
    progress: Progress = "unplaced"
    has_served: bool = False
    is_going: bool = False
    is_marked: bool = False
    worth: float = 0.0
    """Of what it alone holds."""
    is_warm: bool = False
    """It was given prefixes, so it waits no longer."""
    answers: bool = True
    """Whether its engine answers the operator."""

    @property
    def is_ready(self) -> bool:
        return self.progress == "ready"


@dataclass
class Request:
    """Somebody waits for an answer."""

    pod: str
    gateway: str
    arrives_at: float
    """At the engine: until then only its gateway knows of it."""
    ends_at: float


@dataclass
class Gateway:
    """One gateway, and the route that it knows."""

    cordoned: tuple[str, ...] = ()
    heard_at: float = 0.0


@dataclass
class Remembered:
    """What an operator knows beside the API server: gone when it is killed."""

    engines: dict[str, EngineSeen] = field(default_factory=dict)
    demand: Demand | NoDemand = field(default_factory=lambda: NoDemand("not asked"))
    demand_at: float = 0.0
    calls: list[EngineCall] = field(default_factory=list)
    lost: dict[str, float] = field(default_factory=dict)


class World:
    """All of it, at one time; ``wanted`` may be changed at any."""

    def __init__(self, replicas: int) -> None:
        self.now = 1_000_000.0
        self.wanted = replicas
        self.pods: dict[str, Pod] = {}
        self.requests: list[Request] = []
        self.gateways = {"g0": Gateway(), "g1": Gateway()}
        self.rollout: Rollout = "none"
        # What the API server keeps.
        self.asked = replicas
        self.cordoned: tuple[str, ...] = ()
        self.cordoned_at = self.now
        self.leaving: list[dict[str, str]] = []
        self.operator = Remembered()
        # What happened.
        self.taken: list[str] = []
        """Pods that the controller took."""
        self.surprises: list[str] = []
        """What must not happen."""
        self.news: list[str] = []
        self._num_pods = 0
        for _ in range(replicas):
            self.make_pod("ready")

    # --- the cluster

    def make_pod(self, progress: Progress = "unplaced") -> Pod:
        pod = Pod(f"p{self._num_pods}", created=self.now + self._num_pods / 1000, progress=progress)
        pod.has_served = pod.is_ready
        pod.worth = 100.0 * (self._num_pods * 7 % 5 + 1)
        self._num_pods += 1
        self.pods[pod.name] = pod
        return pod

    @property
    def live(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if not pod.is_going]

    def control(self) -> bool:
        """The ReplicaSet's controller makes or takes one pod; return whether there was something to do."""
        live = self.live
        if len(live) < self.asked:
            self.make_pod()
            return True
        if len(live) > self.asked:
            first = min(live, key=lambda pod: (PROGRESS.index(pod.progress), not pod.is_marked, -pod.created))
            self._take(first)
            return True
        return False

    def _take(self, pod: Pod) -> None:
        chosen = {entry["pod"]: entry for entry in self.leaving}
        if pod.is_ready and pod.name not in chosen:
            self.surprises.append(f"{pod.name} was taken, and {sorted(chosen)} were chosen")
        entry = leaving_of({"leaving": [chosen[pod.name]]})[0] if pod.name in chosen else None
        is_over = entry is not None and self.now - entry.since >= DRAIN_SECONDS
        if pod.is_ready and not is_over and self.num_requests(pod.name):
            self.surprises.append(f"{pod.name} was taken and has {self.num_requests(pod.name)} requests")
        self.taken.append(pod.name)
        pod.is_going = True

    def advance_pod(self, pod: Pod) -> None:
        """A pod gets one step further; one that is being deleted goes once it has no request left."""
        if pod.is_going:
            if not self.num_requests(pod.name):
                del self.pods[pod.name]
        elif pod.progress != "ready":
            pod.progress = PROGRESS[PROGRESS.index(pod.progress) + 1]
            pod.has_served = pod.has_served or pod.is_ready

    def kill_engine(self, pod: Pod) -> None:
        """Its process ends, and with it its requests; it is started again in its pod."""
        self.requests = [request for request in self.requests if request.pod != pod.name]
        if pod.is_ready:
            pod.progress, pod.has_served, pod.is_warm = "running", False, False

    def kill_pod(self, pod: Pod) -> None:
        """Its node is gone."""
        self.requests = [request for request in self.requests if request.pod != pod.name]
        del self.pods[pod.name]

    # --- gateways and clients

    def num_requests(self, pod: str) -> int:
        return sum(request.pod == pod for request in self.requests)

    def hear(self, gateway: Gateway) -> None:
        gateway.cordoned, gateway.heard_at = self.cordoned, self.now

    def kill_gateway(self, name: str) -> None:
        """Its clients' connections end with it; another one reads the route at its start."""
        self.requests = [request for request in self.requests if request.gateway != name]
        self.hear(self.gateways[name])

    def send(self, gateway: str, seconds: float) -> None:
        """A client's request goes where the gateway sends it: to one on its way out where no other is ready. Where none
        is, the gateway holds it.
        """
        cordoned = self.gateways[gateway].cordoned
        ready = [pod for pod in self.live if pod.is_ready]
        fit = [pod for pod in ready if pod.name not in cordoned] or ready
        if fit:
            pod = min(fit, key=lambda pod: (self.num_requests(pod.name), pod.name))
            self.requests.append(Request(pod.name, gateway, self.now + TRANSIT_SECONDS, self.now + seconds))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.requests = [request for request in self.requests if request.ends_at > self.now]
        for gateway in self.gateways.values():
            if gateway.heard_at < self.cordoned_at <= self.now - HEAR_SECONDS:
                self.hear(gateway)

    # --- the operator

    def seen(self) -> Seen:
        return Seen(
            pods=tuple(
                PodSeen(
                    name=pod.name,
                    uid=uid(pod.name),
                    created=pod.created,
                    progress=pod.progress,
                    has_served=pod.has_served,
                    is_going=pod.is_going,
                    is_marked=pod.is_marked,
                )
                for pod in self.pods.values()
            ),
            asked=self.asked,
            leaving=leaving_of({"leaving": self.leaving}),
            rollout=self.rollout,
            engines=self.operator.engines,
            demand=self.operator.demand,
            demand_at=self.operator.demand_at,
        )

    def decide(self) -> Movement:
        return move(self.seen(), wanted=self.wanted, drain_seconds=DRAIN_SECONDS, warms=True, now=self.now)

    def turn(self, num_writes: int = 100, order: Sequence[int] = (1, 2, 0)) -> None:
        """One turn: decide, write, the status last. After ``num_writes`` writes the operator is killed.

        ``order``: of the writes before the status.
        """
        movement = self.decide()
        writes = [self._write_cordon, self._write_marks, self._write_replicas]
        for write in [writes[at] for at in order]:
            if num_writes == 0:
                return self.kill_operator()
            num_writes -= 1
            write(movement)
        if num_writes == 0:
            return self.kill_operator()
        self.leaving = leaving_status(movement.leaving)
        self.news += movement.news
        self.operator.calls += [call for call in movement.calls if call not in self.operator.calls]
        for lost in movement.lost:
            self.operator.lost.setdefault(lost.uid, lost.tokens)
        return None

    def kill_operator(self) -> None:
        self.operator = Remembered()

    def _write_cordon(self, movement: Movement) -> None:
        if movement.cordoned != self.cordoned:
            self.cordoned, self.cordoned_at = movement.cordoned, self.now

    def _write_marks(self, movement: Movement) -> None:
        for pod in self.live:
            pod.is_marked = pod.name in movement.first_to_go

    def _write_replicas(self, movement: Movement) -> None:
        self.asked = movement.replicas

    def ask_gateways(self) -> None:
        running: dict[str, int] = {}
        for request in self.requests:
            running[request.pod] = running.get(request.pod, 0) + 1
        num_running = len(self.requests)
        self.operator.demand = Demand(num_waiting=0, num_running=num_running, idle_seconds=0.0, running=running)
        self.operator.demand_at = self.now

    def call_engines(self) -> None:
        """What was asked of engines is done, in the order in which it was asked."""
        calls, self.operator.calls = self.operator.calls, []
        for call in calls:
            self._call(call)

    def _call(self, call: EngineCall) -> None:
        match call:
            case LookAtLoad(engines):
                self._look(engines, has_cache=False)
            case LookAtCaches(engines):
                self._look(engines, has_cache=True)
            case HandOver(victim, since):
                self._learn(victim, handed_over=since)
            case Warm(newcomer):
                if newcomer.pod in self.pods:
                    self.pods[newcomer.pod].is_warm = True
                    self._learn(newcomer, warmed=True)

    def _look(self, engines: Iterable[Engine], *, has_cache: bool) -> None:
        for engine in engines:
            pod = self.pods.get(engine.pod)
            if pod is None or not pod.answers or PROGRESS.index(pod.progress) < PROGRESS.index("running"):
                self._learn(engine, load=Unanswered(self.now, "nobody listens"))
                if has_cache:
                    self._learn(engine, cache=Unanswered(self.now, "nobody listens"))
                continue
            there = [each for each in self.requests if each.pod == engine.pod and each.arrives_at <= self.now]
            num_requests = len(there)
            state: EngineState = "ready" if pod.is_ready else "warming"
            load = LoadSeen(at=self.now, state=state, num_requests=num_requests, work_tokens=10.0 * num_requests)
            self._learn(engine, load=load)
            if has_cache:
                blocks = array("Q", [int(engine.pod[1:])])
                self._learn(engine, cache=CacheSeen(self.now, Cache(("r1", 16), ((blocks, pod.worth),))))

    def _learn(self, engine: Engine, **news: Any) -> None:
        former = self.operator.engines.get(engine.uid, NOTHING_SEEN)
        self.operator.engines[engine.uid] = replace(former, **news)

    # --- until all is well

    def go_on(self, seconds: float) -> None:
        """Everybody does once what there is to do, within ``seconds``."""
        self.turn()
        self.control()
        self.call_engines()
        for pod in list(self.pods.values()):
            self.advance_pod(pod)
        self.ask_gateways()
        self.pass_time(seconds)

    def settle(self) -> None:
        """Nobody is killed any more, and everything else goes on until nothing changes."""
        for pod in self.pods.values():
            pod.answers = True
        num_quiet = 0
        for _ in range(1_000):
            before = self.picture()
            self.go_on(TURN_SECONDS)
            num_quiet = num_quiet + 1 if before == self.picture() else 0
            if num_quiet > DRAIN_SECONDS / TURN_SECONDS:
                return
        raise AssertionError(f"it never comes to rest: {self.picture()}")

    def picture(self) -> tuple[object, ...]:
        """What others see of it."""
        pods = tuple(sorted((pod.name, pod.progress, pod.is_going, pod.is_marked) for pod in self.pods.values()))
        return (pods, self.asked, self.cordoned, tuple(entry["pod"] for entry in self.leaving))


def uid(name: str) -> str:
    """Return the uid of a pod of that name."""
    return f"uid-of-{name}"


def engine_of(name: str) -> Engine:
    """Return what names the engine of the pod of that name."""
    return Engine(name, uid(name))


def leaving_since(name: str, since: float) -> Leaving:
    """Return that a pod was chosen to go."""
    return Leaving(name, uid(name), since)
