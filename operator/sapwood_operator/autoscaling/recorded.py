"""What a decision leaves in the status of its service.

What explains it is written anew when something else was decided, not with every measurement: a service under steady
load costs no write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sapwood_operator.autoscaling.state import to_status
from sapwood_operator.autoscaling.values import Decision
from sapwood_operator.domain.intent import ConditionType, ScalingCondition

_MAX_MESSAGE_CHARACTERS = 1024
"""Of the schema."""
_EXPLAINED = ("bound", "message", "inputs", "predicted", "rejected")


VERDICTS: Mapping[tuple[ConditionType, str], tuple[str, str]] = {
    ("MetricsAvailable", "Reported"): ("True", "enough replicas report; at zero, the gateways do"),
    ("MetricsAvailable", "MetricsMissing"): ("False", "too few replicas report, or at zero no gateway"),
    ("MetricsAvailable", "NoReplicaReady"): ("False", "no replica is ready to report"),
    ("AutoscalingActive", "Active"): ("True", "decisions are acted on"),
    ("AutoscalingActive", "DryRun"): ("False", "decisions are recorded and not acted on"),
    ("AutoscalingActive", "Paused"): ("False", "nothing is decided"),
    ("AutoscalingActive", "PolicyMissing"): ("False", "the namespace has no policy of the name"),
    ("AutoscalingActive", "InvalidSpec"): ("False", "the policy, or the service, has a field that cannot be used"),
    ("AutoscalingActive", "DecisionFailed"): ("False", "deciding failed, for a fault of the operator"),
    ("ScalingLimited", "InsufficientCapacity"): ("True", "no node takes replicas that were asked for"),
    ("ScalingLimited", "ReplicasNotReady"): ("True", "replicas that were asked for do not get ready"),
    ("ScalingLimited", "StepLimit"): ("True", "the policy's steps allow no larger change now"),
    ("ScalingLimited", "Maximum"): ("True", "`maxReplicas` allows no more"),
    ("ScalingLimited", "PromiseOutOfReach"): ("True", "no number of replicas keeps what was promised"),
    ("ScalingLimited", "AsWanted"): ("False", "there are as many replicas as are wanted"),
}
"""Condition and reason -> status, and when it is said. `operator/README.md` shows the same table."""


def recorded(former: Mapping[str, Any], decision: Decision) -> Mapping[str, Any]:
    """Return ``status.autoscaling`` but for who leaves; ``former``: what stands there now."""
    status = to_status(decision.state)
    for change in status.get("decisions", ()):
        change["message"] = change["message"][:_MAX_MESSAGE_CHARACTERS]
    if former.get("bound") == decision.reason and former.get("desired") == status.get("desired"):
        return {**status, **{name: former[name] for name in _EXPLAINED if name in former}}
    return {**status, **_explained(decision)}


def _explained(decision: Decision) -> Mapping[str, Any]:
    explained: dict[str, Any] = {"bound": decision.reason, "message": decision.message[:_MAX_MESSAGE_CHARACTERS]}
    if decision.inputs:
        explained["inputs"] = {name: f"{value:.4g}" for name, value in sorted(decision.inputs.items())}
    if decision.predicted:
        explained["predicted"] = {str(number): f"{ratio:.4g}" for number, ratio in sorted(decision.predicted.items())}
    if decision.rejected:
        explained["rejected"] = [
            {"replicas": each.replicas, "why": each.why[:_MAX_MESSAGE_CHARACTERS]} for each in decision.rejected
        ]
    return explained


def conditions(status: Mapping[str, Any], decision: Decision) -> tuple[ScalingCondition, ...]:
    """Return what is said; ``status``: of the service as it is. The numbers in a message alone do not change it."""
    before = {each["type"]: each for each in status.get("conditions") or ()}
    found = []
    for verdict in decision.verdicts:
        truth: Literal["True", "False"] = "True" if verdict.status else "False"
        known = before.get(verdict.type, {})
        is_same = (known.get("status"), known.get("reason")) == (truth, verdict.reason)
        message = known["message"] if is_same else verdict.message
        found.append(ScalingCondition(verdict.type, truth, verdict.reason, message))
    return tuple(found)
