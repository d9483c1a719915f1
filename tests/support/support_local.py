"""`sapwood local` without processes: programs that end when a test says so, in virtual time."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
    Warm,
)
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.turn import Scaling
from sapwood_operator.autoscaling.values import Demand, NoReading, Reading
from sapwood_operator.autoscaling.victims import Cache
from sapwood_operator.domain.events import Event
from sapwood_operator.local.definitions import read_definitions
from sapwood_operator.local.discovery import DiscoveryFile
from sapwood_operator.local.documents import Documents, judged
from sapwood_operator.local.platform import GatewayPlace, Platform, Surroundings
from sapwood_operator.local.pod import Pod, Ports
from sapwood_operator.local.world import ServiceKey
from sapwood_operator.settings import OperatorSettings

_DEFINITIONS = read_definitions()
BEGIN = datetime(2026, 11, 30, 12, tzinfo=UTC)
SETTINGS = OperatorSettings(
    operator_namespace="sapwood",
    gateway_service="gateway",
    gateway_namespace="sapwood",
    gateway_instance="sapwood",
    engine_image="engine",
    engine_cuda_image="engine",
    runbook_url="http://sapwood-operator/runbooks",
    secret=b"0123456789abcdef0123456789abcdef",
)


@dataclass
class FakeProcess:
    """A program that was started; a test ends it."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    code: int | None = None
    words: str = ""
    was_asked_to_end: bool = False

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.was_asked_to_end = True

    def kill(self) -> None:
        self.code = 137 if self.code is None else self.code

    def last_words(self) -> str:
        return self.words

    def end(self, code: int, words: str = "") -> None:
        self.code, self.words = code, words


IDLE = Demand(num_waiting=0, num_running=0, idle_seconds=0.0)
SILENT = NoReading("it does not answer")


@dataclass
class FakeEngines:
    """Engines and a gateway that answer at once; they have nothing to do, and hold nothing, unless a test says so."""

    now: float = 0.0
    """Unix time."""
    demand: Demand = IDLE
    reading: Reading | NoReading = SILENT
    """What every replica says."""
    requests: dict[str, int] = field(default_factory=dict)
    """By the pod's name."""
    worth: dict[str, float] = field(default_factory=dict)
    """Tokens that a pod's cache is expected to save, by its name."""
    handed_over: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """From whom to whom."""
    seen: dict[str, EngineSeen] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    uids: set[str] = field(default_factory=set)
    """Of the pods that were there at the last turn."""

    def signals(self, _key: ServiceKey) -> ServiceSignals:
        readings = dict.fromkeys(self.uids, self.reading)
        return ServiceSignals(readings=readings, demand=self.demand, demand_at=self.now, at=self.now)

    def known(self, _key: ServiceKey) -> Mapping[str, EngineSeen]:
        return self.seen

    def carry_out(
        self, _key: ServiceKey, _service: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], scaling: Scaling
    ) -> None:
        self.uids |= {pod["metadata"]["uid"] for pod in pods}
        for call in scaling.calls:
            self.answer(call)

    def forget(self, key: ServiceKey) -> None:
        self.forgotten.append(str(key))

    def answer(self, call: EngineCall) -> None:
        match call:
            case LookAtLoad(engines):
                for engine in engines:
                    self.learn(engine, load=self.load(engine))
            case LookAtCaches(engines):
                for engine in engines:
                    cache = Cache(("model", 16), (((array("Q", [hash(engine.uid) % 2**64])), self.worth_of(engine)),))
                    self.learn(engine, load=self.load(engine), cache=CacheSeen(self.now, cache))
            case HandOver(victim, since, survivors):
                self.handed_over.append((victim.pod, tuple(each.pod for each in survivors)))
                self.learn(victim, handed_over=since)
            case Warm(newcomer):
                self.learn(newcomer, warmed=True)

    def load(self, engine: Engine) -> LoadSeen:
        num_requests = self.requests.get(engine.pod, 0)
        return LoadSeen(at=self.now, state="ready", num_requests=num_requests, work_tokens=100.0 * num_requests)

    def worth_of(self, engine: Engine) -> float:
        return self.worth.get(engine.pod, 0.0)

    def learn(self, engine: Engine, **news: Any) -> None:
        self.seen[engine.uid] = replace(self.seen.get(engine.uid, NOTHING_SEEN), **news)


@dataclass
class Setting:
    """A platform, and the programs that it has started."""

    folder: Path
    num_cores: int = 8
    folders: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    now: float = 100.0
    started: list[FakeProcess] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    promised: list[set[int]] = field(default_factory=list)
    """Ports that were not to be given, at each call."""
    refuses: bool = False
    """Nothing can be started."""
    asked: FakeEngines = field(default_factory=FakeEngines)

    def __post_init__(self) -> None:
        ports = itertools.count(20_000, 2)

        def start(arguments: Sequence[str], environment: Mapping[str, str], name: str) -> FakeProcess:
            if self.refuses:
                raise OSError("no memory")
            self.started.append(FakeProcess(name, tuple(arguments), environment))
            return self.started[-1]

        def new_ports(promised: Collection[int]) -> Ports:
            self.promised.append(set(promised))
            first = next(ports)
            return Ports(http=first, admin=first + 1)

        self.platform = Platform(
            settings=SETTINGS,
            surroundings=Surroundings(
                num_cores=self.num_cores,
                folders=self.folders,
                environment=self.environment,
                volumes_folder=self.folder / "volumes",
                secrets_folder=self.folder / "secrets",
                admin_key_file=self.folder / "admin-key",
                start=start,
                new_ports=new_ports,
            ),
            gateway=GatewayPlace(
                url="http://127.0.0.1:8080", admin_url="http://127.0.0.1:8081", arguments=("gateway",)
            ),
            discovery=DiscoveryFile(self.folder / "discovery.json"),
        )

    # --- what happens

    def give(self, *services: dict[str, Any], **others: Any) -> None:
        """Make these all documents, and let the platform act."""
        self.platform.documents = Documents(services=services, **others)
        self.step()

    def step(self, seconds: float = 0.1) -> None:
        """Let time pass, and the platform act."""
        self.now += seconds
        date = BEGIN + timedelta(seconds=self.now)
        self.asked.now = date.timestamp()
        told = self.platform.step(self.now, date, self.asked)
        self.events += [each.event for each in told]

    def steps(self, seconds: int) -> None:
        """Let so much time pass, a step a second: a movement looks again after each."""
        for _ in range(seconds):
            self.step(1.0)

    def learn(self) -> None:
        """Let the platform hear that there is news of every service."""
        for key in self.platform.world.services:
            self.platform.wake(key)
        self.step()

    def get_ready(self, *pods: Pod) -> None:
        """Let these, or all pods that run, answer their probes; and the platform act."""
        for pod in pods or self.pods:
            self.platform.kubelet.probed(pod, is_ready=True)
        self.step()
        self.step()

    # --- what there is

    @property
    def pods(self) -> list[Pod]:
        return self.platform.kubelet.pods

    def engine(self, pod: Pod) -> FakeProcess:
        """Return the last process of a pod."""
        return [process for process in self.started if process.name == pod.name][-1]

    @property
    def engines(self) -> list[FakeProcess]:
        """Return the engines that run, in the order of their start."""
        return [each for each in self.started if each.arguments[0] == "serve" and each.code is None]

    @property
    def gateway(self) -> FakeProcess:
        return [process for process in self.started if process.name == "gateway"][-1]

    def status(self) -> dict[str, Any]:
        """Return the status of the only service."""
        (service,) = self.platform.world.services.values()
        return dict(service["status"])

    def condition(self, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of the only service."""
        (found,) = (each for each in self.status()["conditions"] if each["type"] == type_)
        return found["status"], found["reason"], found["message"]

    def discovered(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of one kind in the discovery file."""
        items = json.loads((self.folder / "discovery.json").read_text())["items"]
        return [item for item in items if item["kind"] == kind]

    def route(self) -> dict[str, Any]:
        """Return the only service's route, as the gateway reads it."""
        (config_map,) = self.discovered("ConfigMap")
        route: dict[str, Any] = json.loads(config_map["data"]["service.json"])
        return route

    def endpoints(self) -> dict[str, tuple[bool, bool]]:
        """Return (ready, terminating) by pod, as the gateway reads it."""
        found = {}
        for each in self.discovered("EndpointSlice"):
            (endpoint,) = each["endpoints"]
            conditions = endpoint["conditions"]
            found[endpoint["targetRef"]["name"]] = (conditions["ready"], conditions["terminating"])
        return found


def a_service(name: str = "chat", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """An InferenceService with the defaults of the schema."""
    document = {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": {"builtin": "smollm2-135m"}}, **spec},
    }
    valid, problems = judged(document, _DEFINITIONS["InferenceService"])
    assert not problems, list(map(str, problems))
    return dict(valid)


def a_policy(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """An AutoscalingPolicy with the defaults of the schema."""
    document = {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "AutoscalingPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    valid, problems = judged(document, _DEFINITIONS["AutoscalingPolicy"])
    assert not problems, list(map(str, problems))
    return dict(valid)
