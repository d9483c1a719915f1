"""How many replicas are applied: the operator never takes back what an autoscaler decided."""

from __future__ import annotations

import pytest

from sapwood_operator.domain.replicas import wanted_replicas
from sapwood_operator.domain.spec import FixedReplicas, ScaledReplicas


@pytest.mark.parametrize(
    ("asked", "live", "wanted"),
    [
        (FixedReplicas(2), 4, 2),
        (FixedReplicas(0), 4, 0),
        (ScaledReplicas(1, 8), 4, 4),
        (ScaledReplicas(1, 3), 4, 3),
        (ScaledReplicas(2, 8), 1, 2),
        (ScaledReplicas(2, 8), 0, 2),
        (ScaledReplicas(0, 8), 0, 0),
    ],
)
def test_a_number_that_the_user_gives_holds_and_an_autoscaled_one_is_kept_within_bounds(
    asked: FixedReplicas | ScaledReplicas, live: int, wanted: int
) -> None:
    assert wanted_replicas(asked, {"spec": {"replicas": live}}) == wanted


def test_an_autoscaled_service_begins_with_its_minimum() -> None:
    assert wanted_replicas(ScaledReplicas(2, 8), None) == 2
