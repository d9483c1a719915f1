"""What scaling wants of a turn: how many pods there are to be now, and which of them are on their way out.

Made by `autoscaling` before the plan; `plan` writes it down as it writes everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

ConditionType = Literal["MetricsAvailable", "AutoscalingActive", "ScalingLimited"]
SCALING_CONDITIONS: tuple[ConditionType, ...] = get_args(ConditionType)
"""A service has them while it is scaled by a policy."""
DRY_RUN = "DryRun"
"""Reason of `AutoscalingActive` while decisions are recorded and not acted on."""


@dataclass(frozen=True, slots=True)
class ScalingCondition:
    """One condition that comes with scaling."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NoIntent:
    """Nobody has decided: there are as many replicas as the spec says, and none is on its way out."""


NO_INTENT = NoIntent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Of one turn."""

    replicas: int
    """To stand in the Deployment now; above ``desired`` while a replica is still finishing."""
    desired: int
    """Where this is going."""
    cordoned: tuple[str, ...] = ()
    """Pods that gateways send nothing new to, in the order of their names."""
    first_to_go: tuple[str, ...] = ()
    """Pods that the ReplicaSet's controller is to take before all others."""
    scales_to_zero: bool = False
    """Whether it may be without a replica while nobody asks; requests wait for the first one then."""
    promised_seconds: float | None = None
    """Until the first token, by the policy that is followed: for alerts. None: it promises nothing."""
    autoscaling: Mapping[str, Any] = field(default_factory=dict)
    """``status.autoscaling``, whole; empty: the service has none."""
    observed: Mapping[str, str] = field(default_factory=dict)
    """``status.observed``, whole; empty: nothing was measured."""
    conditions: tuple[ScalingCondition, ...] = ()
    """In the order in which they are shown."""
    news: tuple[str, ...] = ()
    """Sentences on who goes and why, and who stays after all, to be told once."""
    recheck_seconds: float = float("inf")
    """When to look again, should nothing happen before."""
