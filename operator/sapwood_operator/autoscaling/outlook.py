"""What a service that scales would do with another number of replicas, beside what it does now and what its policy
wants; and all of one decision. For people: nobody acts on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sapwood_operator.autoscaling.decide import decide
from sapwood_operator.autoscaling.values import Decision, Observation, State
from sapwood_operator.autoscaling.what_if import NoPrediction, Prediction, what_if
from sapwood_operator.domain.scaling_policy import ScalingPolicy

WITHOUT_END = "Infinity"
"""In JSON, which has no number for it."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that a decision about one service is made from."""

    policy: ScalingPolicy
    observation: Observation
    state: State
    now: float
    """Unix time."""
    leaving: tuple[str, ...] = ()
    """Pods that were chosen to go."""

    @property
    def num_ready(self) -> int:
        """Replicas that take requests."""
        return sum(replica.stage == "ready" for replica in self.observation.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the policy wants of the service as it is."""

    replicas: int
    mode: str
    reason: str
    message: str
    goes_there: bool
    """Whether it wants the number that was asked for."""
    sentence: str
    """The same for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The number that was asked for, beside the one that there is."""

    now: Prediction
    """As many as are ready, with the memory that they have."""
    then: Prediction
    policy: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One decision, whole."""

    mode: str
    min_replicas: int
    max_replicas: int
    num_ready: int
    num_asked: int
    """Replicas that are asked for now."""
    desired: int
    reason: str
    message: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)
    """Replicas -> hit ratio."""
    rejected: tuple[Mapping[str, Any], ...] = ()
    leaving: tuple[str, ...] = ()
    conditions: tuple[Mapping[str, Any], ...] = ()
    changes: tuple[Mapping[str, Any], ...] = ()


def outlook(question: Question, *, replicas: int, memory_factor: float) -> Outlook | NoPrediction:
    """Return the outlook for ``replicas`` (at least 1) with ``memory_factor`` (above 0) times the KV memory."""
    policy, observation, state, at = question.policy, question.observation, question.state, question.now
    now = what_if(policy, observation, state, at, replicas=max(1, question.num_ready))
    then = what_if(policy, observation, state, at, replicas=replicas, memory_factor=memory_factor)
    if isinstance(now, NoPrediction):
        return now
    if isinstance(then, NoPrediction):
        return then
    decision = decide(policy, observation, state, at)
    return Outlook(now=now, then=then, policy=_wanted(policy, decision, replicas))


def _wanted(policy: ScalingPolicy, decision: Decision, replicas: int) -> Wanted:
    goes_there = replicas == decision.desired
    wants = f"the policy wants {decision.desired} ({decision.reason}: {decision.message})"
    if replicas > policy.max_replicas:
        sentence = f"no: maxReplicas is {policy.max_replicas}"
    elif replicas < policy.min_replicas:
        sentence = f"no: minReplicas is {policy.min_replicas}"
    else:
        sentence = f"{'yes' if goes_there else 'no'}: {wants}"
    if not decision.acts:
        sentence += f"; its mode is {policy.mode}, so nothing is done"
    return Wanted(
        replicas=decision.desired,
        mode=policy.mode,
        reason=decision.reason,
        message=decision.message,
        goes_there=goes_there,
        sentence=sentence,
    )


def told(question: Question) -> Told:
    """Return what is decided now, and from what."""
    decision = decide(question.policy, question.observation, question.state, question.now)
    return Told(
        mode=question.policy.mode,
        min_replicas=question.policy.min_replicas,
        max_replicas=question.policy.max_replicas,
        num_ready=question.num_ready,
        num_asked=question.observation.current,
        desired=decision.desired,
        reason=decision.reason,
        message=decision.message,
        inputs=decision.inputs,
        predicted={str(number): ratio for number, ratio in sorted(decision.predicted.items())},
        rejected=tuple(map(asdict, decision.rejected)),
        leaving=question.leaving,
        conditions=tuple(map(asdict, decision.verdicts)),
        changes=tuple(map(asdict, decision.state.changes)),
    )


def to_json(found: Outlook | Told) -> dict[str, Any]:
    """Return the JSON form: what is unknown is null, and what has no end is `WITHOUT_END`."""
    written = _written(asdict(found))
    assert isinstance(written, dict)
    return written


def _written(value: Any) -> Any:
    match value:
        case dict():
            return {name: _written(each) for name, each in value.items()}
        case list() | tuple():
            return [_written(each) for each in value]
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return WITHOUT_END
        case _:
            return value
