"""One reconcile of one service: the domain decides, memory takes it in; in a cluster that is `handlers.reconcile`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sapwood_operator.autoscaling.engines import EngineSeen
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.turn import Scaling, Undecided, scaling_turn
from sapwood_operator.domain.events import Event
from sapwood_operator.domain.observed import Observed, ref_of
from sapwood_operator.domain.plan import Plan, StatusChange, plan
from sapwood_operator.local.kubelet import Kubelet
from sapwood_operator.local.world import JsonObject, ServiceKey, World
from sapwood_operator.settings import OperatorSettings

_log = logging.getLogger(__name__)


class Engines(Protocol):
    """Knows what engines and the gateway say, and asks them: `local.engines.AskedEngines`. Nothing of it waits."""

    def signals(self, key: ServiceKey) -> ServiceSignals:
        """Return what is known of one service now."""
        ...

    def known(self, key: ServiceKey) -> Mapping[str, EngineSeen]:
        """Return what engines said while replicas came and went, by the uids of their pods."""
        ...

    def carry_out(self, key: ServiceKey, service: JsonObject, pods: Sequence[JsonObject], scaling: Scaling) -> None:
        """Begin what ``scaling`` wants to ask."""
        ...

    def forget(self, key: ServiceKey) -> None:
        """The service is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened to a service."""

    service: ServiceKey
    event: Event


@dataclass(frozen=True, slots=True)
class Turn:
    """What one reconcile came to."""

    told: tuple[Told, ...]
    again_seconds: float
    """When to look again, should nothing happen before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Brings services closer to their desired states; mutates ``world`` and the pods' annotations."""

    world: World
    kubelet: Kubelet
    settings: OperatorSettings

    def reconcile(self, key: ServiceKey, engines: Engines, policies: Mapping[str, JsonObject], now: datetime) -> Turn:
        """Do one turn of a service. ``policies``: AutoscalingPolicies of its namespace by name."""
        observed = self._observe(key)
        scaling = scaling_turn(observed, policies, engines.signals(key), engines.known(key), now.timestamp())
        if isinstance(scaling.decision, Undecided) and scaling.decision.problem:
            _log.error("deciding failed", extra={"service": str(key), "detail": scaling.decision.problem})
        intended = plan(replace(observed, intent=scaling.intent), self.settings, now)
        if self._carry_out(intended):
            observed = self._observe(key)
            intended = plan(replace(observed, intent=scaling.intent), self.settings, now)
        if isinstance(intended.status, StatusChange):
            self.world.set_status(key, intended.status.status)
        engines.carry_out(key, observed.service, observed.pods, scaling)
        return Turn(tuple(Told(key, event) for event in intended.events), intended.requeue_after_seconds)

    def _observe(self, key: ServiceKey) -> Observed:
        world, children = self.world, self.world.children(key)
        deployment = deployment_of(world, key)
        if deployment is None:
            return Observed(service=world.services[key], children=children, pods=(), replica_sets=(), apis=frozenset())
        seen = self.kubelet.seen(key, deployment)
        children[ref_of(deployment)] = seen.deployment
        return Observed(
            service=world.services[key],
            children=children,
            pods=seen.pods,
            replica_sets=(seen.replica_set,),
            apis=frozenset(),
        )

    def _carry_out(self, intended: Plan) -> bool:
        for mark in intended.marks:
            self.kubelet.annotate(mark)
        for desired in intended.applies:
            self.world.apply(desired)
        for deletion in intended.deletes:
            self.world.delete(deletion)
        return bool(intended.marks or intended.applies or intended.deletes)


def deployment_of(world: World, key: ServiceKey) -> JsonObject | None:
    """Return the Deployment of a service; None where there is none yet."""
    return next((child for ref, child in world.children(key).items() if ref.kind == "Deployment"), None)
