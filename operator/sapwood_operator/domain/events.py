"""Which changes of a status people are told of as Events, in the order in which they make a story."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sapwood_operator.domain.intent import DRY_RUN

Status = Mapping[str, Any]
_NO_CONDITION: Mapping[str, str] = {"status": "", "reason": "", "message": ""}


@dataclass(frozen=True, slots=True)
class Event:
    """One Event about an InferenceService."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Change:
    """A status before and after one reconcile."""

    before: Status
    """Empty for a service that never had one."""
    after: Status
    news: tuple[str, ...] = ()
    """What scaling has to tell of single replicas."""

    def was(self, type_: str) -> Mapping[str, str]:
        """Return a condition as it was."""
        return _condition(self.before, type_)

    def now(self, type_: str) -> Mapping[str, str]:
        """Return a condition as it is."""
        return _condition(self.after, type_)

    def turned(self, type_: str, status: str) -> bool:
        """Whether a condition has this status now and had another, or none."""
        return self.now(type_)["status"] == status != self.was(type_)["status"]


def _condition(status: Status, type_: str) -> Mapping[str, str]:
    return next((c for c in status.get("conditions") or () if c["type"] == type_), _NO_CONDITION)


@dataclass(frozen=True, slots=True)
class Rule:
    """One change that is told."""

    sentence: str
    happened: Callable[[Change], bool]
    tell: Callable[[Change], Event]


def _as_condition(type_: str, kind: Literal["Normal", "Warning"], reason: str = "") -> Callable[[Change], Event]:
    """Tell a condition's message, under its own reason where no other is given."""
    return lambda c: Event(kind, reason or c.now(type_)["reason"], c.now(type_)["message"])


def _scaled(change: Change) -> bool:
    return "desiredReplicas" in change.before and _desired(change.before) != _desired(change.after)


def _tell_scaled(change: Change) -> Event:
    """A dry run may have said the very same a moment ago, so the decision need not be a new one."""
    before, after = _desired(change.before), _desired(change.after)
    decision = _last_decision(change.after)
    why = _why(decision) if (decision.get("from"), decision.get("to")) == (before, after) else ""
    return Event("Normal", "Scaled", f"from {before} to {after} replicas{why}")


def _would_scale(change: Change) -> bool:
    return change.now("AutoscalingActive")["reason"] == DRY_RUN and bool(_new_decision(change))


def _tell_would_scale(change: Change) -> Event:
    decision = _new_decision(change)
    return Event("Normal", "WouldScale", f"from {decision['from']} to {decision['to']} replicas{_why(decision)}")


def _new_decision(change: Change) -> Mapping[str, Any]:
    """Return the autoscaler's last change of its mind; empty where that is the one from before."""
    before, after = (_last_decision(status) for status in (change.before, change.after))
    return after if after != before else {}


def _last_decision(status: Status) -> Mapping[str, Any]:
    decisions: Sequence[Mapping[str, Any]] = (status.get("autoscaling") or {}).get("decisions") or ({},)
    return decisions[0]


def _why(decision: Mapping[str, Any]) -> str:
    return f": {decision['reason']}: {decision.get('message', '')}"


def _desired(status: Status) -> int:
    return int(status["desiredReplicas"])


def _rollout_started(change: Change) -> bool:
    """Whatever is said of the new pods: one that cannot start may be the first thing that is seen of them."""
    is_settled = change.now("Ready")["reason"] != "Updating"
    was_under_way = _older(change.before) > 0 and change.was("Ready")["reason"] != "Updating"
    return is_settled and not was_under_way and _older(change.after) > 0


def _tell_rollout(change: Change) -> Event:
    updated, desired, older = change.after["updatedReplicas"], _desired(change.after), _older(change.after)
    message = f"{updated} of {desired} replicas are of this revision, {older} are older"
    return Event("Normal", "RolloutStarted", message)


def _older(status: Status) -> int:
    return int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))


_NOT_MADE = frozenset({"InvalidSpec", "NameTaken", "DeletionHeld", "ApplyRefused"})
"""Why the operator makes less than the spec asks for."""

RULES: tuple[Rule, ...] = (
    Rule(
        "the service is seen for the first time and can be made",
        # Its pods may be in trouble already: the first status is written after they are made.
        lambda c: not c.before and c.now("Degraded")["reason"] not in _NOT_MADE,
        lambda c: Event("Normal", "Created", f"replicas to make: {_desired(c.after)}"),
    ),
    Rule(
        "other fields than before are not acted on",
        lambda c: (
            c.now("Unsupported")["status"] == "True"
            and c.now("Unsupported")["message"] != c.was("Unsupported")["message"]
        ),
        _as_condition("Unsupported", "Warning"),
    ),
    Rule("another number of replicas is wanted", _scaled, _tell_scaled),
    Rule("another number would be wanted, were decisions acted on", _would_scale, _tell_would_scale),
    Rule(
        "a replica is chosen to go, or stays after all",
        lambda c: bool(c.news),
        lambda c: Event("Normal", "ReplicaChosen", "; ".join(c.news)),
    ),
    Rule(
        "pods of a new revision begin to replace the former ones",
        _rollout_started,
        _tell_rollout,
    ),
    Rule(
        "replicas begin to finish their requests",
        lambda c: c.turned("Draining", "True"),
        _as_condition("Draining", "Normal", "Draining"),
    ),
    Rule(
        "something needs attention, or something else than before",
        lambda c: c.now("Degraded")["status"] == "True" and c.now("Degraded")["reason"] != c.was("Degraded")["reason"],
        _as_condition("Degraded", "Warning"),
    ),
    Rule(
        "the service serves, and not everything of it is ready",
        lambda c: c.turned("Serving", "True") and c.now("Ready")["status"] != "True" and _desired(c.after) > 0,
        _as_condition("Serving", "Normal", "Serving"),
    ),
    Rule(
        "no replica takes requests any more although some should",
        lambda c: c.was("Serving")["status"] == "True" and c.turned("Serving", "False") and _desired(c.after) > 0,
        _as_condition("Serving", "Warning", "NotServing"),
    ),
    Rule(
        "everything is ready",
        lambda c: c.turned("Ready", "True"),
        _as_condition("Ready", "Normal", "Ready"),
    ),
)


def events(before: Status, after: Status, news: tuple[str, ...] = ()) -> tuple[Event, ...]:
    """Return the Events of a change from one status to the next; ``before`` is empty where there was none, ``news``
    what scaling has to tell besides.
    """
    change = Change(before, after, news)
    return tuple(rule.tell(change) for rule in RULES if rule.happened(change))
