"""By which rule a service gets its number of replicas: the spec's, a policy of its own, or a shared one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapwood_operator.domain.intent import ScalingCondition
from sapwood_operator.domain.policies import read_policy
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.domain.spec import FixedReplicas, PolicyRef, ServiceSpec

HELD = "replicas stay as they are, and where there is none a request that waits starts one"
"""What comes of it where nobody decides."""


@dataclass(frozen=True, slots=True)
class NoRule:
    """Why a service that is to be scaled is not."""

    reason: str
    message: str

    @property
    def condition(self) -> ScalingCondition:
        """What the service says of it."""
        return ScalingCondition("AutoscalingActive", "False", self.reason, self.message)


def rule_of(spec: ServiceSpec, policies: Mapping[str, Mapping[str, Any]]) -> ScalingPolicy | FixedReplicas | NoRule:
    """Return the rule; ``policies``: live AutoscalingPolicies of the namespace by name."""
    if isinstance(spec.replicas, FixedReplicas):
        return spec.replicas
    match spec.replicas.by:
        case ScalingPolicy() as policy:
            return policy
        case PolicyRef(name):
            return _shared(name, policies)


def _shared(name: str, policies: Mapping[str, Mapping[str, Any]]) -> ScalingPolicy | NoRule:
    if name not in policies:
        fix = f"make it, or name another one in spec.autoscaling.policyRef; {HELD}"
        return NoRule("PolicyMissing", f"the namespace has no AutoscalingPolicy {name!r}: {fix}")
    policy = read_policy(policies[name])
    if isinstance(policy, ScalingPolicy):
        return policy
    return NoRule("InvalidSpec", f"AutoscalingPolicy {name!r}: {policy}; {HELD}")
