"""One reconcile of one service: the domain decides, memory takes it in; in a cluster that is `handlers.reconcile`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sapwood_operator.domain.events import Event
from sapwood_operator.domain.observed import Observed, ref_of
from sapwood_operator.domain.plan import Plan, StatusChange, plan
from sapwood_operator.local.kubelet import Kubelet
from sapwood_operator.local.world import JsonObject, ServiceKey, World
from sapwood_operator.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened to a service."""

    service: ServiceKey
    event: Event


def reconcile(
    world: World, kubelet: Kubelet, key: ServiceKey, settings: OperatorSettings, now: datetime
) -> tuple[Told, ...]:
    """Bring one service closer to its desired state; mutates ``world``."""
    intended = plan(_observe(world, kubelet, key), settings, now)
    if _carry_out(world, intended):
        intended = plan(_observe(world, kubelet, key), settings, now)
    if isinstance(intended.status, StatusChange):
        world.set_status(key, intended.status.status)
    return tuple(Told(key, event) for event in intended.events)


def deployment_of(world: World, key: ServiceKey) -> JsonObject | None:
    """Return the Deployment of a service; None where there is none yet."""
    return next((child for ref, child in world.children(key).items() if ref.kind == "Deployment"), None)


def _observe(world: World, kubelet: Kubelet, key: ServiceKey) -> Observed:
    children = world.children(key)
    deployment = deployment_of(world, key)
    if deployment is None:
        return Observed(service=world.services[key], children=children, pods=(), replica_sets=(), apis=frozenset())
    seen = kubelet.seen(key, deployment)
    children[ref_of(deployment)] = seen.deployment
    return Observed(
        service=world.services[key],
        children=children,
        pods=seen.pods,
        replica_sets=(seen.replica_set,),
        apis=frozenset(),
    )


def _carry_out(world: World, intended: Plan) -> bool:
    for desired in intended.applies:
        world.apply(desired)
    for deletion in intended.deletes:
        world.delete(deletion)
    return bool(intended.applies or intended.deletes)
