"""One turn's scaling of one service: from live objects and signals to what `domain.plan` writes and engines are asked.

A number that the spec gives and one that a policy decides go the same way from here on: `autoscaling.movement` brings
the replicas there, so that nothing is lost on the way down. What the service was going to last stands in
``status.desiredReplicas``: so a new leader goes on there, and who scales the Deployment beside us is overruled.

Where the rule is missing or cannot be used, or deciding fails, the number is held and `AutoscalingActive` says why: the
rest of the service is looked after as ever. Only from none it goes to one when somebody asks: held there it would be
away for as long as nobody mends the rule.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.engines import EngineCall, EngineSeen
from sapwood_operator.autoscaling.figures import figures
from sapwood_operator.autoscaling.movement import Lost, Movement, move
from sapwood_operator.autoscaling.observing import replicas_of, rollout_of
from sapwood_operator.autoscaling.outlook import Question
from sapwood_operator.autoscaling.pods import Seen, leaving_of, leaving_status, pods_seen
from sapwood_operator.autoscaling.recorded import conditions, recorded
from sapwood_operator.autoscaling.rule import NoRule, rule_of
from sapwood_operator.autoscaling.signals import ServiceSignals
from sapwood_operator.autoscaling.state import from_status
from sapwood_operator.autoscaling.values import Decision, Demand, Observation, State
from sapwood_operator.domain.intent import DRY_RUN, NO_INTENT, Intent, NoIntent, ScalingCondition
from sapwood_operator.domain.observed import Observed, is_leaving
from sapwood_operator.domain.ownership import own_deployment
from sapwood_operator.domain.replicas import wanted_replicas
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.domain.spec import FixedReplicas, ScaledReplicas, ServiceSpec, read
from sapwood_operator.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nobody decided: the spec gives the number, or a service that is to be scaled cannot be."""

    conditions: tuple[ScalingCondition, ...] = ()
    """Why it cannot."""
    problem: str = ""
    """What went wrong with us, for the log; empty: nothing did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What scaling comes to in one turn."""

    intent: Intent | NoIntent
    calls: tuple[EngineCall, ...] = ()
    """For `handlers.engine_calls`."""
    decision: Decision | Undecided = Undecided()
    num_ready: int = 0
    """Replicas that were ready when it was decided."""
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """One service at one moment."""

    spec: ServiceSpec
    seen: Seen
    observation: Observation
    status: Mapping[str, Any]
    former: Mapping[str, Any]
    """``status.autoscaling``."""


def scaling_turn(
    observed: Observed,
    policies: Mapping[str, Mapping[str, Any]],
    signals: ServiceSignals,
    engines: Mapping[str, EngineSeen],
    now: float,
) -> Scaling:
    """Return what scaling wants of a service now.

    ``observed.intent`` is not looked at. ``policies``: live AutoscalingPolicies of the namespace by name. ``engines``:
    uid of a pod -> what is known of its engine. ``now``: Unix time.
    """
    if is_leaving(observed.service):
        return Scaling(intent=NO_INTENT)
    try:
        spec = read(observed.service)
    except InvalidSpec as error:
        return Scaling(intent=_held(observed, NoRule("InvalidSpec", f"{error}; replicas stay as they are")))
    try:
        return _turn(observed, spec, policies, signals, engines, now)
    except Exception as error:  # a mistake of ours in scaling must not stop the rest of the service
        is_scaled = isinstance(spec.replicas, ScaledReplicas)
        intent = _held(observed, _fault(error)) if is_scaled else NO_INTENT
        return Scaling(intent=intent, decision=Undecided(problem=_place(error)))


def question_of(
    observed: Observed, policies: Mapping[str, Mapping[str, Any]], signals: ServiceSignals, now: float
) -> Question | NoRule | FixedReplicas:
    """Return what a decision about a service would be made from now, or why nobody decides.

    See `scaling_turn` for what is given.
    """
    try:
        spec = read(observed.service)
    except InvalidSpec as error:
        return NoRule("InvalidSpec", str(error))
    rule = rule_of(spec, policies)
    if not isinstance(rule, ScalingPolicy):
        return rule
    service = _service(observed, spec, signals, {}, now)
    leaving = tuple(entry.pod for entry in service.seen.leaving)
    return Question(rule, service.observation, _remembered(rule, service), now, leaving)


def _turn(
    observed: Observed,
    spec: ServiceSpec,
    policies: Mapping[str, Mapping[str, Any]],
    signals: ServiceSignals,
    engines: Mapping[str, EngineSeen],
    now: float,
) -> Scaling:
    service = _service(observed, spec, signals, engines, now)
    rule = rule_of(spec, policies)
    decision = _decision(rule, service, now)
    wanted = _wanted(rule, decision, service.observation)
    movement = move(
        service.seen,
        wanted=wanted,
        drain_seconds=spec.rollout.drain_seconds,
        warms=isinstance(spec.replicas, ScaledReplicas),
        now=now,
    )
    return Scaling(
        intent=_intent(service, rule, decision, movement, wanted),
        calls=movement.calls,
        decision=decision,
        num_ready=sum(replica.stage == "ready" for replica in service.observation.replicas),
        lost=movement.lost,
    )


def _wanted(
    rule: ScalingPolicy | FixedReplicas | NoRule, decision: Decision | Undecided, observation: Observation
) -> int:
    if isinstance(rule, FixedReplicas):
        return rule.count
    if isinstance(decision, Decision):
        return decision.desired if decision.acts else observation.current
    demand = observation.demand
    is_asked_for = isinstance(demand, Demand) and demand.num_waiting + demand.num_running > 0
    return max(observation.current, 1) if is_asked_for else observation.current


def _holds_requests(rule: ScalingPolicy | FixedReplicas | NoRule, service: _Service) -> bool:
    """Where nobody acts nobody wakes it either: a request that is held would wait in vain.

    One that was at zero when its rule went holds what waits there, until a replica is ready.
    """
    match rule:
        case ScalingPolicy():
            return rule.scale_to_zero and rule.mode == "Active"
        case NoRule():
            last = from_status(service.former).changes[:1]
            was_none = any(0 in (change.before, change.after) for change in last)
            has_none = all(each.stage != "ready" for each in service.observation.replicas)
            return service.observation.current == 0 or (was_none and has_none)
        case FixedReplicas():
            return False


def _held(observed: Observed, why: NoRule) -> Intent:
    """Return the intent that leaves everything as it is, and says why where the service is to be scaled."""
    status = observed.service.get("status") or {}
    former = status.get("autoscaling") or {}
    spec, deployment = observed.service.get("spec"), own_deployment(observed)
    asked = 0 if deployment is None else int(deployment["spec"].get("replicas", 1))
    is_scaled = isinstance(spec, Mapping) and spec.get("autoscaling") is not None
    return Intent(
        replicas=asked,
        desired=asked,
        cordoned=tuple(entry.pod for entry in leaving_of(former)),
        first_to_go=tuple(pod.name for pod in pods_seen(observed.pods) if pod.is_marked),
        autoscaling=former,
        observed=status.get("observed") or {},
        conditions=(why.condition,) if is_scaled else (),
    )


def _service(
    observed: Observed,
    spec: ServiceSpec,
    signals: ServiceSignals,
    engines: Mapping[str, EngineSeen],
    now: float,
) -> _Service:
    status = observed.service.get("status") or {}
    former = status.get("autoscaling") or {}
    deployment = own_deployment(observed)
    pods, leaving, rollout = pods_seen(observed.pods), leaving_of(former), rollout_of(deployment)
    return _Service(
        spec=spec,
        seen=Seen(
            pods=pods,
            asked=None if deployment is None else int(deployment["spec"].get("replicas", 1)),
            leaving=leaving,
            rollout=rollout,
            engines=engines,
            demand=signals.demand,
            demand_at=signals.demand_at or 0.0,
        ),
        observation=Observation(
            replicas=replicas_of(observed.pods, pods, leaving, signals, now),
            current=_current(spec, status, deployment),
            demand=signals.demand,
            rolling=rollout != "none",
            by_prefix=spec.routing.policy == "PrefixAffinity",
            taken=signals.taken,
        ),
        status=status,
        former=former,
    )


def _current(spec: ServiceSpec, status: Mapping[str, Any], deployment: Mapping[str, Any] | None) -> int:
    """Return where the service was going last."""
    recorded = status.get("desiredReplicas")
    if isinstance(recorded, int) and (deployment is not None or "autoscaling" in status):
        return recorded
    return wanted_replicas(spec.replicas, deployment)


# --- the decision


def _decision(rule: ScalingPolicy | FixedReplicas | NoRule, service: _Service, now: float) -> Decision | Undecided:
    match rule:
        case FixedReplicas():
            return Undecided()
        case NoRule() as why:
            return Undecided((why.condition,))
        case policy:
            try:
                return decide(policy, service.observation, _remembered(policy, service), now)
            except Exception as error:  # a mistake of ours in deciding must not stop what is decided already
                return Undecided((_fault(error).condition,), _place(error))


def _remembered(policy: ScalingPolicy, service: _Service) -> State:
    """Return what was decided before. What a dry run wanted was never done, and counts for no other mode."""
    before = [each["reason"] for each in service.status.get("conditions") or () if each["type"] == "AutoscalingActive"]
    if before == [DRY_RUN] and policy.mode != DRY_RUN:
        return State()
    return from_status(service.former)


def _fault(error: Exception) -> NoRule:
    fix = "a fault of the operator, whose log says more; replicas stay as they are"
    return NoRule("DecisionFailed", f"deciding failed ({type(error).__name__}), {fix}")


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"


# --- what is written down


def _intent(
    service: _Service,
    rule: ScalingPolicy | FixedReplicas | NoRule,
    decision: Decision | Undecided,
    movement: Movement,
    wanted: int,
) -> Intent:
    leaving = {"leaving": leaving_status(movement.leaving)} if movement.leaving else {}
    return Intent(
        replicas=movement.replicas,
        desired=wanted,
        cordoned=movement.cordoned,
        first_to_go=movement.first_to_go,
        scales_to_zero=_holds_requests(rule, service),
        promised_seconds=rule.ttft_p90_seconds if isinstance(rule, ScalingPolicy) else None,
        autoscaling={**_kept(service.former, rule, decision), **leaving},
        observed=figures(service.observation, service.status.get("observed")),
        conditions=_said(service.status, decision),
        news=movement.news,
        recheck_seconds=movement.recheck_seconds,
    )


def _kept(
    former: Mapping[str, Any], rule: ScalingPolicy | FixedReplicas | NoRule, decision: Decision | Undecided
) -> Mapping[str, Any]:
    """Return ``status.autoscaling`` but for who leaves; empty where the spec gives the number."""
    if isinstance(decision, Decision):
        return recorded(former, decision)
    if isinstance(rule, FixedReplicas):
        return {}
    return {name: value for name, value in former.items() if name != "leaving"}


def _said(status: Mapping[str, Any], decision: Decision | Undecided) -> tuple[ScalingCondition, ...]:
    return conditions(status, decision) if isinstance(decision, Decision) else decision.conditions
