"""Every rule gets the target that does best on a trace's first half."""

from __future__ import annotations

import pytest
from support_autoscale import fleet_settings, load

from sapwood_operator.domain.scaling_policy import Behavior, ScalingPolicy
from sapwood_tools.replay.autoscale.compare import Scene, compare, foresee
from sapwood_tools.replay.autoscale.tune import GRID, chosen, half_of, part_of, scores_of, with_target

TRACE = load(lambda _: 2.0, seconds=600.0)
POLICY = ScalingPolicy(max_replicas=6, ttft_p90_seconds=10.0, down=Behavior(window_seconds=30.0))
SCENE = Scene(policy=POLICY, ttft_seconds=10.0, fleet=fleet_settings(), opening_seconds=60.0)


def test_the_target_is_of_the_grid_and_the_other_rules_keep_theirs() -> None:
    scene = chosen(TRACE, SCENE, foresee(TRACE, SCENE), ("current-hit",))
    assert scene.targets.utilization in GRID["current-hit"]
    assert with_target(scene, "current-hit", SCENE.targets.utilization) == SCENE


def test_every_rule_has_as_many_targets_as_the_others_and_no_foreign_ones() -> None:
    assert len({len(grid) for grid in GRID.values()}) == 1
    assert len({with_target(SCENE, name, target) for name, grid in GRID.items() for target in grid}) >= 16
    with pytest.raises(ValueError, match="best"):
        with_target(SCENE, "best", 1.0)


def test_two_halves_have_all_requests_and_all_pod_time() -> None:
    foreseen = foresee(TRACE, SCENE)
    runs, scores = compare(TRACE, SCENE, foreseen, ("current-hit",), lambda _: None)
    half = half_of(TRACE)
    parts = [part_of(runs[0], begin, end) for begin, end in ((0.0, half), (half, 1e9))]
    assert sum(len(part.scored) for part in parts) == len(runs[0].scored)
    assert sum(part.pod_seconds for part in parts) == pytest.approx(runs[0].pod_seconds, rel=0.05)
    assert [each.controller for each in scores_of(runs, half, 1e9, 10.0)] == ["current-hit", "clairvoyant"]
    assert scores[-1].near_clairvoyant == 1.0
