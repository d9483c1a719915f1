"""How many replicas are applied where nobody has decided: the operator never takes back what an autoscaler did."""

from __future__ import annotations

import pytest

from sapwood_operator.domain.replicas import wanted_replicas
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.domain.spec import FixedReplicas, PolicyRef, ScaledReplicas


def scaled(minimum: int, maximum: int, *, to_zero: bool = False) -> ScaledReplicas:
    return ScaledReplicas(ScalingPolicy(min_replicas=minimum, max_replicas=maximum, scale_to_zero=to_zero))


@pytest.mark.parametrize(
    ("asked", "live", "wanted"),
    [
        (FixedReplicas(2), 4, 2),
        (FixedReplicas(0), 4, 0),
        (scaled(1, 8), 4, 4),
        (scaled(1, 3), 4, 3),
        (scaled(2, 8), 1, 2),
        (scaled(2, 8), 0, 2),
        (scaled(0, 8, to_zero=True), 0, 0),
        (ScaledReplicas(PolicyRef("day")), 7, 7),
    ],
)
def test_a_number_that_the_user_gives_holds_and_an_autoscaled_one_is_kept_within_bounds(
    asked: FixedReplicas | ScaledReplicas, live: int, wanted: int
) -> None:
    assert wanted_replicas(asked, {"spec": {"replicas": live}}) == wanted


@pytest.mark.parametrize(("asked", "wanted"), [(scaled(2, 8), 2), (ScaledReplicas(PolicyRef("day")), 1)])
def test_an_autoscaled_service_begins_with_its_minimum_or_with_one(asked: ScaledReplicas, wanted: int) -> None:
    assert wanted_replicas(asked, None) == wanted
