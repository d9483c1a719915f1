"""The scheduler's part of the soak, for a moment."""

from __future__ import annotations

import pytest

from sapwood_tools.soak import soak


@pytest.mark.parametrize("seed", range(4))
def test_a_short_soak_of_the_scheduler_finds_no_fault(seed: int) -> None:
    reports: list[int] = []
    assert soak("scheduler", num_operations=1500, seed=seed, report=reports.append) is None
    assert reports == [1500]
