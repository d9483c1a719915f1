"""One reconcile, decided: what to write, what to delete, what to say.

Deciding twice on the same world gives the same plan, and a world that is as it should be gives an empty one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sapwood_operator.domain.children import deployment, services
from sapwood_operator.domain.children.desired import KINDS, OPTIONAL_APIS, desired_children, is_served, missing_apis
from sapwood_operator.domain.conditions import Facts
from sapwood_operator.domain.diff import differs, with_hash
from sapwood_operator.domain.events import Event, events
from sapwood_operator.domain.exposure import check_hosts
from sapwood_operator.domain.intent import Intent, NoIntent
from sapwood_operator.domain.observed import ObjectRef, Observed, is_leaving, is_owned, ref_of
from sapwood_operator.domain.obstacles import NO_OBSTACLE, NoObstacle, Obstacle
from sapwood_operator.domain.ownership import belongs_to, own_deployment
from sapwood_operator.domain.pod_marks import due_marks
from sapwood_operator.domain.replicas import wanted_replicas
from sapwood_operator.domain.spec import ServiceSpec, read
from sapwood_operator.domain.status import status_of
from sapwood_operator.domain.unsupported import unsupported_fields
from sapwood_operator.domain.workload import read_workload
from sapwood_operator.errors import InvalidSpec
from sapwood_operator.settings import OperatorSettings

NO_SECRET = Obstacle(
    "SecretMissing",
    "spec.tenancy.authentication ApiKey needs a secret that operator and gateway share, and the operator has none, so "
    "the service has no address; start both with --secret-file, as the chart does, or set authentication to None",
)


@dataclass(frozen=True, slots=True)
class Delete:
    """An object of ours that is no longer wanted; only the one with this uid may be deleted."""

    ref: ObjectRef
    uid: str


@dataclass(frozen=True, slots=True)
class StatusChange:
    """The status to write, whole."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The status is as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one reconcile does, in this order."""

    marks: tuple[Mapping[str, Any], ...] = ()
    """Annotations of pods for server-side apply: before a Deployment shrinks, it is marked which pod goes."""
    applies: tuple[Mapping[str, Any], ...] = ()
    """Complete objects for server-side apply: those alone that need a write."""
    deletes: tuple[Delete, ...] = ()
    status: StatusChange | Unchanged = Unchanged()
    events: tuple[Event, ...] = ()
    """To be told before the status is written: so a crash between the two repeats them, and loses none."""
    requeue_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writes:
    """What a spec comes to, in a world."""

    wanted: int
    """Replicas that the service is to come to; the Deployment may have more until one of them is empty."""
    marks: tuple[Mapping[str, Any], ...] = ()
    applies: tuple[Mapping[str, Any], ...] = ()
    deletes: tuple[Delete, ...] = ()
    written: bool
    """Whether the Deployment is as desired."""
    refusal: Obstacle | NoObstacle = NO_OBSTACLE
    missing_api: Obstacle | NoObstacle = NO_OBSTACLE
    url: str


def plan(observed: Observed, settings: OperatorSettings, now: datetime) -> Plan:
    """Decide one reconcile; ``now`` has a time zone and dates the transitions of conditions.

    A service that is being deleted needs nothing: what it owns is collected by its owner references.
    """
    if is_leaving(observed.service):
        return Plan(requeue_after_seconds=settings.resync_seconds)
    try:
        writes = _decide(read(observed.service), observed, settings)
    except InvalidSpec as error:
        writes = _leave_alone(error, observed)
    workload = read_workload(
        own_deployment(observed),
        observed.replica_sets,
        observed.pods,
        wanted=writes.wanted,
        written=writes.written,
        now=now,
        cordoned=observed.intent.cordoned if isinstance(observed.intent, Intent) else (),
    )
    facts = Facts(
        workload=workload,
        refusal=writes.refusal,
        missing_api=writes.missing_api,
        unsupported=unsupported_fields(observed.service),
        wakes=isinstance(observed.intent, Intent) and observed.intent.scales_to_zero,
    )
    before = observed.service.get("status") or {}
    after = status_of(observed.service, facts, observed.intent, url=writes.url, now=now)
    interval = settings.retry_seconds if isinstance(writes.refusal, Obstacle) else settings.resync_seconds
    recheck, news = _outlook(observed.intent)
    return Plan(
        marks=writes.marks,
        applies=writes.applies,
        deletes=writes.deletes,
        status=Unchanged() if after == before else StatusChange(after),
        events=() if after == before else events(before, after, news),
        requeue_after_seconds=min(interval, workload.seconds_to_obstacle, recheck),
    )


def _decide(spec: ServiceSpec, observed: Observed, settings: OperatorSettings) -> _Writes:
    check_hosts(spec.exposure, {spec.namespace, settings.gateway_namespace})
    scale = _scale(spec, observed)
    desired = desired_children(
        spec,
        settings,
        replicas=scale.replicas,
        apis=observed.apis,
        cordoned=scale.cordoned,
        scales_to_zero=scale.scales_to_zero,
        promised_seconds=scale.promised_seconds,
    )
    children = [with_hash(child) for child in desired]
    refs = {ref_of(child) for child in children}
    due = [child for child in children if _needs_write(child, observed)]
    taken = [child for child in due if not _may_write(child, spec, observed)]
    applies = tuple(child for child in due if child not in taken and not _is_leaving(child, observed))
    deletes = _deletes(spec, refs, observed)
    marks = due_marks(observed.pods, scale.first_to_go)
    intended = {ref_of(each) for each in (*marks, *applies)} | {delete.ref for delete in deletes}
    address = ObjectRef(services.API_VERSION, services.KIND, spec.namespace, spec.name)
    refusal = _refusal(taken, due, intended, observed)
    if refusal == NO_OBSTACLE and not is_served(spec, settings):
        refusal = NO_SECRET
    return _Writes(
        wanted=scale.desired,
        marks=marks,
        applies=applies,
        deletes=deletes,
        written=all(child["kind"] != deployment.KIND for child in due),
        refusal=refusal,
        missing_api=_missing_api(spec, observed),
        url=services.url(spec, settings) if is_served(spec, settings) and address not in map(ref_of, taken) else "",
    )


def _outlook(intent: Intent | NoIntent) -> tuple[float, tuple[str, ...]]:
    return (intent.recheck_seconds, intent.news) if isinstance(intent, Intent) else (math.inf, ())


def _scale(spec: ServiceSpec, observed: Observed) -> Intent:
    match observed.intent:
        case Intent() as intent:
            return intent
        case _:
            wanted = wanted_replicas(spec.replicas, own_deployment(observed))
            return Intent(replicas=wanted, desired=wanted)


def _leave_alone(error: InvalidSpec, observed: Observed) -> _Writes:
    """What runs goes on running: a mistake in the spec takes no pod away."""
    live = own_deployment(observed)
    return _Writes(
        wanted=0 if live is None else live["spec"].get("replicas", 1),
        written=False,
        refusal=Obstacle("InvalidSpec", str(error)),
        url=(observed.service.get("status") or {}).get("url", ""),
    )


def _needs_write(child: Mapping[str, Any], observed: Observed) -> bool:
    ref = ref_of(child)
    live = observed.children.get(ref)
    return live is None or is_leaving(live) or differs(child, live, observed.answers.get(ref))


def _may_write(child: Mapping[str, Any], spec: ServiceSpec, observed: Observed) -> bool:
    live = observed.children.get(ref_of(child))
    return live is None or belongs_to(spec, live)


def _is_leaving(child: Mapping[str, Any], observed: Observed) -> bool:
    """Whether the live object is being deleted: it is made anew when it is gone, and its going is an event."""
    live = observed.children.get(ref_of(child))
    return live is not None and is_leaving(live)


def _held_by(child: Mapping[str, Any], observed: Observed) -> list[str]:
    """Return the finalizers that keep a live object that is being deleted, but for those of Kubernetes itself."""
    if not _is_leaving(child, observed):
        return []
    finalizers = observed.children[ref_of(child)]["metadata"].get("finalizers") or ()
    return [name for name in finalizers if name not in _OWN_FINALIZERS]


_OWN_FINALIZERS = ("foregroundDeletion", "orphan")


def _deletes(spec: ServiceSpec, wanted: set[ObjectRef], observed: Observed) -> tuple[Delete, ...]:
    """Name what the service owns and no longer wants.

    A kind whose API is not seen now is left alone: nothing was rendered for it, wanted or not.
    """
    kinds = (KINDS - OPTIONAL_APIS) | observed.apis
    return tuple(
        Delete(ref, live["metadata"]["uid"])
        for ref, live in sorted(observed.children.items())
        if ref not in wanted
        and (ref.api_version, ref.kind) in KINDS & kinds
        and is_owned(live, spec.uid)
        and not is_leaving(live)
    )


def _refusal(
    taken: list[dict[str, Any]], due: list[dict[str, Any]], intended: set[ObjectRef], observed: Observed
) -> Obstacle | NoObstacle:
    """Say what cannot be written: the object cannot go, it is somebody else's, or the API server refused the write."""
    held = [(ref_of(child), finalizers) for child in due if (finalizers := _held_by(child, observed))]
    if held:
        return Obstacle(
            "DeletionHeld",
            "; ".join(
                f"{ref} is being deleted and waits for the finalizer {', '.join(finalizers)}, which whoever set it has "
                "to remove; it is made anew then"
                for ref, finalizers in held
            ),
        )
    if taken:
        others = ", ".join(str(ref_of(child)) for child in taken)
        return Obstacle(
            "NameTaken",
            f"{others} exists and belongs to somebody else; delete it, or give the InferenceService another name",
        )
    refused = sorted((p for p in observed.problems if p.ref in intended), key=lambda problem: problem.ref)
    if refused:
        return Obstacle(
            "ApplyRefused",
            "; ".join(f"the API server refuses {p.ref} ({p.reason}): {p.message.rstrip('. ')}" for p in refused),
        )
    return NO_OBSTACLE


def _missing_api(spec: ServiceSpec, observed: Observed) -> Obstacle | NoObstacle:
    missing = missing_apis(spec, observed.apis)
    if not missing:
        return NO_OBSTACLE
    return Obstacle(
        "ApiMissing",
        "; ".join(
            f"spec.{field} needs {kind} of {api_version}, which this cluster lacks: install it, or remove the field"
            for field, api_version, kind in missing
        ),
    )
