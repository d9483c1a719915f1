"""Everything that runs on this machine, moved on step by step: documents, decisions, pods, the gateway and its file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sapwood_operator.autoscaling.attention import Watched, watched
from sapwood_operator.domain.tenants import status_changes
from sapwood_operator.local.command import CannotStart, Command, Machine, command_of, secret_content
from sapwood_operator.local.discovery import DiscoveryFile, objects
from sapwood_operator.local.documents import Documents
from sapwood_operator.local.key_secrets import KeySecrets, key_secrets
from sapwood_operator.local.kubelet import Kubelet
from sapwood_operator.local.pod import Pod, Ports, pod_object
from sapwood_operator.local.processes import Process
from sapwood_operator.local.reconcile import Engines, Reconciler, Told, deployment_of
from sapwood_operator.local.scaled import most_replicas
from sapwood_operator.local.supervised import Supervised, Waiting
from sapwood_operator.local.world import JsonObject, ServiceKey, World
from sapwood_operator.settings import OperatorSettings

GATEWAY_LOG = "gateway"
Start = Callable[[Sequence[str], Mapping[str, str], str], Process]
"""Starts ``sapwood`` with arguments and an environment, and with a log of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the platform finds and uses on this machine."""

    num_cores: int
    folders: Mapping[str, Path]
    """By the name of a claim or volume."""
    environment: Mapping[str, str]
    volumes_folder: Path
    """Where the claims of the files get their folders."""
    secrets_folder: Path
    admin_key_file: Path
    start: Start
    new_ports: Callable[[Collection[int]], Ports]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlace:
    """Where the gateway is."""

    url: str
    """For clients."""
    admin_url: str
    arguments: tuple[str, ...]
    """Of ``sapwood``."""


@dataclass(slots=True)
class Platform:
    """All that runs. Everything happens in `step`."""

    settings: OperatorSettings
    surroundings: Surroundings
    gateway: GatewayPlace
    discovery: DiscoveryFile
    world: World = field(default_factory=World)
    documents: Documents = field(default_factory=Documents)
    gateway_is_ready: bool = False
    tenant_problems: tuple[str, ...] = ()
    """Why keys of Tenants are refused."""
    is_ending: bool = False
    """Set to let everything finish and go."""
    _routes: list[JsonObject] = field(default_factory=list)
    _decided: dict[ServiceKey, tuple[JsonObject, list[Pod], tuple[JsonObject, ...]]] = field(default_factory=dict)
    """What each service was decided from last, with the status that came of it."""
    _due: dict[ServiceKey, float] = field(default_factory=dict)
    """When each is decided again in any case, on the monotonic clock."""
    _judged: Documents = field(default_factory=Documents)
    """Whose Tenants were judged last."""
    _key_secrets: KeySecrets = field(default_factory=KeySecrets)
    kubelet: Kubelet = field(init=False)
    gateway_program: Supervised = field(init=False)
    _reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.kubelet = Kubelet(commands=self._command, start=self._start, new_ports=self.surroundings.new_ports)
        self._reconciler = Reconciler(world=self.world, kubelet=self.kubelet, settings=self.settings)
        self.gateway_program = Supervised(lambda: self.surroundings.start(self.gateway.arguments, {}, GATEWAY_LOG))

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left, after `is_ending` was set."""
        return self.is_ending and not self.kubelet.pods and isinstance(self.gateway_program.state, Waiting)

    def watched(self) -> Iterator[Watched]:
        """Yield what is asked for of each service, as `adapters.sampler` wants it."""
        for key, service in self.world.services.items():
            yield watched(service, [pod_object(pod) for pod in self.kubelet.pods_of(key)])

    def wake(self, key: ServiceKey) -> None:
        """Something was learned of a service: the next step decides anew."""
        self._due.pop(key, None)

    def step(self, now: float, date: datetime, engines: Engines) -> list[Told]:
        """Do what is due at ``now`` (monotonic clock) and return what happened; ``date`` has a time zone."""
        self._judge_tenants(date)
        former = set(self.world.services)
        self.world.set_services(() if self.is_ending else self.documents.services)
        for key in former - self.world.services.keys():
            engines.forget(key)
        told = [each for key in sorted(self.world.services) for each in self._reconcile(key, now, date, engines)]
        deployments = self._deployments()
        self.kubelet.step(deployments, now, date)
        # The route of a service that ends stays until the end: who calls it then is told to try again.
        if not self.is_ending:
            self._routes = self.world.of_kind("ConfigMap")
        callers = (*self.documents.tenants, *self._key_secrets.objects)
        self.discovery.write(objects(self._routes, self.kubelet.pods, callers))
        if self.is_ending and not self.kubelet.pods and not self.gateway_program.is_leaving:
            self.gateway_program.terminate()
        self.gateway_program.step(now)
        return told

    def kill(self) -> None:
        """End everything at once."""
        self.kubelet.kill()
        self.gateway_program.kill()

    def _reconcile(self, key: ServiceKey, now: float, date: datetime, engines: Engines) -> tuple[Told, ...]:
        policies, pods = self.documents.policies, self.kubelet.pods_of(key)
        # The decision would be the same one: it costs a hundred times as much as this look.
        is_known = self._decided.get(key) == (self.world.services[key], pods, policies)
        if is_known and now < self._due.get(key, now):
            return ()
        named = {each["metadata"]["name"]: each for each in policies if each["metadata"]["namespace"] == key.namespace}
        turn = self._reconciler.reconcile(key, engines, named, date)
        self._decided[key] = (self.world.services[key], pods, policies)
        self._due[key] = now + turn.again_seconds
        return turn.told

    def _judge_tenants(self, date: datetime) -> None:
        """Those of a namespace together, as the operator does whenever one of them changes."""
        if self._judged is self.documents:
            return
        self._judged = self.documents
        self._key_secrets = key_secrets(self.documents.tenants, self.documents.secrets)
        by_namespace: dict[str, list[JsonObject]] = {}
        for tenant in self.documents.tenants:
            by_namespace.setdefault(tenant["metadata"]["namespace"], []).append(tenant)
        judged = (
            f"Tenant {tenant['metadata']['name']}: {condition['reason']}: {condition['message']}"
            for tenants in by_namespace.values()
            for tenant, status in status_changes(tenants, date)
            for condition in status["conditions"]
            if condition["status"] != "True"
        )
        self.tenant_problems = (*judged, *self._key_secrets.problems)

    def _deployments(self) -> dict[ServiceKey, JsonObject]:
        found = {key: deployment_of(self.world, key) for key in self.world.services}
        return {key: deployment for key, deployment in found.items() if deployment is not None}

    def _command(self, pod: Pod) -> Command | CannotStart:
        try:
            return command_of(pod, self._machine())
        except OSError as error:  # a folder or a Secret's file that cannot be made
            return CannotStart(f"{error.filename}: {error.strerror}")

    def _machine(self) -> Machine:
        secrets = (*self.documents.secrets, *self.world.of_kind("Secret"))
        named = {(each["metadata"]["namespace"], each["metadata"]["name"]): secret_content(each) for each in secrets}
        num_engines = sum(
            most_replicas(self.world.services[key], self.documents.policies, deployment)
            for key, deployment in self._deployments().items()
        )
        return Machine(
            num_cores=self.surroundings.num_cores,
            num_engines=num_engines,
            folders={**self._claims(), **self.surroundings.folders},
            secrets=named,
            environment=self.surroundings.environment,
            admin_key_file=self.surroundings.admin_key_file,
            keep=self._keep_secret,
        )

    def _claims(self) -> dict[str, Path]:
        """Return the folders of the claims that the files have; they stay, as what a cluster makes for a claim does."""
        folders = {name: self.surroundings.volumes_folder / name for name in self.documents.claims}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return folders

    def _start(self, pod: Pod, command: Command) -> Process:
        return self.surroundings.start(command.arguments, command.environment, pod.name)

    def _keep_secret(self, namespace: str, name: str, content: Mapping[str, bytes]) -> Path:
        folder = self.surroundings.secrets_folder / namespace / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for key, value in content.items():
            path = folder / key
            path.touch(mode=0o600)
            path.write_bytes(value)
        return folder
