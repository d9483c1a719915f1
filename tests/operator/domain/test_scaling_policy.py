"""How a scaling policy is read."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood_operator.domain.fields import Fields
from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy, StepLimit, read_scaling_policy
from sapwood_operator.errors import InvalidSpec


def read(**spec: Any) -> ScalingPolicy:
    """Read a policy that may have up to nine replicas unless said otherwise."""
    return read_scaling_policy(Fields({"maxReplicas": 9, **spec}, "spec.autoscaling"))


def test_a_policy_that_says_nothing_but_its_most_has_the_defaults() -> None:
    assert read() == ScalingPolicy(max_replicas=9)


def test_every_field_is_read() -> None:
    policy = read(
        minReplicas=0,
        mode="DryRun",
        slo={"ttftP90": "2s", "itlP90": "60ms"},
        cache={"minPayback": "1.5", "minAffinity": "0.6", "maxHitLoss": "0.1", "settleTime": "3m"},
        capacity={"prefillUtilization": "0.7", "kvUtilization": "0.9", "scaleDownMargin": "0.8"},
        behavior={
            "scaleUp": {
                "stabilizationWindow": "30s",
                "selectPolicy": "Min",
                "policies": [{"type": "Percent", "value": 100, "period": "1m"}],
            },
            "scaleDown": {"selectPolicy": "Disabled"},
        },
        missingMetrics={"coverageFloor": "0.5", "holdFor": "10m", "fallbackReplicas": 4},
        scaleToZero={"enabled": True, "idleAfter": "1h"},
    )
    assert policy == ScalingPolicy(
        min_replicas=0,
        max_replicas=9,
        mode="DryRun",
        ttft_p90_seconds=2.0,
        itl_p90_seconds=0.06,
        min_payback=1.5,
        min_affinity=0.6,
        max_hit_loss=0.1,
        settle_seconds=180.0,
        prefill_utilization=0.7,
        kv_utilization=0.9,
        scale_down_margin=0.8,
        up=Behavior(
            window_seconds=30.0,
            select="Min",
            limits=(StepLimit(type="Percent", value=100, period_seconds=60.0),),
        ),
        down=Behavior(window_seconds=300.0, select="Disabled"),
        coverage_floor=0.5,
        hold_seconds=600.0,
        fallback_replicas=4,
        scale_to_zero=True,
        idle_seconds=3600.0,
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"maxReplicas": None}, "maxReplicas"),
        ({"maxReplicas": 0}, "maxReplicas"),
        ({"maxReplicas": "9"}, "maxReplicas"),
        ({"minReplicas": 10}, "maxReplicas"),
        ({"minReplicas": -1}, "minReplicas"),
        ({"minReplicas": 0}, "minReplicas"),
        ({"mode": "active"}, "mode"),
        ({"slo": {"ttftP90": "soon"}}, "slo.ttftP90"),
        ({"slo": []}, "slo"),
        ({"cache": {"minPayback": "-1"}}, "cache.minPayback"),
        ({"cache": {"minPayback": "much"}}, "cache.minPayback"),
        ({"cache": {"minPayback": "nan"}}, "cache.minPayback"),
        ({"cache": {"minAffinity": "1.1"}}, "cache.minAffinity"),
        ({"capacity": {"prefillUtilization": "0"}}, "capacity.prefillUtilization"),
        ({"capacity": {"kvUtilization": 0.9}}, "capacity.kvUtilization"),
        ({"behavior": {"scaleUp": {"selectPolicy": "Most"}}}, "behavior.scaleUp.selectPolicy"),
        (
            {"behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1}]}}},
            "behavior.scaleDown.policies[0].type",
        ),
        (
            {"behavior": {"scaleDown": {"policies": [{"type": "Replicas", "value": 0}]}}},
            "behavior.scaleDown.policies[0].value",
        ),
        ({"missingMetrics": {"fallbackReplicas": 10}}, "missingMetrics.fallbackReplicas"),
        ({"missingMetrics": {"coverageFloor": "2"}}, "missingMetrics.coverageFloor"),
        ({"scaleToZero": {"enabled": "yes"}}, "scaleToZero.enabled"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read(**spec)
    assert f"spec.autoscaling.{field}" in str(refused.value)
