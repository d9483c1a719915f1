"""By which rule the number of replicas is decided: `spec.autoscaling` of a service, or an AutoscalingPolicy's spec."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

from sapwood_operator.domain.fields import Fields
from sapwood_operator.errors import InvalidSpec

Mode = Literal["Active", "DryRun", "Paused"]
Select = Literal["Max", "Min", "Disabled"]
LimitType = Literal["Replicas", "Percent"]

MOST_REPLICAS = 1000
_LEAST_SHARE = 0.000_000_001


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """Most change within a period."""

    type: LimitType
    value: int
    """Replicas, or percent of those there were when the period began."""
    period_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """How fast the number may change in one direction."""

    window_seconds: float
    select: Select = "Max"
    limits: tuple[StepLimit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """One policy; times in seconds, shares from 0 to 1. The field's texts are in ``crds/autoscalingpolicies.yaml``."""

    min_replicas: int = 1
    max_replicas: int
    mode: Mode = "Active"
    ttft_p90_seconds: float | None = None
    """Promised; None: nothing is."""
    itl_p90_seconds: float | None = None
    min_payback: float = 1.0
    min_affinity: float = 0.7
    max_hit_loss: float = 0.05
    settle_seconds: float = 120.0
    prefill_utilization: float = 0.8
    kv_utilization: float = 0.85
    scale_down_margin: float = 0.85
    up: Behavior = Behavior(window_seconds=0.0)
    down: Behavior = Behavior(window_seconds=300.0)
    coverage_floor: float = 0.8
    hold_seconds: float = 300.0
    fallback_replicas: int | None = None
    """None: the number stays held."""
    scale_to_zero: bool = False
    idle_seconds: float = 900.0


def read_scaling_policy(fields: Fields) -> ScalingPolicy:
    """Read a policy; raises `InvalidSpec` naming the field below ``fields.path``."""
    minimum = fields.integer("minReplicas", 1)
    slo, cache, capacity = fields.inner("slo"), fields.inner("cache"), fields.inner("capacity")
    behavior, missing, zero = fields.inner("behavior"), fields.inner("missingMetrics"), fields.inner("scaleToZero")
    policy = ScalingPolicy(
        min_replicas=minimum,
        max_replicas=fields.integer("maxReplicas", least=max(1, minimum)),
        mode=cast(Mode, fields.choice("mode", "Active", get_args(Mode))),
        ttft_p90_seconds=slo.seconds("ttftP90", 0.0) or None,
        itl_p90_seconds=slo.seconds("itlP90", 0.0) or None,
        min_payback=_number(cache, "minPayback", 1.0),
        min_affinity=cache.ratio("minAffinity", 0.7),
        max_hit_loss=cache.ratio("maxHitLoss", 0.05),
        settle_seconds=cache.seconds("settleTime", 120.0),
        prefill_utilization=capacity.ratio("prefillUtilization", 0.8, least=_LEAST_SHARE),
        kv_utilization=capacity.ratio("kvUtilization", 0.85, least=_LEAST_SHARE),
        scale_down_margin=capacity.ratio("scaleDownMargin", 0.85, least=_LEAST_SHARE),
        up=_read_behavior(behavior.inner("scaleUp"), window_seconds=0.0),
        down=_read_behavior(behavior.inner("scaleDown"), window_seconds=300.0),
        coverage_floor=missing.ratio("coverageFloor", 0.8),
        hold_seconds=missing.seconds("holdFor", 300.0),
        fallback_replicas=missing.integer("fallbackReplicas", least=1) if missing.has("fallbackReplicas") else None,
        scale_to_zero=zero.switch("enabled", False),
        idle_seconds=zero.seconds("idleAfter", 900.0),
    )
    if minimum == 0 and not policy.scale_to_zero:
        fix = "it needs scaleToZero.enabled: set that to true, or begin with 1"
        raise InvalidSpec(fields.where("minReplicas"), 0, fix)
    if policy.fallback_replicas is not None and policy.fallback_replicas > policy.max_replicas:
        fix = f"it is above maxReplicas, {policy.max_replicas}: lower it, or raise maxReplicas"
        raise InvalidSpec(missing.where("fallbackReplicas"), policy.fallback_replicas, fix)
    return policy


def _read_behavior(behavior: Fields, *, window_seconds: float) -> Behavior:
    limits = []
    for number, item in enumerate(behavior.objects("policies")):
        limit = Fields(item, f"{behavior.where('policies')}[{number}]")
        limits.append(
            StepLimit(
                type=cast(LimitType, limit.choice("type", "", get_args(LimitType))),
                value=limit.integer("value", least=1),
                period_seconds=limit.seconds("period", 60.0),
            )
        )
    return Behavior(
        window_seconds=behavior.seconds("stabilizationWindow", window_seconds),
        select=cast(Select, behavior.choice("selectPolicy", "Max", get_args(Select))),
        limits=tuple(limits),
    )


def _number(fields: Fields, name: str, default: float) -> float:
    """Return a decimal from 0 on that is written as a text."""
    if not fields.has(name):
        return default
    text = fields.text(name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidSpec(fields.where(name), text, 'give a decimal from "0" on, such as "1.0"')
    return value
