"""`sapwood local` without processes: programs that end when a test says so, in virtual time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sapwood_operator.domain.events import Event
from sapwood_operator.local.definitions import read_definitions
from sapwood_operator.local.discovery import DiscoveryFile
from sapwood_operator.local.documents import Documents, judged
from sapwood_operator.local.platform import GatewayPlace, Platform, Surroundings
from sapwood_operator.local.pod import Pod, Ports
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
        told = self.platform.step(self.now, BEGIN + timedelta(seconds=self.now))
        self.events += [each.event for each in told]

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

    def condition(self, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of the only service."""
        (service,) = self.platform.world.services.values()
        (found,) = (each for each in service["status"]["conditions"] if each["type"] == type_)
        return found["status"], found["reason"], found["message"]

    def discovered(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of one kind in the discovery file."""
        items = json.loads((self.folder / "discovery.json").read_text())["items"]
        return [item for item in items if item["kind"] == kind]

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
