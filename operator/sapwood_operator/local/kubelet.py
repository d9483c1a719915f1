"""The pods of this machine: what a Deployment's controller and a kubelet do, with processes.

A pod that is to go is told to the gateway first (its endpoint is Terminating), asked to end a moment later, and ended
when its grace is over. Everything happens in `step`, which is given the time.
"""

from __future__ import annotations

import math
import secrets
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sapwood_operator.local.command import CannotStart, Command
from sapwood_operator.local.pod import NotMade, Pod, Ports, Resting, Serving, Starting, pod_object
from sapwood_operator.local.processes import Process
from sapwood_operator.local.rollout import change, deployment_as_seen, replica_set, template_hash
from sapwood_operator.local.supervised import Running, Supervised, Waiting
from sapwood_operator.local.world import JsonObject, ServiceKey

PROPAGATION_SECONDS = 1.0
"""Between the word to the gateway that a replica leaves and SIGTERM: the gateway reads its file four times a second."""
_RETRY_SECONDS = 5.0
"""After which a pod that cannot be made is tried again: somebody may have made the folder."""
_MISSED_PROBES = 2
"""So many answers in a row that are no yes make a replica not ready."""
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""As in names of pods: no words come about."""

Commands = Callable[[Pod], Command | CannotStart]
Start = Callable[[Pod, Command], Process]


@dataclass(slots=True)
class _Held:
    """A pod, and what is known of it beside its value."""

    pod: Pod
    engine: Supervised | None = None
    """None until a command could be made for it."""
    retry_at: float = 0.0
    num_missed: int = 0
    leaves_at: float = math.inf
    """When SIGTERM is sent."""
    ends_at: float = math.inf
    """When SIGKILL is sent."""
    was_asked: bool = False


@dataclass(slots=True)
class _Revision:
    template_hash: str
    number: int


class Kubelet:
    """Keeps the pods of all Deployments."""

    def __init__(self, *, commands: Commands, start: Start, new_ports: Callable[[Collection[int]], Ports]) -> None:
        self._commands = commands
        self._start = start
        self._new_ports = new_ports
        self._held: dict[str, _Held] = {}
        self._revisions: dict[str, _Revision] = {}
        """By the Deployment's uid."""
        self._num_made = 0
        self._date = datetime.fromtimestamp(0, UTC)
        """Of the last step."""

    # --- what others read

    @property
    def pods(self) -> list[Pod]:
        """Return all pods, the oldest first."""
        return sorted((held.pod for held in self._held.values()), key=lambda pod: pod.number)

    def pods_of(self, service: ServiceKey) -> list[Pod]:
        """Return one service's pods, the oldest first."""
        return [pod for pod in self.pods if pod.service == service]

    def seen(self, service: ServiceKey, deployment: JsonObject) -> Seen:
        """Return what the API server would show of a Deployment and its pods."""
        pods = self.pods_of(service)
        number = self._revision(deployment)
        return Seen(
            deployment=deployment_as_seen(deployment, pods, number),
            replica_set=replica_set(deployment, pods, number),
            pods=tuple(map(pod_object, pods)),
        )

    # --- what happens

    def step(self, deployments: Mapping[ServiceKey, JsonObject], now: float, date: datetime) -> None:
        """Do what is due at ``now`` (monotonic clock): make, start, restart, ask to end, end, forget."""
        self._date = date
        for service in {pod.service for pod in self.pods} | deployments.keys():
            self._follow(service, deployments.get(service), now)
        for held in list(self._held.values()):
            self._tend(held, now)

    def probed(self, pod: Pod, *, is_ready: bool) -> None:
        """Take in an answer to the readiness probe of ``pod``, as it was when it was asked."""
        held = self._held.get(pod.name)
        if held is None or not held.pod.runs or held.pod.num_restarts != pod.num_restarts:
            return
        held.num_missed = 0 if is_ready else held.num_missed + 1
        is_lost = held.pod.is_ready and held.num_missed >= _MISSED_PROBES
        if is_lost or (is_ready and not held.pod.is_ready):
            held.pod = replace(held.pod, condition=Serving(is_ready, self._date))

    def annotate(self, mark: JsonObject) -> None:
        """Give a pod the annotations of ``mark``, an applied Pod, and no others, unless it is another one by now."""
        held = self._held.get(mark["metadata"]["name"])
        if held is not None and held.pod.uid == mark["metadata"]["uid"]:
            held.pod = replace(held.pod, annotations=mark["metadata"]["annotations"])

    def kill(self) -> None:
        """End everything at once."""
        for held in self._held.values():
            if held.engine is not None:
                held.engine.kill()

    def _follow(self, service: ServiceKey, deployment: JsonObject | None, now: float) -> None:
        pods = self.pods_of(service)
        if deployment is None:
            self._let_go((pod.name for pod in pods), now)
            return
        due = change(deployment, pods)
        self._let_go(due.leaving, now)
        for _ in range(due.num_new):
            self._make(service, deployment)

    def _make(self, service: ServiceKey, deployment: JsonObject) -> None:
        self._num_made += 1
        present = template_hash(deployment)
        suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))
        pod = Pod(
            service=service,
            name=f"{deployment['metadata']['name']}-{present}-{suffix}",
            uid=str(uuid.uuid4()),
            template_hash=present,
            template=deployment["spec"]["template"],
            number=self._num_made,
            ports=self._free_ports(),
            created=self._date,
        )
        self._held[pod.name] = _Held(pod)

    def _free_ports(self) -> Ports:
        return self._new_ports({port for each in self.pods for port in (each.ports.http, each.ports.admin)})

    def _let_go(self, names: Iterable[str], now: float) -> None:
        for name in names:
            held = self._held[name]
            if held.pod.is_leaving:
                continue
            grace = float(held.pod.template["spec"].get("terminationGracePeriodSeconds", 30))
            # Nobody has to hear of one that has never served.
            held.leaves_at = now + (PROPAGATION_SECONDS if isinstance(held.pod.condition, Serving) else 0.0)
            held.ends_at = held.leaves_at + grace
            held.pod = replace(held.pod, is_leaving=True)

    def _tend(self, held: _Held, now: float) -> None:
        if held.engine is None and (held.pod.is_leaving or not self._begin(held, now)):
            if held.pod.is_leaving:
                del self._held[held.pod.name]
            return
        assert held.engine is not None
        held.engine.is_leaving = held.pod.is_leaving
        held.engine.step(now)
        self._note(held)
        if held.pod.is_leaving:
            self._end(held, held.engine, now)

    def _begin(self, held: _Held, now: float) -> bool:
        """Make a command of the pod; whether there is one."""
        if now < held.retry_at:
            return False
        match self._commands(held.pod):
            case CannotStart(problem):
                held.pod = replace(held.pod, condition=NotMade(problem))
                held.retry_at = now + _RETRY_SECONDS
                return False
            case command:
                held.engine = engine = Supervised(
                    lambda: self._start(held.pod, command) if engine.last_exit is None else self._start_again(held)
                )
                return True

    def _start_again(self, held: _Held) -> Process:
        """Start a pod's engine at new ports: while it was away somebody may have taken the former ones."""
        held.pod = replace(held.pod, ports=self._free_ports())
        match self._commands(held.pod):
            case CannotStart(problem):
                raise OSError(problem)
            case command:
                return self._start(held.pod, command)

    def _note(self, held: _Held) -> None:
        """Take over what the last step has found."""
        assert held.engine is not None
        was_started_again = held.engine.num_restarts != held.pod.num_restarts or not held.pod.runs
        match held.engine.state:
            case Running():
                condition = Starting() if was_started_again else held.pod.condition
            case Waiting(until):
                condition = Resting(until)
        held.pod = replace(
            held.pod, condition=condition, num_restarts=held.engine.num_restarts, last_exit=held.engine.last_exit
        )

    def _end(self, held: _Held, engine: Supervised, now: float) -> None:
        if isinstance(engine.state, Waiting):
            del self._held[held.pod.name]
        elif now >= held.ends_at:
            engine.kill()
        elif now >= held.leaves_at and not held.was_asked:
            held.was_asked = True
            engine.terminate()

    def _revision(self, deployment: JsonObject) -> int:
        """Return the number of the present template: it rises whenever another one comes."""
        uid, present = deployment["metadata"]["uid"], template_hash(deployment)
        known = self._revisions.get(uid)
        if known is None or known.template_hash != present:
            known = _Revision(present, 1 if known is None else known.number + 1)
            self._revisions[uid] = known
        return known.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the API server would show of one Deployment."""

    deployment: dict[str, Any]
    replica_set: dict[str, Any]
    pods: tuple[dict[str, Any], ...]
